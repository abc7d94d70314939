"""Raw requests: what is deduced from a configuration and a body's size, and what cannot be."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.frontend.v2.infer import parse_raw_request
from shoal.star.models import ModelEntry
from tests.region_bytes import bytes_of

Make = Callable[..., ModelEntry]


@pytest.mark.parametrize(
    ("max_batch_size", "spec", "body", "shape"),
    [
        (0, ("IN", "TYPE_FP32", [2, 2]), b"\0" * 16, (2, 2)),
        (8, ("IN", "TYPE_FP32", [4]), b"\0" * 16, (1, 4)),
        (8, ("IN", "TYPE_FP32", [2, -1]), b"\0" * 24, (1, 2, 3)),
        (0, ("IN", "TYPE_UINT8", [-1]), b"", (0,)),
    ],
)
def test_deduces_the_shape(
    make_entry: Make, max_batch_size: int, spec: Any, body: bytes, shape: tuple[int, ...]
) -> None:
    view = memoryview(body)
    parsed = parse_raw_request(make_entry("m", max_batch_size, [spec]).signature, view, 100)
    assert (parsed.name, parsed.shape, parsed.data) == ("IN", shape, view)
    assert isinstance(parsed.data, memoryview)
    assert parsed.data.obj is body


def test_puts_the_length_before_a_string(make_entry: Make) -> None:
    parsed = parse_raw_request(make_entry("m", 8, [("IN", "TYPE_STRING", [1])]).signature, memoryview(b"abc"), 100)
    assert (parsed.shape, bytes_of(parsed.data), parsed.num_strings) == ((1, 1), b"\3\0\0\0abc", 1)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (
            [("A", "TYPE_FP32", [1]), ("B", "TYPE_FP32", [1])],
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'m' model configuration",
        ),
        (
            [("A", "TYPE_FP32", [-1, -1])],
            "[request id: <id_unknown>] The shape of the raw input 'A' can not be deduced because there are more than "
            "one variable-sized dimension",
        ),
        (
            [("A", "TYPE_STRING", [2])],
            "[request id: <id_unknown>] For BYTE datatype raw input 'A', the model must have input shape [1]",
        ),
        (
            [("A", "TYPE_STRING", [-1])],
            "[request id: <id_unknown>] For BYTE datatype raw input 'A', the model must have input shape [1]",
        ),
    ],
)
def test_refuses_what_cannot_be_deduced(make_entry: Make, inputs: list[Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_raw_request(make_entry("m", 0, inputs).signature, memoryview(b"abcd"), 100)
    assert str(caught.value) == sentence


def test_limits_the_size(make_entry: Make) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_raw_request(make_entry("m", 0, [("A", "TYPE_INT8", [-1])]).signature, memoryview(b"abcd"), 3)
    assert str(caught.value) == (
        "Raw input has a byte_size (4 bytes) that exceeds the maximum allowed value of 3 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
