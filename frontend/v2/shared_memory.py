"""The shared memory extensions, as they are where clients' shared memory is disabled. Pure, run in front-end processes.

No region can be registered then, so there is none, and Triton says so in a sentence of its own.
"""

from shoal.errors import NotFoundError, UnsupportedError
from shoal.frontend.response import Response, json_response


def client_shm_disabled() -> UnsupportedError:
    """The refusal of whatever needs a client's region."""
    return UnsupportedError(
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    )


def refuse_client_shm(_call: object) -> Response:
    """Registering and unregistering, with or without a region."""
    raise client_shm_disabled()


def regions(kind: str, region: str) -> Response:
    """The registered regions of a kind ("system" or "cuda"), which are none; `region` is "" where all are meant."""
    if region:
        raise NotFoundError(f"Unable to find {kind} shared memory region: '{region}'")
    return json_response(200, [])
