"""What handlers return, as bodies; what they raise, as statuses and messages."""

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from ts.context import RequestProcessor
from ts.utils.util import PredictionException

from shoal.errors import InternalError, InvalidArgumentError
from shoal.workers.backends.torchserve import results
from shoal.workers.backends.torchserve.results import Failure, WrongReturnError

BODIES = [
    (b"\x00\xff", b"\x00\xff"),
    (bytearray(b"ab"), b"ab"),
    (memoryview(b"ab"), b"ab"),
    ("grün", "grün".encode()),
    ("", b""),
    ({"a": [1, 2]}, b'{\n  "a": [\n    1,\n    2\n  ]\n}'),
    ("\ud800", b"\xed\xa0\x80"),
    ({"ü": "ü"}, b'{\n  "\\u00fc": "\\u00fc"\n}'),
    (float("nan"), b"NaN"),
    (None, b"null"),
    (42, b"42"),
    ((1, 2), b"[\n  1,\n  2\n]"),
    (True, b"true"),
]


@pytest.mark.parametrize(("element", "body"), BODIES)
def test_an_element_is_a_body(element: Any, body: bytes) -> None:
    assert results.body_of(element) == body


def test_a_tensor_is_what_torch_saves() -> None:
    tensor = torch.arange(4.0)
    assert torch.equal(torch.load(io.BytesIO(results.body_of(tensor))), tensor)


@pytest.mark.parametrize("element", [np.zeros(2), np.float32(1), object(), {1, 2}, {"a": np.zeros(1)}, [[...]]])
def test_what_json_cannot_say_is_refused(element: Any) -> None:
    with pytest.raises(WrongReturnError) as raised:
        results.body_of(element)
    assert raised.value.failure == (503, "Unsupported model output data type.")


def test_a_list_in_itself_is_refused() -> None:
    element: list[Any] = []
    element.append(element)
    with pytest.raises(WrongReturnError):
        results.body_of(element)


@pytest.mark.parametrize("returned", [None, {}, (1,), "ab", iter([1])])
def test_what_is_no_list_is_refused(returned: Any) -> None:
    with pytest.raises(WrongReturnError, match="must return a list") as raised:
        results.checked(returned, 1)
    assert raised.value.failure == (503, "Invalid model predict output")


@pytest.mark.parametrize("num_calls", [0, 1, 3])
def test_a_list_of_another_length_is_refused(num_calls: int) -> None:
    with pytest.raises(WrongReturnError, match=f"2 elements for a batch of {num_calls}") as raised:
        results.checked([1, 2], num_calls)
    assert raised.value.failure == (503, "number of batch response mismatched")
    assert results.checked([1, 2], 2) == [1, 2]


FAILURES = [
    (ValueError("boom"), (503, "Prediction failed")),
    (RuntimeError("CUDA error: whatever"), (507, "Out of resources")),
    (MemoryError(), (507, "Out of resources")),
    (PredictionException("too cold"), (500, "too cold")),
    (PredictionException("no such", 404), (404, "no such")),
    (PredictionException("too large", 413), (507, "too large")),
    (PredictionException("odd", "400"), (500, "odd")),  # type: ignore[arg-type]
    (KeyboardInterrupt(), (503, "Prediction failed")),
]


@pytest.mark.parametrize(("error", "failure"), FAILURES)
def test_an_exception_is_a_status_and_a_message(error: BaseException, failure: tuple[int, str]) -> None:
    assert results.failure_of(error) == failure


def test_a_failure_is_an_error_for_torchserves_front_end_and_a_sentence_for_others() -> None:
    theirs = Failure(503, "Prediction failed").as_error(is_torchserves=True, detail="ValueError: boom")
    assert str(theirs) == "ts:503:InternalServerException:Prediction failed"
    others = Failure(503, "Prediction failed").as_error(is_torchserves=False, detail="ValueError: boom")
    assert (type(others), str(others)) == (InternalError, "Prediction failed: ValueError: boom")
    assert type(Failure(400, "bad").as_error(is_torchserves=False)) is InvalidArgumentError


def test_a_plain_response_has_no_parameter() -> None:
    processor = RequestProcessor({})
    assert results.parameters_of(processor) is None
    processor.add_response_property("content-type", "text/plain")
    processor.report_status(404, "not here")
    parameters = results.parameters_of(processor)
    assert parameters is not None
    expected = {"status": 404, "phrase": "not here", "headers": {"content-type": "text/plain"}}
    assert json.loads(str(parameters["ts"])) == expected


@pytest.mark.parametrize("code", [200, 2**70, "none"])
def test_a_response_whose_status_or_header_cannot_be_sent_fails_alone(code: Any) -> None:
    processor = RequestProcessor({})
    processor.report_status(code, "well")
    processor.add_response_property("X-Name", "\ud800")
    with pytest.raises(InternalError, match="the handler has set a status or header that cannot be sent"):
        results.parameters_of(processor)
