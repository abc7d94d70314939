"""A request on the road: its trace begins when it is submitted and ends when the response's `close` is called."""

import json
import os
import socket
from collections.abc import Iterator

import pytest

from shoal.control import Channel
from shoal.errors import UnavailableError
from shoal.frontend.state import ServerState
from shoal.frontend.tracing import changed
from shoal.messages.to_client import TraceSettingsChanged
from shoal.tracer.settings import GLOBAL, TIMESTAMPS, TraceSetting
from tests.frontend.conftest import Client, EchoTransport
from tests.messages import receive

INFER = "/v2/models/simple/infer"
BODY = json.dumps(
    {"inputs": [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": [i] * 16} for i in (0, 1)]}
).encode()


@pytest.fixture
def traces(state: ServerState) -> Iterator[Channel]:
    """Everything is traced, and comes here."""
    receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiving.setblocking(False)
    with receiving, sending:
        setting = TraceSetting(TIMESTAMPS, rate=1, file="x").fields
        told = TraceSettingsChanged({GLOBAL: setting}, os.dup(sending.fileno()))
        state.tracing = changed(None, told, state.models.names)
        yield Channel(receiving)
        assert state.tracing is not None
        assert state.tracing.outlet is not None
        state.tracing.outlet.close()


def num_traces(traces: Channel) -> int:
    count = 0
    while True:
        try:
            message = receive(traces)[0]
        except BlockingIOError:
            return count
        stamps = message.trace[5]
        # The transport of the test knows no batcher: its time points are missing.
        assert [bool(stamp) for stamp in stamps] == [True, True] + [False] * 7 + [True, True]
        assert stamps[0] <= stamps[1] <= stamps[9] <= stamps[10]
        count += 1


@pytest.fixture
def client(state: ServerState, transport: EchoTransport) -> Client:
    """The application: it is what traces on the road."""
    return Client("flask", state, transport)


def test_a_response_ends_its_trace(traces: Channel, client: Client, transport: EchoTransport) -> None:
    assert client.ask("POST", INFER, BODY)[0] == 200
    assert (num_traces(traces), transport.num_released) == (1, 1)
    assert client.ask("GET", "/v2")[0] == 200
    assert client.ask("POST", INFER, b"{}")[0] == 500  # refused before it was submitted
    assert num_traces(traces) == 0
    transport.error = UnavailableError("no")
    assert client.ask("POST", INFER, BODY)[0] == 503
    assert num_traces(traces) == 1


def test_questions_are_passed_on(traces: Channel, client: Client, transport: EchoTransport) -> None:
    transport.answers["trace_settings"] = {"trace_rate": "1"}
    assert client.ask("GET", "/v2/trace/setting")[2] == b'{"trace_rate":"1"}'
    assert num_traces(traces) == 0
