"""Traces in a front end: which requests are traced, what is recorded, and what becomes of a trace that is not read."""

import dataclasses
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from shoal.control import Channel
from shoal.datatypes import BY_NAME
from shoal.frontend.prepared import PreparedRequest, block_nbytes, write_block
from shoal.frontend.state import ServerState
from shoal.frontend.tracing import MAX_TENSOR_BYTES, TracedRequest, Tracing, changed
from shoal.messages.to_client import ModelForgotten, TraceSettingsChanged
from shoal.request import InferResponse, TensorRef, pack_response
from shoal.shm.port import Reply
from shoal.star.validation import PreparedInput
from shoal.tracer.settings import GLOBAL, TENSORS, TIMESTAMPS, TraceSetting
from tests.messages import model_message, receive

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ON = TraceSetting(TIMESTAMPS, rate=1, file="x", revision=7)
TIMES = (10**19, 10**19 + 1, 10**19 + 2, 10**19 + 3, 10**19 + 4)  # later than now, and so is what follows


class Tracer:
    """The other end of what a front end sends to."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._receiving, self._sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._receiving.setblocking(False)
        self._channel = Channel(self._receiving)
        self._made: list[Tracing] = []

    def tracing(self, settings: Mapping[str, TraceSetting], before: Tracing | None = None) -> Tracing | None:
        is_on = any(setting.is_on for setting in settings.values())
        outlet = os.dup(self._sending.fileno()) if is_on else None
        told = {model: each.fields for model, each in settings.items()}
        tracing = changed(before, TraceSettingsChanged(told, outlet), self._names)
        self._made += [] if tracing is None else [tracing]
        return tracing

    def messages(self) -> list[Any]:
        found = []
        while True:
            try:
                found.append(receive(self._channel)[0])
            except BlockingIOError:
                return found

    def close(self) -> None:
        for tracing in self._made:
            if tracing.outlet is not None:
                tracing.outlet.close()
        self._receiving.close()
        self._sending.close()


@pytest.fixture
def tracer(state: ServerState) -> Iterator[Tracer]:
    made = Tracer(state.models.names)
    yield made
    made.close()


def started(tracer: Tracer, settings: TraceSetting | Mapping[str, TraceSetting]) -> Tracing:
    tracing = tracer.tracing({GLOBAL: settings} if isinstance(settings, TraceSetting) else settings)
    assert tracing is not None
    return tracing


def prepared(state: ServerState, model: str = "simple", data: bytes = bytes(64)) -> PreparedRequest:
    tensor = PreparedInput("INPUT0", BY_NAME["UINT8"], (1, len(data)), memoryview(data))
    return PreparedRequest(state.models.lookup(model, None), "r-1", (tensor,), (), True, {}, 1, 0, 0, 0)


def sampled(tracing: Tracing, request: PreparedRequest, headers: dict[str, str] | None = None) -> TracedRequest:
    trace = tracing.sample(request, headers or {})
    assert trace is not None
    trace.received(5, 6)
    return trace


def reply(block: bytes, *refs: TensorRef, status: int = 0) -> Reply:
    header = pack_response(InferResponse(refs, {}))
    return Reply(1, status, 0, memoryview(block), header, record=(4, 1, 0, 0, 0, 0, 0, *TIMES, 0, 0, 0, 0))


def run(trace: TracedRequest, request: PreparedRequest, answer: Reply) -> None:
    block = memoryview(bytearray(block_nbytes(request)))
    trace.submitted(block, write_block(request, block))
    trace.replied(answer)
    trace.sending()
    trace.sent()


def test_a_trace_has_all_points_in_order(tracer: Tracer, state: ServerState) -> None:
    tracing = started(tracer, ON)
    run(sampled(tracing, prepared(state)), prepared(state), reply(b""))
    (message,) = tracer.messages()
    revision, is_counted, model, version, request_id, stamps, tensors, context, _ = message.trace
    assert (revision, is_counted, model, version, request_id) == (7, True, "simple", 3, "r-1")
    assert (tensors, context, message.num_dropped) == ([], {}, 0)
    assert stamps[:2] == [5, 6]
    assert 6 < stamps[2] < TIMES[0]
    assert stamps[3:] == [*TIMES, TIMES[-1], TIMES[-1], TIMES[-1]]


def child(key: int, model: int) -> tuple[int, ...]:
    """A child as the port has it: key, parent, model, version, seven time points, whether it is a call."""
    return (key, 0, model, 9, *TIMES, TIMES[-1], TIMES[-1], 1)


def test_children_go_to_the_tracer_as_they_are(tracer: Tracer, state: ServerState) -> None:
    """Their thousands of words would keep this process from its other clients."""
    echo = state.models.lookup("écho b", None)
    trace = sampled(started(tracer, ON), prepared(state))
    trace.times.children = [child(77, echo.model_id), child(78, echo.model_id), child(79, 4711)]
    run(trace, prepared(state), reply(b""))
    (message,) = tracer.messages()
    assert message.children == [list(each) for each in trace.times.children]
    assert sorted(message.names) == [[echo.model_id, "écho b"], [4711, ""]]
    assert message.trace[8] == []


def test_a_model_that_comes_and_goes_while_a_request_is_open_has_its_name(tracer: Tracer, state: ServerState) -> None:
    trace = sampled(started(tracer, ON), prepared(state))
    for model in (4711, 4712):
        state.models.apply(model_message("passing", 1, model, None))
    state.models.apply(ModelForgotten("passing", "", 1))
    trace.times.children = [child(77, 4711), child(78, 4712)]
    run(trace, prepared(state), reply(b""))
    (message,) = tracer.messages()
    assert sorted(message.names) == [[4711, "passing"], [4712, "passing"]]


def test_a_request_whose_client_is_gone_ends_where_it_is(tracer: Tracer, state: ServerState) -> None:
    tracing = started(tracer, dataclasses.replace(ON, level=TENSORS))
    trace = sampled(tracing, prepared(state))
    trace.replied(reply(b"", TensorRef("far", 2, (1,), 0, 1), status=2))
    trace.end()
    (message,) = tracer.messages()
    assert [bool(stamp) for stamp in message.trace[5]] == [True] * 2 + [False] + [True] * 6 + [False] * 2
    assert message.trace[6] == []


def test_tensors_are_those_of_the_two_blocks(tracer: Tracer, state: ServerState) -> None:
    request = prepared(state, data=b"abcd")
    ref = TensorRef("OUTPUT0", 8, (1, 1), 3, 4)
    run(sampled(started(tracer, dataclasses.replace(ON, level=TENSORS)), request), request, reply(b"...wxyz", ref))
    assert tracer.messages()[0].trace[6] == [
        ["TENSOR_QUEUE_INPUT", "INPUT0", "UINT8", [1, 4], b"abcd"],
        ["TENSOR_BACKEND_OUTPUT", "OUTPUT0", "INT32", [1, 1], b"wxyz"],
    ]


def test_a_response_that_is_damaged_has_no_tensors(tracer: Tracer, state: ServerState) -> None:
    request = prepared(state)
    beyond = reply(b"", TensorRef("OUTPUT0", 8, (1, 1), 3, 4))
    run(sampled(started(tracer, dataclasses.replace(ON, level=TENSORS)), request), request, beyond)
    assert [tensor[0] for tensor in tracer.messages()[0].trace[6]] == ["TENSOR_QUEUE_INPUT"]


def test_tensors_beyond_the_bound_are_named_without_their_elements(tracer: Tracer, state: ServerState) -> None:
    request = prepared(state, data=bytes(MAX_TENSOR_BYTES - 10))
    refs = TensorRef("A", 2, (11,), 0, 11), TensorRef("B", 2, (10,), 0, 10), TensorRef("C", 2, (1,), 0, 1)
    run(sampled(started(tracer, dataclasses.replace(ON, level=TENSORS)), request), request, reply(bytes(11), *refs))
    tensors = tracer.messages()[0].trace[6]
    assert [(tensor[1], len(tensor[4])) for tensor in tensors] == [
        ("INPUT0", MAX_TENSOR_BYTES - 10), ("A", 0), ("B", 10), ("C", 0),
    ]  # fmt: skip


def test_what_does_not_fit_is_dropped_and_counted_with_the_next(tracer: Tracer, state: ServerState) -> None:
    tracing, request = started(tracer, ON), prepared(state)
    for _ in range(3000):
        run(sampled(tracing, request), request, reply(b""))
    before = tracer.messages()
    assert 100 < len(before) < 3000
    run(sampled(tracing, request), request, reply(b""))
    (after,) = tracer.messages()
    assert after.num_dropped == 3000 - len(before)
    run(sampled(tracing, request), request, reply(b""))
    assert tracer.messages()[0].num_dropped == 0


def test_of_large_ones_only_one_waits(tracer: Tracer, state: ServerState) -> None:
    tracing = started(tracer, dataclasses.replace(ON, level=TENSORS))
    large = prepared(state, data=bytes(200_000))
    for request in (large, large, prepared(state), large):
        run(sampled(tracing, request), request, reply(b""))
    first, second = tracer.messages()
    assert (len(first.trace[6][0][4]), len(second.trace[6][0][4])) == (200_000, 64)
    assert (first.num_dropped, second.num_dropped) == (0, 1)
    run(sampled(tracing, large), large, reply(b""))
    assert tracer.messages()[0].num_dropped == 1


def test_of_those_with_many_children_only_one_waits(tracer: Tracer, state: ServerState) -> None:
    tracing = started(tracer, ON)
    for num_children in (1000, 1000, 1, 1000):
        trace = sampled(tracing, prepared(state))
        trace.times.children = [child(key, 5) for key in range(num_children)]
        run(trace, prepared(state), reply(b""))
    first, second = tracer.messages()
    assert (len(first.children), len(second.children)) == (1000, 1)
    assert (first.num_dropped, second.num_dropped) == (0, 1)


# ---------------------------------------------------------------------------------------------------------------
# Which requests


def num_sampled(tracing: Tracing, requests: Sequence[PreparedRequest], headers: dict[str, str] | None = None) -> int:
    return len([request for request in requests if tracing.sample(request, headers or {}) is not None])


def test_a_model_has_its_own_setting_and_counts_by_itself(tracer: Tracer, state: ServerState) -> None:
    settings = {GLOBAL: dataclasses.replace(ON, rate=4), "simple": ON, "asleep": TraceSetting()}
    tracing = started(tracer, settings)
    simple, echo = prepared(state), prepared(state, "écho b")
    assert num_sampled(tracing, [simple] * 3 + [echo] * 7) == 3 + 1
    assert num_sampled(tracing, [echo]) == 1
    assert num_sampled(tracing, [prepared(state, "asleep")] * 9) == 0


def test_a_context_has_its_request_traced_where_traces_are_exported(tracer: Tracer, state: ServerState) -> None:
    request = prepared(state)
    exported = TraceSetting(TIMESTAMPS, rate=2, count=-1, mode="opentelemetry", revision=3)
    tracing = started(tracer, exported)
    headers = {"traceparent": CONTEXT, "tracestate": "a=b", "host": "x"}
    for expected in (False, True):
        trace = sampled(tracing, request, headers)
        trace.end()
        (message,) = tracer.messages()
        assert message.trace[1] is expected
        assert message.trace[7] == {"traceparent": CONTEXT, "tracestate": "a=b"}
    assert num_sampled(tracing, [request] * 4, {"traceparent": "00-broken"}) == 2
    assert num_sampled(started(tracer, dataclasses.replace(ON, rate=2)), [request] * 4, headers) == 2


# ---------------------------------------------------------------------------------------------------------------
# Settings that change


def test_settings_are_replaced_and_the_way_to_the_tracer_stays(tracer: Tracer, state: ServerState) -> None:
    first = started(tracer, ON)
    trace = sampled(first, prepared(state))
    second = tracer.tracing({GLOBAL: dataclasses.replace(ON, rate=2, revision=8)}, first)
    assert second is not None
    assert num_sampled(second, [prepared(state)] * 2) == 1
    trace.end()
    assert [message.trace[0] for message in tracer.messages()] == [7]


def test_after_the_end_what_is_under_way_is_dropped(
    tracer: Tracer, state: ServerState, num_descriptors: Callable[[], int]
) -> None:
    before = num_descriptors()
    first = started(tracer, ON)
    trace, long = sampled(first, prepared(state)), sampled(first, prepared(state))
    long.times.children = [child(key, 5) for key in range(1000)]
    assert tracer.tracing({GLOBAL: TraceSetting()}, first) is None
    assert num_descriptors() == before
    trace.end()
    long.end()
    assert tracer.messages() == []
    assert tracer.tracing({GLOBAL: TraceSetting()}) is None
