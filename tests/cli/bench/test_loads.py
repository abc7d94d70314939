"""When requests are sent, on a clock that is handed in: what a closed loop waits for, and what an open one does not."""

from collections.abc import Iterator
from itertools import islice

import pytest

from shoal.cli.bench.loads import Load, constant_gaps, poisson_gaps

MS = 1_000_000


class ScriptedServer:
    """Answers a request after `answer_ns`, one after the other; stands still from `stall_ns[0]` to `stall_ns[1]`."""

    def __init__(self, answer_ns: int, stall_ns: tuple[int, int] = (0, 0), error: str | None = None) -> None:
        self.now_ns = 0
        self.idle_ns = 0
        self.arrived_ns = 0
        self.sent: list[tuple[int, int]] = []  # time and slot
        self.abandoned: list[int] = []
        self.exact: set[bool] = set()  # of all waits
        self._answer_ns = answer_ns
        self._stall_ns = stall_ns
        self._error = error
        self._free_ns = 0
        self._due: list[tuple[int, int]] = []  # time of the answer, and slot

    def clock(self) -> int:
        return self.now_ns

    def send(self, slot: int) -> None:
        assert slot not in {open_slot for _, open_slot in self._due}
        self.sent.append((self.now_ns, slot))
        end_ns = max(self.now_ns, self._free_ns) + self._answer_ns
        if self._stall_ns[0] <= end_ns < self._stall_ns[1]:
            end_ns = self._stall_ns[1]
        self._free_ns = end_ns
        self._due.append((end_ns, slot))

    def wait(self, timeout_s: float, *, is_exact: bool = False) -> Iterator[tuple[int, str | None]]:
        self.exact.add(is_exact)
        until_ns = self.now_ns + round(timeout_s * 1e9)
        end_ns = min([until_ns, *(due_ns for due_ns, _ in self._due)])
        self.idle_ns += max(0, end_ns - self.now_ns)
        self.now_ns = max(self.now_ns, end_ns)
        for each in [each for each in self._due if each[0] <= self.now_ns]:
            self._due.remove(each)
            self.arrived_ns = self.now_ns
            yield each[1], self._error

    def abandon(self, slot: int) -> None:
        self.abandoned.append(slot)
        self._due = [each for each in self._due if each[1] != slot]

    def close(self) -> None:
        """Nothing is open."""


def load(server: ScriptedServer, num_slots: int, gaps: Iterator[int] | None = None, timeout_s: float = 60) -> Load:
    return Load(server, num_slots, gaps, timeout_s=timeout_s, clock=server.clock)


def test_a_closed_loop_keeps_its_requests_under_way() -> None:
    server = ScriptedServer(answer_ns=10 * MS)
    window = load(server, 2).run(1.0)
    assert len(window.latencies_ns) == 100
    assert window.latencies_ns[0] == 10 * MS
    assert set(window.latencies_ns[1:]) == {20 * MS}  # each waits for the one before
    assert window.duration_ns == 1000 * MS
    assert (window.requests_per_s, window.busy_share) == (100, 0)
    assert window.percentile_ms(50) == 20


def test_answers_that_have_come_at_once_are_all_read_before_the_next_requests_are_sent() -> None:
    server = ScriptedServer(answer_ns=10 * MS)
    both = load(server, 2)
    both.run(0.001)
    server.now_ns += 100 * MS  # both are answered
    server.sent.clear()
    read: list[int] = []
    answers = server.wait

    def wait(timeout_s: float, *, is_exact: bool = False) -> Iterator[tuple[int, str | None]]:
        for answer in answers(timeout_s, is_exact=is_exact):
            assert not server.sent
            read.append(answer[0])
            server.now_ns += MS  # what it takes to read one, and no part of its latency
            yield answer

    server.wait = wait  # type: ignore[method-assign]  # looks at the order
    window = both.run(0.001)
    assert (sorted(read), [slot for _, slot in server.sent]) == ([0, 1], read)
    assert list(window.latencies_ns) == [101 * MS, 102 * MS]


def test_only_an_open_loop_waits_exactly() -> None:
    closed, opened = ScriptedServer(answer_ns=10 * MS), ScriptedServer(answer_ns=10 * MS)
    load(closed, 2).run(0.1)
    load(opened, 2, constant_gaps(100)).run(0.1)
    assert (closed.exact, opened.exact) == ({False}, {True})


def test_an_open_loop_sends_at_its_times_however_slow_the_answers_are() -> None:
    server = ScriptedServer(answer_ns=0, stall_ns=(100 * MS, 600 * MS))
    window = load(server, 1000, constant_gaps(100)).run(1.0)
    assert [sent_ns for sent_ns, _ in server.sent] == [number * 10 * MS for number in range(1, len(server.sent) + 1)]
    # 50 requests were due while the server stood still: the first waits for 500 ms, the last for 10.
    stalled = sorted(latency for latency in window.latencies_ns if latency)
    assert stalled == [10 * MS * number for number in range(1, 51)]


def test_latency_counts_from_the_time_at_which_a_request_was_due_though_no_connection_was_free() -> None:
    server = ScriptedServer(answer_ns=0, stall_ns=(100 * MS, 600 * MS))
    few = load(server, 1, constant_gaps(100))
    window = few.run(1.0)
    assert sorted(latency for latency in window.latencies_ns if latency) == [10 * MS * each for each in range(1, 51)]
    assert few.num_waiting == 0
    # A closed loop on one connection would have been charged with a single slow answer.
    closed = load(ScriptedServer(answer_ns=MS, stall_ns=(100 * MS, 600 * MS)), 1).run(1.0)
    assert sum(latency > 10 * MS for latency in closed.latencies_ns) == 1


def test_what_is_due_beyond_the_connections_waits() -> None:
    server = ScriptedServer(answer_ns=20 * MS)
    slow = load(server, 4, constant_gaps(100))
    slow.run(1.0)
    assert slow.num_waiting > 40  # half of the requests, but for those that are under way


def test_a_run_goes_on_where_the_last_one_stopped_and_a_drain_ends_it() -> None:
    server = ScriptedServer(answer_ns=30 * MS)
    one = load(server, 1)
    assert [len(one.run(0.1).latencies_ns) for _ in range(3)] == [3, 3, 4]
    one.drain()
    server.now_ns += 500 * MS  # another server's turn
    window = one.run(0.1)
    assert list(window.latencies_ns) == [30 * MS] * 3


def test_a_window_lasts_until_enough_requests_have_ended() -> None:
    window = load(ScriptedServer(answer_ns=200 * MS), 1).run(0.1, 3)
    assert (len(window.latencies_ns), window.duration_ns) == (3, 600 * MS)
    # … but not for ever: here none ends.
    window = load(ScriptedServer(answer_ns=10**15), 1, timeout_s=5).run(0.1, 1)
    assert window.duration_ns == pytest.approx(5100 * MS, abs=300 * MS)


def test_errors_are_counted_by_sentence_and_have_no_latency() -> None:
    window = load(ScriptedServer(answer_ns=100 * MS, error="Exceeds maximum queue size"), 1).run(1.0)
    assert dict(window.errors) == {"Exceeds maximum queue size": 10}
    assert (len(window.latencies_ns), window.num_errors, window.requests_per_s) == (0, 10, 0)


def test_a_request_that_is_not_answered_in_time_is_abandoned_and_counted() -> None:
    server = ScriptedServer(answer_ns=10_000 * MS)
    window = load(server, 1, timeout_s=0.9).run(2.5)
    assert dict(window.errors) == {"no answer within 0.9 s": 2}
    assert server.abandoned == [0, 0]


def test_a_drain_has_an_end() -> None:
    server = ScriptedServer(answer_ns=10_000 * MS)
    one = load(server, 2, timeout_s=1)
    one.run(0.1)
    one.drain()
    assert sorted(server.abandoned) == [0, 1]
    assert server.now_ns == 1100 * MS


def test_poisson_arrivals_have_the_rate_and_its_variance_and_are_the_same_in_every_run() -> None:
    gaps = list(islice(poisson_gaps(1000), 20_000))
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(MS, rel=0.03)
    assert variance == pytest.approx(MS**2, rel=0.05)
    assert gaps == list(islice(poisson_gaps(1000), 20_000))
