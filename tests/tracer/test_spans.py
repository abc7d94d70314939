"""A trace's spans as a receiver gets them over OTLP/HTTP."""

from collections.abc import Iterator

import pytest

from shoal.tracer.spans import SpanExport
from shoal.tracer.trace import STAMPS, Trace
from tests.tracer.receiver import Receiver, Span, receiving

OFFSET = 1_700_000_000_000_000_000
WHOLE = Trace(1, True, "simple", 3, "r-1", range(101, 112), [], {})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def exported(receiver: Receiver, *traces: Trace) -> list[Span]:
    """The spans of traces, those of each in the order root, model, compute."""
    options = {
        "url": receiver.url, "bsp_max_queue_size": "2048", "bsp_schedule_delay": "60000",
        "bsp_max_export_batch_size": "512",
    }  # fmt: skip
    export = SpanExport(options, {"service.name": "triton-inference-server", "team": "b"})
    for number, trace in enumerate(traces, 1):
        export.add([(number, 0, trace)], OFFSET)
    export.close()
    return receiver.spans(1)


def test_root_model_and_compute(receiver: Receiver) -> None:
    root, model, compute = exported(receiver, WHOLE)
    assert (root.name, model.name, compute.name) == ("InferRequest", "simple", "compute")
    assert (root.parent_id, model.parent_id, compute.parent_id) == ("", root.span_id, model.span_id)
    assert len({span.trace_id for span in (root, model, compute)}) == 1
    at = {name: 101 + index + OFFSET for index, name in enumerate(STAMPS)}
    for span, names in (
        (root, ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]),
        (model, ["REQUEST_START", "QUEUE_START", "REQUEST_END"]),
        (compute, ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]),
    ):
        assert span.events == [(name, at[name]) for name in names]
        assert (span.start_ns, span.end_ns) == (at[names[0]], at[names[-1]])
    assert model.attributes == {
        "triton.model_name": "simple", "triton.model_version": 3, "triton.trace_id": 1, "triton.trace_parent_id": 0,
        "triton.request_id": "r-1",
    }  # fmt: skip
    for span in (root, model, compute):
        assert (span.resource["service.name"], span.resource["team"]) == ("triton-inference-server", "b")


def test_the_clients_span_is_the_parent_even_where_it_was_not_sampled(receiver: Receiver) -> None:
    context = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "tracestate": "a=b"}
    root, *others = exported(receiver, WHOLE._replace(context=context))
    assert root.parent_id == "00f067aa0ba902b7"
    assert {span.trace_id for span in (root, *others)} == {"4bf92f3577b34da6a3ce929d0e0e4736"}


def test_a_request_that_no_worker_answered_has_no_compute(receiver: Receiver) -> None:
    stamps = [1, 2, 3, 0, 0, 0, 0, 0, 9, 10, 11]
    spans = exported(receiver, WHOLE._replace(stamps=stamps, request_id=""))
    assert [span.name for span in spans] == ["InferRequest", "simple"]
    assert [name for name, _ in spans[1].events] == ["REQUEST_START", "REQUEST_END"]
    assert "triton.request_id" not in spans[1].attributes


def test_each_trace_is_one_of_its_own(receiver: Receiver) -> None:
    spans = exported(receiver, WHOLE, WHOLE)
    assert len(spans) == 6
    assert len({span.trace_id for span in spans}) == 2
    assert len({span.span_id for span in spans}) == 6
