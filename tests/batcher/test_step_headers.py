"""Where the batcher writes headers of steps, and the answer in their place."""

import pytest

from shoal.batcher.step_headers import NoStepMemoryError, StepHeaders
from shoal.shm import layout
from shoal.shm.layout import UNIT, Geometry
from shoal.shm.slab import Slab
from tests.batcher.star import make_segment


def slab(num_units: int = 16) -> Slab:
    own, _ = make_segment(layout.BATCHER, 91, Geometry(0, num_units * UNIT))
    return Slab(own)


def read(memory: Slab, ref: int, span: int) -> bytes:
    return bytes(memory.open(ref)[span >> 32 :][: span & 0xFFFFFFFF])


def test_headers_lie_one_after_another_and_the_answer_in_their_place() -> None:
    memory = slab()
    headers = StepHeaders(memory)
    places = [headers.add(each) for each in (b"one", b"another", b"third")]
    assert [read(memory, *place) for place in places] == [b"one", b"another", b"third"]
    assert len({ref for ref, _ in places}) == memory.num_taken == 1
    ref, span = headers.end_with([258, 3], b"answer")
    assert ref == places[0][0]
    assert bytes(memory.open(ref)[:22]) == b"\2\1\0\0\0\0\0\0\3\0\0\0\0\0\0\0answer"
    assert read(memory, ref, span) == b"answer"
    headers.free()  # the answer is not its own any more
    assert memory.num_taken == 1


def test_more_than_fits_into_a_block() -> None:
    memory = slab()
    headers = StepHeaders(memory)
    said = [bytes([number]) * size for number, size in enumerate((10, UNIT, UNIT - 20, 20, 1, 2 * UNIT))]
    places = [headers.add(each) for each in said]
    assert [read(memory, *place) for place in places] == said
    assert memory.num_taken == 5
    ref, _ = headers.end_with([], bytes(3 * UNIT))
    assert memory.taken_refs == [ref]


def test_without_memory() -> None:
    memory = slab(1)
    headers = StepHeaders(memory)
    headers.add(b"one")
    for more in (headers.add, lambda header: headers.end_with([], header)):
        with pytest.raises(NoStepMemoryError):
            more(bytes(UNIT + 1))
    headers.free()
    assert memory.num_taken == 0
