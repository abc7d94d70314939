"""Values that other servers find: what they are, and what is none."""

from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.batcher.response_cache import RequestIdentity
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.shared_answers import MAX_VALUE_BYTES, DecodedValue, SharedAnswers, pack_answer, unpack_answer
from tests.batcher.scripted_store import ScriptedStore

FP32, BYTES = 11, 13  # their wire numbers


def header(*outputs: tuple[object, ...]) -> bytes:
    return msgpack.packb((outputs, {"q": 1}))  # type: ignore[no-any-return]


#: Two tensors and what says so, as in a block.
TWO = header(("Y", FP32, (1, 2), 0, 8), ("S", BYTES, (1,), 8, 6))
CONTENTS = b"datadata" + b"\2\0\0\0ab" + TWO


def queued(key: int, deadline_ns: int = 0) -> QueuedRequest:
    return QueuedRequest(key, 1, 0, 10, deadline_ns=deadline_ns)


def value(contents: bytes = CONTENTS, start: int = 14, magic: bytes = b"SRC1", nothing: int = 0) -> bytes:
    rest = start.to_bytes(4, "little") + nothing.to_bytes(4, "little") + contents
    return magic + crc32(rest).to_bytes(4, "little") + rest


def test_a_value_byte_by_byte() -> None:
    assert pack_answer(memoryview(CONTENTS), 14) == value()
    assert unpack_answer(value()) == DecodedValue(memoryview(CONTENTS), 14)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"garbage",
        bytes(100),
        value()[:-1],
        value() + b"\0",
        value()[:20] + b"!" + value()[21:],
        value(magic=b"SRC2"),
        value(nothing=1),
        value(start=len(CONTENTS) + 1),
        value(start=len(CONTENTS)),
        value(b"datadata" + header(("Y", FP32, (1, 3), 0, 8)), 8),
        value(b"datadata" + header(("Y", FP32, (1, 4), 0, 16)), 8),
        value(b"datadata" + header(("Y", 99, (1, 2), 0, 8)), 8),
        value(b"datadata" + header(("Y", FP32, (1, -2), 0, 8)), 8),
    ],
)
def test_what_is_no_value(damaged: bytes) -> None:
    assert unpack_answer(damaged) is None


@given(st.binary(max_size=60), st.integers(0, 70))
def test_what_has_the_right_checksum_and_makes_no_sense(contents: bytes, start: int) -> None:
    assert unpack_answer(value(contents, start)) is None


def test_names_are_of_the_model_as_it_was_loaded_and_of_what_was_asked() -> None:
    store = ScriptedStore()
    shared = SharedAnswers(store)
    shared.name(5, "m:3:abc")
    assert shared.look_up(RequestIdentity(5, 0xAB, 0xCD), queued(77, 500), 20)
    name = b"shoal:1:m:3:abc:00000000000000cd00000000000000ab"
    assert store.asked == [(77, name, 500)]
    assert shared.in_use == {5}
    shared.keep(RequestIdentity(5, 0xAB, 0xCD), memoryview(CONTENTS), 14, 30)
    assert store.kept == {name: value()}
    store.found = [(77, value())]
    ((key, look_up, answer),) = shared.step(40)
    assert (key, look_up.began_ns, answer) == (77, 20, DecodedValue(memoryview(CONTENTS), 14))
    assert shared.in_use == set()


def test_what_is_large_is_not_shared() -> None:
    store = ScriptedStore()
    shared = SharedAnswers(store)
    shared.name(5, "m")
    for nbytes in (MAX_VALUE_BYTES - 16, MAX_VALUE_BYTES - 15):
        shared.keep(RequestIdentity(5, nbytes, 0), memoryview(bytes(nbytes)), 0, 0)
    assert [len(each) for each in store.kept.values()] == [MAX_VALUE_BYTES]


def test_who_waits_can_be_forgotten() -> None:
    store = ScriptedStore()
    shared = SharedAnswers(store)
    for model_id in (5, 6):
        shared.name(model_id, f"m{model_id}")
        for number in (1, 2):
            assert shared.look_up(RequestIdentity(model_id, 1, 1), queued(10 * model_id + number), 0)
    assert shared.forget(51)
    assert not shared.forget(51)
    assert shared.drop(6) == [61, 62]
    assert [key for key, *_ in store.asked] == [52]
    store.is_there = False
    assert not shared.look_up(RequestIdentity(5, 1, 1), queued(53), 0)
    assert shared.in_use == {5}
