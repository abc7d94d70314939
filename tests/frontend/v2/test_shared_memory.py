"""frontend/v2/shared_memory.py: what is asked of the supervisor, and what is refused before, in Triton's order."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnsupportedError
from shoal.frontend.regions import Regions
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.shared_memory import regions, register, register_cuda, unregister
from tests.frontend.calls import call_of

DONE = Response(200, (("Content-Type", "application/json"),))


class Supervisor:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float) -> None:
        assert timeout_s < 60
        self.asked.append((verb, arguments))


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest.fixture
def state() -> ServerState:
    return ServerState(regions=Regions(are_allowed=True))


def test_a_region_is_registered(state: ServerState, supervisor: Supervisor) -> None:
    for more in ({}, {"offset": 2**64 - 1}):
        body = memoryview(json.dumps({"key": "/k", "byte_size": 8, **more}).encode())
        assert register(call_of(state, supervisor.ask, "r", body=body)) == DONE
    arguments = {"name": "r", "key": "/k", "offset": 0, "byte_size": 8}
    wanted = [arguments, {**arguments, "offset": 2**64 - 1}]
    assert supervisor.asked == [("register_region", each) for each in wanted]


@pytest.mark.parametrize(
    ("name", "body", "kind", "sentence"),
    [
        ("", "{", InvalidArgumentError, "'region name' is necessary to register system shared memory region"),
        ("r", "", InternalError, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("r", "{}", InvalidArgumentError, "Shared memory register request has no 'key' field"),
        ("r", "[]", InvalidArgumentError, "Shared memory register request has no 'key' field"),
        ("r", '{"key": 1}', InternalError, "attempt to access JSON non-string as string"),
        ("r", '{"key": "k"}', InvalidArgumentError, "Shared memory register request has no 'byte_size' field"),
        ("r", '{"key": "k", "offset": -1}', InternalError,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("r", '{"key": "k", "byte_size": "8"}', InternalError,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
    ],
)  # fmt: skip
def test_what_is_no_registration(
    state: ServerState, supervisor: Supervisor, name: str, body: str, kind: type[ShoalError], sentence: str
) -> None:
    with pytest.raises(ShoalError) as refused:
        register(call_of(state, supervisor.ask, name, body=body.encode()))
    assert (type(refused.value), str(refused.value)) == (kind, sentence)
    assert supervisor.asked == []


def test_memory_of_gpus_is_refused_where_there_are_none(state: ServerState, supervisor: Supervisor) -> None:
    for name, sentence in (
        ("", "'region name' is necessary to register cuda shared memory region"),
        ("r", "failed to register CUDA shared memory region: 'r', GPUs not supported"),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            register_cuda(call_of(state, supervisor.ask, name, body=b"no JSON"))
        assert str(refused.value) == sentence
    assert supervisor.asked == []


def handle_body(nbytes: int = 64, **more: object) -> memoryview:
    encoded = base64.b64encode(bytes(range(nbytes))).decode()
    return memoryview(json.dumps({"raw_handle": {"b64": encoded}, "device_id": 1, "byte_size": 8, **more}).encode())


def test_memory_of_a_gpu_is_registered(supervisor: Supervisor) -> None:
    state = ServerState(regions=Regions(are_allowed=True, has_gpus=True))
    assert register_cuda(call_of(state, supervisor.ask, "r", body=handle_body())) == DONE
    wanted = {"name": "r", "handle": bytes(range(64)), "device_id": 1, "byte_size": 8}
    assert supervisor.asked == [("register_cuda_region", wanted)]


NO_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
NO_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (b"{}", InvalidArgumentError, "Shared memory register request has no 'raw_handle' field"),
        (handle_body(raw_handle={}), InvalidArgumentError, NO_HANDLE),
        (handle_body(raw_handle="x"), InvalidArgumentError, NO_HANDLE),
        (handle_body(raw_handle={"b64": 1}), InternalError, "attempt to access JSON non-string as string"),
        (handle_body(raw_handle={"b64": "not base 64"}), InvalidArgumentError, NO_HANDLE),
        (handle_body(raw_handle={"b64": "é"}), InvalidArgumentError, NO_HANDLE),
        (handle_body(63), InvalidArgumentError, NO_HANDLE),
        (handle_body(65), InvalidArgumentError, NO_HANDLE),
        (handle_body(device_id=-1), InternalError, NO_UINT),
        (handle_body(byte_size="8"), InternalError, NO_UINT),
        (handle_body(byte_size=0), InvalidArgumentError,
         "failed to register shared memory region 'r': invalid args"),
    ],
)  # fmt: skip
def test_what_is_no_registration_of_a_gpu_s_memory(
    supervisor: Supervisor, body: bytes, kind: type[ShoalError], sentence: str
) -> None:
    state = ServerState(regions=Regions(are_allowed=True, has_gpus=True))
    with pytest.raises(ShoalError) as refused:
        register_cuda(call_of(state, supervisor.ask, "r", body=body))
    assert (type(refused.value), str(refused.value)) == (kind, sentence)
    assert supervisor.asked == []


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("name", ["r", ""])
def test_a_region_or_all_are_unregistered(state: ServerState, supervisor: Supervisor, kind: str, name: str) -> None:
    assert unregister(state, supervisor.ask, kind, name) == DONE
    assert supervisor.asked == [("unregister_region", {"kind": kind, "name": name})]


def test_without_the_flag_there_are_no_regions(supervisor: Supervisor) -> None:
    state = ServerState()
    calls: list[Callable[[], Response]] = [
        lambda: register(call_of(state, supervisor.ask, body=b"{")),
        lambda: register_cuda(call_of(state, supervisor.ask, body=b"{")),
        lambda: unregister(state, supervisor.ask, "system", ""),
        lambda: unregister(state, supervisor.ask, "cuda", "r"),
    ]
    for call in calls:
        with pytest.raises(UnsupportedError, match=r"^Client shared memory is disabled\. Start the server with "):
            call()
    assert regions(call_of(state), "system") == regions(call_of(state), "cuda") == DONE._replace(chunks=(b"[]",))
