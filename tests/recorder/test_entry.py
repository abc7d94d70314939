"""recorder/entry.py: what the batcher packs is unpacked; what is no entry raises EntryError and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.recorder.entry import EntryError, Outcome, unpack
from tests.recorder.entries import made


def test_an_entry_is_unpacked_as_it_was_packed() -> None:
    found = unpack(memoryview(made(key=7, model="digits", batch=3, num_requests=2, position=1, wall_offset_ns=-5)))
    assert (found.model, found.version, found.groups, found.wall_offset_ns) == ("digits", 1, ("m_0",), -5)
    (request,) = found.requests
    assert (request.key, request.batch, request.num_requests, request.position, request.outcome) == (
        7,
        3,
        2,
        1,
        Outcome.OK,
    )
    assert found.is_sampled
    assert bytes(found.inputs[0][:8]) == b"\x00\x00\x80\x3f\x00\x00\x00\x40"
    assert not unpack(memoryview(made(sampled=False))).is_sampled


@given(st.integers(0, 600), st.integers(0, 255), st.booleans())
def test_damage_raises_one_error(position: int, value: int, cuts: bool) -> None:
    packed = bytearray(made())
    if cuts:
        del packed[position:]
    elif position < len(packed):
        packed[position] = value
    try:
        unpack(memoryview(bytes(packed)))
    except EntryError:
        return


def test_nothing_is_no_entry() -> None:
    with pytest.raises(EntryError):
        unpack(memoryview(b""))
