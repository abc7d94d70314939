"""TorchServe's requests that change which archives are models: register, unregister, set the default version.

Parameters stand in the query or, where the body is JSON, in the body alone. Runs on the road, which asks the supervisor
to make the change.
"""

from typing import Any

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import METHOD_NOT_ALLOWED, RefusedError, pretty, refused
from shoal.frontend.torchserve.parameters import boolean, integer, request_parameters

_TEXTS = ("model_name", "handler", "runtime")
_NUMBERS = ("batch_size", "max_batch_delay", "initial_workers", "response_timeout", "startup_timeout")
_RUNTIMES = ("python", "python3")
_NO_NUMBER = -(10**9)


def register(call: HandlerCall) -> Response:
    """Register an archive; by default the response comes once its workers are up."""
    refuse_unless_enabled(call)
    given = request_parameters(call)
    url = given.get("url")
    if url is None:
        raise refused(400, "BadRequestException", "Parameter url is required.")
    if not url:
        raise refused(404, "ModelNotFoundException", "empty url")
    runtime = given.get("runtime")
    if runtime and runtime.lower() not in _RUNTIMES:
        raise refused(400, "BadRequestException", f"Invalid RuntimeType value: {runtime}")
    if boolean(given.get("s3_sse_kms", "false")):
        raise refused(
            400,
            "BadRequestException",
            "s3_sse_kms is not supported: Amazon's signature is not made. Register the archive by a URL that needs "
            "none, or put it into the model store",
        )
    is_synchronous = boolean(given.get("synchronous", "true"))
    arguments: dict[str, Any] = {"url": url, "synchronous": is_synchronous}
    arguments |= {name: given[name] for name in _TEXTS if given.get(name)}
    for name in _NUMBERS:
        number = integer(given.get(name, ""), _NO_NUMBER)
        if number != _NO_NUMBER:
            arguments[name] = number
    if "initial_workers" not in arguments and call.state.torchserve.default_workers:
        arguments["initial_workers"] = call.state.torchserve.default_workers
    made = call.ask("ts_register", arguments)
    name, version, workers = made["model"], made["version"], made["workers"]
    if workers and not is_synchronous:
        return pretty(202, {"status": "Processing worker updates..."})
    more = "" if workers else ". Use scale workers API to add workers for the model."
    return pretty(200, {"status": f'Model "{name}" Version: {version} registered with {workers} initial workers{more}'})


def unregister(call: HandlerCall) -> Response:
    """Unregister a version, without one the default version; the response comes once it has ended."""
    refuse_unless_enabled(call)
    call.ask("ts_unregister", {"model": call.name, "version": call.version or None})
    return pretty(200, {"status": f'Model "{call.name}" unregistered'})


def set_default(call: HandlerCall) -> Response:
    """Let requests without a version mean the one in the path."""
    call.ask("ts_set_default", {"model": call.name, "version": call.version})
    sentence = f'Default version successfully updated for model "{call.name}" to "{call.version}"'
    return pretty(200, {"status": sentence})


def refuse_unless_enabled(call: HandlerCall) -> None:
    """Raise the refusal of a registration where clients may register nothing."""
    if not call.state.torchserve.enable_model_api:
        raise RefusedError(METHOD_NOT_ALLOWED)
