"""TorchServe's management API: models are registered, listed, described, scaled and unregistered. Runs on the road."""

from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs

from shoal.frontend.call import HandlerCall, Route, blocking
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.torchserve import workflows
from shoal.frontend.torchserve.errors import RESOURCE_NOT_FOUND, RefusedError, refused
from shoal.frontend.torchserve.management import scale_workers
from shoal.frontend.torchserve.model_list import describe, is_served, models
from shoal.frontend.torchserve.registration import register, set_default, unregister
from shoal.torchserve_keys import RENEWED, renew_key


def renew_token(call: HandlerCall) -> Response:
    """Replace a key in key_file.json, where the caller finds it; the old one is admitted no longer."""
    settings = call.state.torchserve
    if not settings.token_file:
        raise RefusedError(RESOURCE_NOT_FOUND)
    kind = parse_qs(call.query).get("type", [""])[-1]
    if kind not in RENEWED:
        raise refused(400, "BadRequestException", f"Parameter type must be {' or '.join(RENEWED)}.")
    try:
        renew_key(Path(settings.token_file), kind, datetime.now(), settings.token_expiration_min)
    except (OSError, ValueError) as error:
        raise refused(500, "InternalServerException", f"The file of tokens cannot be written: {error}") from error
    return Response(200, JSON_CONTENT, (b"\n",))


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
