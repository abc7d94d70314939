"""hangs.py: who is ended and when, by a clock that the test hands in."""

from signal import SIGABRT, SIGKILL

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.supervisor.processes.hangs import Execution, Hangs

MS = 1_000_000
START = 1_000_000 * MS


def busy(began_ms: int = 0, limit_ms: int = 1000, worker: int = 1, number: int = 1) -> Execution:
    """A batch that began so long after the start."""
    return Execution(worker, number, START + began_ms * MS, limit_ms * MS)


def look(hangs: Hangs, at_ms: int, *executions: Execution) -> list[tuple[int, int]]:
    """Who is sent what."""
    return [(ending.worker, ending.signal) for ending in hangs.look(START + at_ms * MS, executions).endings]


def test_abort_at_the_limit_and_kill_a_second_later_once_each() -> None:
    hangs = Hangs()
    seen = {at_ms: look(hangs, at_ms, busy()) for at_ms in range(0, 3001, 250)}
    assert {at_ms: found for at_ms, found in seen.items() if found} == {1250: [(1, SIGABRT)], 2250: [(1, SIGKILL)]}


def test_time_before_the_first_look_counts() -> None:
    assert look(Hangs(), 5000, busy(began_ms=0)) == [(1, SIGABRT)]


def test_a_batch_that_moves_is_not_ended_until_it_has_not_moved_for_the_limit() -> None:
    hangs = Hangs()
    for at_ms in range(0, 10_000, 250):  # a response each time, ten times as long as the limit
        assert look(hangs, at_ms, busy(began_ms=at_ms)) == []
    seen = {at_ms: look(hangs, at_ms, busy(began_ms=9750)) for at_ms in range(10_000, 13_001, 250)}
    assert {at_ms: found for at_ms, found in seen.items() if found} == {11_000: [(1, SIGABRT)], 12_000: [(1, SIGKILL)]}


def test_a_response_after_the_signal_changes_nothing() -> None:
    hangs = Hangs()
    assert look(hangs, 1250, busy()) == [(1, SIGABRT)]
    assert look(hangs, 1500, busy(began_ms=1400)) == []
    assert look(hangs, 2250, busy(began_ms=1400)) == [(1, SIGKILL)]


@pytest.mark.parametrize("began_ns", [0, START + 10**15], ids=["not taken up", "in the future"])
def test_what_has_no_believable_beginning_began_when_it_was_seen(began_ns: int) -> None:
    hangs, execution = Hangs(), Execution(1, 1, began_ns, 1000 * MS)
    assert look(hangs, 0, execution) == look(hangs, 1000, execution) == []
    assert look(hangs, 1250, execution) == [(1, SIGABRT)]


def test_next_batch_has_the_whole_limit_even_after_an_abort_that_the_worker_survived() -> None:
    hangs = Hangs()
    assert look(hangs, 1100, busy()) == [(1, SIGABRT)]
    assert look(hangs, 2200, busy(began_ms=1200, number=2)) == []
    assert look(hangs, 2300, busy(began_ms=1200, number=2)) == [(1, SIGABRT)]


def test_who_is_idle_in_between_is_forgotten() -> None:
    hangs = Hangs()
    assert look(hangs, 1100, busy()) == [(1, SIGABRT)]
    assert look(hangs, 1300) == []
    assert look(hangs, 9000, busy(began_ms=8900, number=1)) == []


def test_checks_are_frequent_only_while_a_worker_executes() -> None:
    hangs = Hangs()
    assert hangs.look(START, []).next_ns == 1000 * MS
    assert hangs.look(START + 1000 * MS, [busy(900)]).next_ns == 250 * MS


def test_a_late_check_excuses_all_workers_by_the_gap_once() -> None:
    hangs = Hangs()
    assert look(hangs, 0, busy(worker=1)) == []  # the next look is due at 250
    late = hangs.look(START + 60_250 * MS, [busy(worker=1), busy(worker=2, began_ms=30_000)])
    assert (late.endings, late.gap_ns) == ([], 60_000 * MS)
    assert look(hangs, 61_000, busy(worker=1), busy(worker=2, began_ms=30_000)) == []
    assert look(hangs, 61_001, busy(worker=1), busy(worker=2, began_ms=30_000)) == [(1, SIGABRT)]
    assert look(hangs, 61_251, busy(worker=1), busy(worker=2, began_ms=30_000)) == [(2, SIGABRT)]


def test_grace_is_extended_by_a_gap() -> None:
    hangs = Hangs()
    assert look(hangs, 1001, busy()) == [(1, SIGABRT)]
    assert look(hangs, 20_000, busy()) == []
    assert look(hangs, 20_750, busy()) == [(1, SIGKILL)]


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=60), st.integers(1, 20_000))
def test_without_gaps_no_worker_is_ended_early_or_spared(pauses_ms: list[int], limit_ms: int) -> None:
    hangs, at_ms = Hangs(), 0
    aborted_ms = killed_ms = -1
    for pause_ms in pauses_ms:
        at_ms += pause_ms
        due_abort = aborted_ms < 0 and at_ms > limit_ms
        due_kill = aborted_ms >= 0 and killed_ms < 0 and at_ms - aborted_ms >= 1000
        expected = [(1, SIGABRT)] if due_abort else [(1, SIGKILL)] if due_kill else []
        assert look(hangs, at_ms, busy(limit_ms=limit_ms)) == expected
        aborted_ms = at_ms if due_abort else aborted_ms
        killed_ms = at_ms if due_kill else killed_ms


@given(st.lists(st.integers(1, 100_000), min_size=2, max_size=40), st.integers(1, 3_000))
def test_no_worker_is_ended_for_time_without_checks(pauses_ms: list[int], limit_ms: int) -> None:
    hangs, at_ms, awake_ms, interval_ms = Hangs(), 0, 0, 0
    for pause_ms in pauses_ms:
        is_gap = interval_ms and pause_ms - interval_ms > 5000
        at_ms += pause_ms
        awake_ms += interval_ms if is_gap else pause_ms
        found = hangs.look(START + at_ms * MS, [busy(limit_ms=limit_ms)])
        interval_ms = found.next_ns // MS
        if found.endings:
            assert awake_ms > limit_ms
            return
