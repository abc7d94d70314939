"""TorchServe's management API: models are listed, described and scaled. Runs on the road."""

from shoal.frontend.call import Route, administrative, blocking
from shoal.frontend.torchserve.management import scale_workers
from shoal.frontend.torchserve.model_list import describe, models

_NAME, _VERSION = "(?P<name>[^/]+)", "(?P<version>[^/]+)"

#: In the order in which they are tried.
MANAGEMENT_ROUTES = (
    Route("/models", {"GET": models}, "model-repository"),
    Route(
        f"/models/{_NAME}(?:/{_VERSION})?",
        {
            "GET": blocking(describe),
            "PUT": administrative(lambda call: scale_workers(call.ask, call.name, call.version, call.query)),
        },
        "model-repository",
    ),
)
