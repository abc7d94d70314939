"""A request on its way into a block: what is copied, what is lent, what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.datatypes import FP32, INT32
from shoal.errors import InvalidArgumentError
from shoal.frontend.prepared import block_nbytes
from shoal.frontend.v2.infer import prepare
from shoal.star.models import ModelEntry
from shoal.star.outgoing import Input, RawRequest, check
from tests.request_headers import read_header

Make = Callable[..., ModelEntry]
BOTH = [("A", "TYPE_FP32", [-1]), ("B", "TYPE_INT32", [2])]


def copied(name: str, array: Any) -> Input:
    return Input(name, FP32 if array.dtype == np.float32 else INT32, array.shape, array.data.cast("B"))


def written(entry: ModelEntry, ask: RawRequest) -> tuple[bytes, Any]:
    """The block and its header."""
    outgoing = check(entry, ask)
    memory = bytearray(outgoing.nbytes)
    span = outgoing.write(memoryview(memory))
    return bytes(memory), read_header(bytes(memory[span >> 32 :][: span & 0xFFFFFFFF]))


def test_tensors_are_copied_to_cache_lines(make_entry: Make) -> None:
    ask = RawRequest(
        "r", [copied("A", np.ones(3, np.float32)), copied("B", np.array([4, 5], np.int32))], ("OUTA",), {"k": 1}
    )
    block, header = written(make_entry("m", 0, BOTH), ask)
    assert header == ("r", (("A", 11, (3,), 0, 12), ("B", 8, (2,), 64, 8)), ("OUTA",), {"k": 1})
    assert np.frombuffer(block, np.float32, 3).tolist() == [1, 1, 1]
    assert np.frombuffer(block, np.int32, 2, 64).tolist() == [4, 5]


def test_a_lent_tensor_is_named_and_takes_no_room(make_entry: Make) -> None:
    lent = copied("A", np.ones(3000, np.float32))._replace(ref=77, offset=128)
    ask = RawRequest("", [lent, copied("B", np.array([4, 5], np.int32))], (), {})
    block, header = written(make_entry("m", 0, BOTH), ask)
    assert header[1] == (("A", 11, (3000,), 128, 12000, 77), ("B", 8, (2,), 0, 8))
    assert len(block) < 1000
    assert check(make_entry("m", 0, BOTH), ask).refs == {77}


def test_a_sequence_is_said(make_entry: Make) -> None:
    ask = RawRequest("", [copied("A", np.ones(1, np.float32))], (), {}, correlation_id="s", flags=3)
    _, header = written(make_entry("m", 0, BOTH[:1]), ask)
    assert header[4] == ("s", 3)


def test_the_longest_header_fits(make_entry: Make) -> None:
    text = "\N{GRINNING FACE}" * 500
    ask = RawRequest(
        text, [copied("A", np.ones(1, np.float32))], ("OUTA",), {text: text, "b": True}, correlation_id=text
    )
    _, header = written(make_entry("m", 0, BOTH[:1]), ask)
    assert header[0] == text
    assert header[3] == {text: text, "b": True}


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (
            [copied("A", np.ones(1, np.float32))] * 2,
            "[request id: r] input 'A' already exists in request",
        ),
        (
            [copied("A", np.ones(1, np.float32)), copied("B", np.ones(2, np.float32))],
            "[request id: r] inference input 'B' data-type is 'FP32', but model 'm' expects 'INT32'",
        ),
    ],
)
def test_what_the_model_does_not_take_is_refused(make_entry: Make, inputs: list[Input], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check(make_entry("m", 0, BOTH), RawRequest("r", inputs, (), {}))
    assert str(refused.value) == sentence


def test_a_request_takes_the_same_room_whichever_way_it_came(make_entry: Make) -> None:
    entry = make_entry("m", 0, [("A", "TYPE_FP32", [-1])])
    body = (
        b'{"id":"r","inputs":[{"name":"A","datatype":"FP32","shape":[3],"data":[1,1,1]}],"outputs":[{"name":"OUTA"}]}'
    )
    prepared = prepare(entry, {}, memoryview(body), 1 << 20)
    ask = RawRequest("r", [copied("A", np.ones(3, np.float32))], ("OUTA",), {})
    assert check(entry, ask).nbytes == block_nbytes(prepared)
