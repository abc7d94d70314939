"""TorchServe's request for a fresh token: GET /token?type=management or inference, with the token of the API.

The caller finds the new one in key_file.json. Runs on the road.
"""

import threading
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.torchserve.errors import RESOURCE_NOT_FOUND, RefusedError, refused
from shoal.torchserve_keys import RENEWED, renew_key

_lock = threading.Lock()  # held while a key is replaced: two requests must not undo one another


def renew_token(call: HandlerCall) -> Response:
    """Replace a key in the file; the old one is admitted no longer."""
    settings = call.state.torchserve
    if not settings.token_file:
        raise RefusedError(RESOURCE_NOT_FOUND)
    kind = parse_qs(call.query).get("type", [""])[-1]
    if kind not in RENEWED:
        raise refused(400, "BadRequestException", f"Parameter type must be {' or '.join(RENEWED)}.")
    try:
        with _lock:
            renew_key(Path(settings.token_file), kind, datetime.now(), settings.token_expiration_min)
    except (OSError, ValueError) as error:
        raise refused(500, "InternalServerException", f"The file of tokens cannot be written: {error}") from error
    return Response(200, JSON_CONTENT, (b"\n",))
