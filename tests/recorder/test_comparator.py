"""recorder/comparator.py and recorder/ring_loop.py: rings of pairs of answers, read step by step."""

import socket
from contextlib import suppress
from typing import Any, cast

import pytest

from shoal.messages.to_recorder import RingDrained
from shoal.recorder import comparator as comparator_module
from shoal.recorder.comparator import Comparator
from shoal.recorder.ring_loop import RingLoop
from tests.shm.test_byte_ring import Pair


class Disagreements:
    """Notes each pair of answers. One whose comparison is `fatal` ends the process, and with it what is not reported;
    `reports` sends the names of the others."""

    def __init__(self, fatal: bytes = b"") -> None:
        self._fatal = fatal
        self.taken: list[bytes] = []
        self.dropped: list[bytes] = []
        self._found: list[Any] = []

    def take(self, memory: memoryview) -> None:
        if bytes(memory) == self._fatal:
            raise SystemExit
        self.taken.append(bytes(memory))
        self._found.append(bytes(memory))

    def drop(self, memory: memoryview) -> None:
        if bytes(memory) == self._fatal:
            raise SystemExit
        self.dropped.append(bytes(memory))

    def reports(self) -> list[Any]:
        found, self._found = self._found, []
        return found


class Supervisor:
    """Notes what it is sent; `is_gone`: its end of the connection is closed."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self._is_gone = is_gone
        self._channel, self._theirs = socket.socketpair()
        self._theirs.close()
        self.sent: list[Any] = []

    def fileno(self) -> int:
        return self._channel.fileno()

    def receive(self, _kinds: object) -> Any:
        raise EOFError

    def send(self, message: Any) -> None:
        if self._is_gone:
            raise BrokenPipeError
        self.sent.append(message)

    def close(self) -> None:
        self._channel.close()


ONE, TWO, THREE, FOUR, FIVE = b"one.....", b"two.....", b"three...", b"four....", b"five...."


def ring(*entries: bytes) -> Pair:
    made = Pair()
    writer = made.writer()
    for each in entries:
        assert writer.push([each], len(each))
    return made


def compare(made: Pair, fatal: bytes = b"") -> tuple[list[bytes], list[bytes]]:
    """Let a fresh process read a ring; returns the pairs that it has reported, and those that it has dropped."""
    supervisor, disagreements = Supervisor(), Disagreements(fatal)
    with suppress(SystemExit):
        Comparator(cast(Any, supervisor), cast(Any, disagreements)).step(made.reader())
    supervisor.close()
    return supervisor.sent, disagreements.dropped


def test_pairs_that_an_ended_process_has_not_reported_are_compared_again_or_dropped() -> None:
    """A pair whose comparison ends the process would end the next one, too, and so on."""
    made = ring(ONE, TWO, THREE)
    assert compare(made, fatal=TWO) == ([], [])
    assert compare(made, fatal=TWO) == ([ONE], [])
    made.writer().push([FOUR], len(FOUR))
    assert compare(made, fatal=FOUR) == ([], [])
    assert compare(made) == ([THREE], [FOUR])
    assert compare(made) == ([], [])


def test_two_pairs_that_end_the_process_end_two() -> None:
    made = ring(ONE, TWO, THREE)
    assert compare(made, fatal=ONE) == ([], [])
    assert compare(made, fatal=THREE) == ([], [ONE])
    assert compare(made) == ([TWO], [THREE])


def test_findings_are_reported_before_the_ring_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparator_module, "SETTLE_S", -1.0)
    assert compare(ring(ONE, TWO, THREE), fatal=THREE) == ([ONE, TWO], [])


def test_the_ring_of_a_dead_batcher_is_read_to_its_end_in_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparator_module, "STEP_S", -1.0)  # each step has the time for one pair
    supervisor, disagreements = Supervisor(), Disagreements()
    comparator = Comparator(cast(Any, supervisor), cast(Any, disagreements))
    loop = RingLoop(cast(Any, supervisor), {}, comparator.step)
    dead = ring(ONE, TWO, THREE)
    loop._rings = {1: dead.reader(), 2: ring().reader()}
    while loop._look():
        assert (1 in loop._rings) is (THREE not in disagreements.taken)
    assert supervisor.sent == [ONE, TWO, THREE, RingDrained(1)]
    supervisor.close()


def test_what_is_left_in_two_rings_is_read_when_the_supervisor_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparator_module, "STEP_S", -1.0)
    supervisor, disagreements = Supervisor(is_gone=True), Disagreements()
    first, second = ring(ONE, TWO, THREE), ring(FOUR, FIVE)
    comparator = Comparator(cast(Any, supervisor), cast(Any, disagreements))
    loop = RingLoop(cast(Any, supervisor), {}, comparator.step)
    loop._rings = {1: first.reader(), 2: second.reader()}
    loop.run()
    supervisor.close()
    assert sorted(disagreements.taken) == sorted([ONE, TWO, THREE, FOUR, FIVE])
