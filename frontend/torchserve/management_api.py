"""TorchServe's management API: models are registered, listed, described, scaled and unregistered. Runs on the road."""

from shoal.frontend.call import Route, blocking
from shoal.frontend.torchserve import workflows
from shoal.frontend.torchserve.management import scale_workers
from shoal.frontend.torchserve.model_list import describe, is_served, models
from shoal.frontend.torchserve.registration import register, set_default, unregister
from shoal.frontend.torchserve.token_renewal import renew_token

_NAME, _VERSION = "(?P<name>[^/]+)", "(?P<version>[^/]+)"

#: In the order in which they are tried.
MANAGEMENT_ROUTES = (
    Route("/models", {"GET": blocking(models), "POST": blocking(register)}, "model-repository"),
    Route(f"/models/{_NAME}/{_VERSION}/set-default", {"PUT": blocking(set_default)}, "model-repository"),
    Route(
        f"/models/{_NAME}(?:/{_VERSION})?",
        {
            "GET": blocking(describe),
            "PUT": scale_workers,
            "DELETE": blocking(unregister),
        },
        "model-repository",
    ),
    Route(f"/v1/models/{_NAME}", {"GET": blocking(is_served)}, "model-repository"),
    Route("/token", {"GET": blocking(renew_token)}, "token"),
    Route(
        "/workflows",
        {"GET": blocking(workflows.workflows), "POST": blocking(workflows.register)},
        "model-repository",
    ),
    Route(
        f"/workflows/{_NAME}",
        {"GET": blocking(workflows.describe), "DELETE": blocking(workflows.unregister)},
        "model-repository",
    ),
)
