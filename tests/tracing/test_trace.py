"""What a trace is in Triton's file; the expected JSON is written by hand."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tracing.settings import TIMESTAMPS
from shoal.tracing.trace import STAMPS, Tensor, Trace, in_order, steps, to_json

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
    tensor = Tensor("TENSOR_QUEUE_INPUT", "A", datatype, (1, 2), data)
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


def test_steps_are_traces_of_their_own() -> None:
    inner = ["inner", 2, 30, 31, 0, 0, 0, 0, 39, []]
    said = [["outer", 1, 20, 21, 22, 23, 24, 25, 40, [inner]], ["other", 1, 41, 0, 0, 0, 0, 0, 42, []]]
    outer, other = steps(WHOLE._replace(stamps=[0, 0, 10], context={"traceparent": "x"}), said)
    assert (outer.model, outer.version, outer.request_id, outer.context) == ("outer", 1, "r-1", {})
    assert list(outer.stamps) == [0, 0, 20, 21, 0, 0, 0, 0, 40, 0, 0]  # what is in it has computed
    assert list(other.stamps) == [0, 0, 41, 0, 0, 0, 0, 0, 42, 0, 0]
    ((found,), nothing) = outer.steps, other.steps
    assert (found.model, list(found.stamps), nothing) == ("inner", [0, 0, 30, 31, 0, 0, 0, 0, 39, 0, 0], ())
    assert json.loads(b"[" + to_json(7, found, TIMESTAMPS, 6) + b"]")[0] == {
        "id": 7, "model_name": "inner", "model_version": 2, "request_id": "r-1", "parent_id": 6,
    }  # fmt: skip


def test_a_step_lies_within_what_it_is_a_step_of() -> None:
    """The batcher's look at the clock may be older than the request that it finds, and than a step's computation."""
    inner = ["inner", 1, 90, 91, 92, 93, 94, 120, 110, []]
    (outer,) = steps(WHOLE._replace(stamps=[0, 0, 100]), [["outer", 1, 90, 90, 0, 0, 0, 0, 110, [inner]]])
    (found,) = outer.steps
    assert list(outer.stamps) == [0, 0, 100, 100, 0, 0, 0, 0, 120, 0, 0]
    assert list(found.stamps) == [0, 0, 100, 100, 100, 100, 100, 120, 120, 0, 0]
