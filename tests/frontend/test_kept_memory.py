"""kept_memory.py: shares that shrink as others keep more, and the pace of a stream without room."""

from shoal.frontend.kept_memory import KeptMemory, ReadRate

MIB = 1 << 20


def test_each_connection_may_keep_an_eighth_of_what_is_free() -> None:
    kept = KeptMemory(64 * MIB)
    assert kept.share_bytes == 8 * MIB
    assert kept.has_room(0, 8 * MIB)
    assert not kept.has_room(1, 8 * MIB)
    kept.nbytes = 56 * MIB
    assert kept.share_bytes == 1 * MIB
    assert not kept.has_room(2 * MIB, 0)


def test_however_many_shares_are_taken_some_memory_is_left() -> None:
    kept = KeptMemory()
    for number in range(1, 1001):
        share = kept.share_bytes
        assert share > 0, number
        kept.nbytes += share // 2
    assert kept.nbytes < 64 * MIB


def test_a_connection_with_one_answer_may_keep_all_that_is_free() -> None:
    kept = KeptMemory(10 * MIB)
    kept.nbytes = 3 * MIB
    assert kept.fits(7 * MIB)
    assert not kept.fits(7 * MIB + 1)


def test_a_pace_is_slow_that_sends_less_than_two_mebibytes_in_two_seconds() -> None:
    pace = ReadRate()
    seen = [(at_s, pace.is_slow(at_s, sent)) for at_s, sent in ((5.0, 9), (6.9, 9), (7.0, 9 + 2 * MIB), (8.9, 0))]
    assert not any(is_slow for _, is_slow in seen)
    assert pace.is_slow(9.0, 9 + 4 * MIB - 1)
