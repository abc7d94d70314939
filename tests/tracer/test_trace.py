"""What a trace is in Triton's file; the expected JSON is written by hand."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tracer.settings import TIMESTAMPS
from shoal.tracer.trace import MAX_DEPTH, STAMPS, Trace, TracedTensor, children, in_order, to_json

WHOLE = Trace(1, True, "simple", 3, "r-1", range(101, 112), [], {})


def objects(number: int, trace: Trace, level: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(b"[" + to_json(number, trace, level) + b"]")
    return found


def test_a_whole_trace() -> None:
    names = [
        "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END",
    ]  # fmt: skip
    assert objects(7, WHOLE) == [
        {"id": 7, "model_name": "simple", "model_version": 3, "request_id": "r-1"},
        *[{"id": 7, "timestamps": [{"name": name, "ns": 101 + index}]} for index, name in enumerate(names)],
    ]


def test_points_that_were_not_reached_and_an_id_that_was_not_given_are_left_out() -> None:
    trace = WHOLE._replace(request_id="", stamps=[5, 6, 7, 0, 0, 0, 0, 0, 8, 9, 0])
    head, *stamps = objects(1, trace)
    assert head == {"id": 1, "model_name": "simple", "model_version": 3}
    assert [(each["timestamps"][0]["name"], each["timestamps"][0]["ns"]) for each in stamps] == [
        ("HTTP_RECV_START", 5), ("HTTP_RECV_END", 6), ("REQUEST_START", 7), ("REQUEST_END", 8), ("HTTP_SEND_START", 9),
    ]  # fmt: skip


BYTES = b'\1\0\0\0a\3\0\0\0"\xff\\'


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("BOOL", b"\1\0", "1,0"),
        ("UINT8", b"\1\xff", "1,255"),
        ("INT8", b"\1\xff", "1,-1"),
        ("INT32", np.array([-1, 2**31 - 1], "<i4").tobytes(), "-1,2147483647"),
        ("UINT64", np.array([2**64 - 1], "<u8").tobytes(), "18446744073709551615"),
        ("FP32", np.array([0.1, 1, -1e30, np.nan, np.inf], "<f4").tobytes(), "0.1,1,-1e+30,nan,inf"),
        ("FP64", np.array([1 / 3, 1234567], "<f8").tobytes(), "0.333333,1.23457e+06"),
        ("FP16", b"\0\0", ""),
        ("BF16", b"\0\0", ""),
        ("BYTES", BYTES, '"a",""\\xff\\"'),
        ("BYTES", BYTES[:-1], ""),
        ("INT32", b"\0\0\0", ""),
        ("FP32", b"", ""),
    ],
)
def test_tensors_as_triton_prints_them(datatype: str, data: bytes, text: str) -> None:
    tensor = TracedTensor("TENSOR_QUEUE_INPUT", "A", datatype, (1, 2), data)
    described = {
        "id": 2,
        "activity": "TENSOR_QUEUE_INPUT",
        "tensor": {"name": "A", "data": text, "shape": "1,2", "dtype": datatype},
    }
    trace = WHOLE._replace(tensors=[tensor])
    assert objects(2, trace, level=3)[-1] == described
    # TENSORS alone has no times.
    assert objects(2, trace, level=2) == [objects(2, trace)[0], described]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=len(STAMPS), max_size=len(STAMPS)))
def test_no_point_is_earlier_than_the_one_before(stamps: list[int]) -> None:
    ordered = in_order(stamps)
    reached = [stamp for stamp in ordered if stamp]
    assert reached == sorted(reached)
    assert [bool(stamp) for stamp in ordered] == [bool(stamp) for stamp in stamps]
    assert in_order(ordered) == ordered


NAMES = {5: "outer", 6: "inner", 7: "other"}


def step(key: int, parent: int, model: int, *times: int) -> tuple[int, ...]:
    """What the batcher says of a step that has ended; the tracer has it without the first two words."""
    return (key, parent, model, 2, *times, 0)


def call(key: int, parent: int, model: int, *times: int) -> tuple[int, ...]:
    """The same of a model's call."""
    return (key, parent, model, 2, *times, 1)


def found(start_ns: int, *said: tuple[int, ...]) -> list[Trace]:
    root = WHOLE._replace(
        stamps=[0, 0, start_ns],
        context={"traceparent": "x"},
        tensors=[TracedTensor("TENSOR_QUEUE_INPUT", "A", "INT8", [1], b"1")],
    )
    return list(children(root, said, NAMES))


def test_children_have_traces_of_their_own() -> None:
    outer, other = found(
        10,
        step(9, 0, 7, 41, 0, 0, 0, 0, 0, 42),
        step(8, 4, 6, 30, 31, 0, 0, 0, 0, 39),
        step(4, 0, 5, 20, 21, 22, 23, 24, 25, 40),
    )
    assert (outer.model, outer.version, outer.context, outer.tensors) == ("outer", 2, {}, ())
    assert (outer.revision, outer.is_counted) == (WHOLE.revision, WHOLE.is_counted)
    assert list(outer.stamps) == [0, 0, 20, 21, 22, 23, 24, 25, 40, 0, 0]
    assert list(other.stamps) == [0, 0, 41, 0, 0, 0, 0, 0, 42, 0, 0]
    ((inner,), nothing) = outer.children, other.children
    assert (inner.model, list(inner.stamps), nothing) == ("inner", [0, 0, 30, 31, 0, 0, 0, 0, 39, 0, 0], [])
    assert json.loads(b"[" + to_json(7, inner, TIMESTAMPS, 6) + b"]")[0] == {
        "id": 7, "model_name": "inner", "model_version": 2, "request_id": "r-1", "parent_id": 6,
    }  # fmt: skip


def test_a_step_has_its_request_s_id_and_a_call_none() -> None:
    times = 20, 0, 0, 0, 0, 0, 40
    outer, other = found(10, step(9, 0, 7, *times), call(4, 0, 5, *times), step(8, 4, 6, *times))
    assert (outer.request_id, other.request_id, other.children[0].request_id) == ("r-1", "", "")


def test_a_step_lies_within_what_it_is_a_step_of() -> None:
    """The batcher's look at the clock may be older than the request that it finds, and than a step's computation."""
    (outer,) = found(100, step(4, 0, 5, 90, 90, 0, 0, 0, 0, 110), step(8, 4, 6, 90, 91, 92, 93, 94, 120, 110))
    (inner,) = outer.children
    assert list(outer.stamps) == [0, 0, 100, 100, 0, 0, 0, 0, 120, 0, 0]
    assert list(inner.stamps) == [0, 0, 100, 100, 100, 100, 100, 120, 120, 0, 0]


def test_what_outlives_the_call_that_made_it_does_not_make_that_longer() -> None:
    (outer,) = found(10, call(4, 0, 5, 11, 12, 13, 14, 15, 16, 17), call(8, 4, 6, 14, 14, 15, 15, 30, 30, 31))
    assert (outer.stamps[8], outer.children[0].stamps[8]) == (17, 31)


def test_a_child_whose_parent_is_missing_is_one_of_the_request() -> None:
    (outer,) = found(10, step(8, 4, 6, 30, 31, 32, 33, 34, 35, 36), step(3, 8, 5, 31, 0, 0, 0, 0, 0, 35))
    assert (outer.model, [inner.model for inner in outer.children]) == ("inner", ["outer"])


def test_children_without_end_are_cut_off() -> None:
    said = [call(key, key - 1, 6, key, 0, 0, 0, 0, 0, 999) for key in range(1, 500)]
    depth, level = 0, found(0, *said)
    while level:
        depth, level = depth + 1, list(level[0].children)
    assert depth == MAX_DEPTH


def test_children_of_each_other_are_in_no_trace() -> None:
    times = 20, 0, 0, 0, 0, 0, 40
    (only,) = found(10, call(1, 2, 5, *times), call(2, 1, 6, *times), call(3, 3, 6, *times), call(4, 0, 7, *times))
    assert (only.model, only.children) == ("other", [])
