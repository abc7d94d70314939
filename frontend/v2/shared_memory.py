"""The shared memory extensions: registering, unregistering and listing clients' regions. Changes ask the supervisor, so
they run on the road; each front end knows all regions, and lists them itself.

System regions are objects in /dev/shm (shm/client_regions.py), CUDA regions a client's memory on a GPU
(shm/cuda_regions.py). A server without GPUs refuses CUDA regions in the words of a Triton that was built without GPUs.
"""

import base64
from typing import Any

from shoal.errors import InternalError, InvalidArgumentError
from shoal.frontend import read_json as door
from shoal.frontend.call import ANSWER_S, Ask, HandlerCall, blocking
from shoal.frontend.response import JSON_CONTENT, Response, json_response
from shoal.frontend.state import ServerState
from shoal.shm.cuda_regions import check_handle

_DONE = Response(200, JSON_CONTENT)


def regions(call: HandlerCall, kind: str) -> Response:
    """The registered regions of a kind ("system" or "cuda"), or the one that the path names."""
    return json_response(200, call.state.regions.status(kind, call.name))


@blocking
def register(call: HandlerCall) -> Response:
    """Register a part of an object in /dev/shm under a name. Raises ShoalError."""
    call.state.regions.require_allowed()
    _check_name("system", call.name)
    request = door.read_json(call.body, call.state.http_max_input_size)
    key = _required(request, "key")
    if type(key) is not str:
        raise InternalError(door.wrong_type("string"))
    offset = _uint(request["offset"]) if door.has(request, "offset") else 0
    register_system(call.state, call.ask, call.name, key, offset, _uint(_required(request, "byte_size")))
    return _DONE


def register_system(state: ServerState, ask: Ask, name: str, key: str, offset: int, byte_size: int) -> None:
    """Register a region as `register` does; when this returns, every front end knows the region. Raises ShoalError."""
    state.regions.require_allowed()
    _check_name("system", name)
    ask("register_region", {"name": name, "key": key, "offset": offset, "byte_size": byte_size}, ANSWER_S)


@blocking
def register_cuda(call: HandlerCall) -> Response:
    """Register memory of a GPU under a name. Raises ShoalError."""
    _check_gpus(call.state, call.name)
    request = door.read_json(call.body, call.state.http_max_input_size)
    encoded = door.find(_required(request, "raw_handle"), "b64") or ""
    if type(encoded) is not str:
        raise InternalError(door.wrong_type("string"))
    try:
        handle = base64.b64decode(encoded, validate=True)
    except ValueError:
        handle = b""
    byte_size = _uint(_required(request, "byte_size"))
    device_id = _uint(_required(request, "device_id"))
    register_cuda_handle(call.state, call.ask, call.name, handle, device_id, byte_size)
    return _DONE


def register_cuda_handle(
    state: ServerState, ask: Ask, name: str, handle: bytes, device_id: int, byte_size: int
) -> None:
    """Register memory of a GPU by its handle; when this returns, every front end knows the region. Raises
    ShoalError."""
    _check_gpus(state, name)
    check_handle(handle)
    if byte_size < 1:
        raise InvalidArgumentError(f"failed to register shared memory region '{name}': invalid args")
    arguments = {"name": name, "handle": handle, "device_id": device_id, "byte_size": byte_size}
    ask("register_cuda_region", arguments, ANSWER_S)


def _check_gpus(state: ServerState, name: str) -> None:
    state.regions.require_allowed()
    _check_name("cuda", name)
    if not state.regions.has_gpus:
        raise InvalidArgumentError(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")


def unregister(state: ServerState, ask: Ask, kind: str, name: str) -> Response:
    """Unregister a region, or all of a kind if `name` is "". A name that is not registered, or is registered as the
    other kind, is ignored."""
    state.regions.require_allowed()
    ask("unregister_region", {"kind": kind, "name": name}, ANSWER_S)
    return _DONE


def _check_name(kind: str, name: str) -> None:
    if not name:
        raise InvalidArgumentError(f"'region name' is necessary to register {kind} shared memory region")


def _required(request: Any, field: str) -> Any:
    if not door.has(request, field):
        raise InvalidArgumentError(f"Shared memory register request has no '{field}' field")
    return door.find(request, field)


def _uint(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= door.MAX_UINT64:
        raise InternalError(door.wrong_type("unsigned-integer"))
    return value
