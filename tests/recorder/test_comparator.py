"""recorder/comparator.py and recorder/ring_loop.py: rings of pairs of answers, read step by step."""

import socket
from typing import Any, cast

import pytest

from shoal.recorder import comparator as comparator_module
from shoal.recorder.comparator import Comparator
from shoal.recorder.ring_loop import RingLoop
from shoal.shm.byte_ring import ByteRingReader
from tests.recorder.test_tail import Ring


class Disagreements:
    """Notes each pair of answers, and what is acknowledged by then."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.taken: list[tuple[bytes, int]] = []

    def take(self, memory: memoryview) -> None:
        self.taken.append((bytes(memory), self.ring.num_acknowledged))


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


@pytest.fixture
def ring() -> Ring:
    made = Ring()
    made.entries += [b"one", b"two", b"three"]
    return made


def test_a_pair_whose_comparison_ends_the_process_is_not_read_by_its_successor(ring: Ring) -> None:
    """It would end that one, too, and so on."""
    disagreements = Disagreements(ring)
    comparator = Comparator(cast(Any, None), cast(Any, disagreements))
    assert comparator.step(cast(ByteRingReader, ring)) == 3
    assert disagreements.taken == [(b"one", 1), (b"two", 2), (b"three", 3)]


def test_the_ring_of_a_dead_batcher_is_read_to_its_end_in_several_steps(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparator_module, "STEP_S", -1.0)  # each step has the time for one pair
    supervisor, disagreements = Supervisor(), Disagreements(ring)
    comparator = Comparator(cast(Any, supervisor), cast(Any, disagreements))
    loop = RingLoop(cast(Any, supervisor), {}, comparator.step)
    loop._rings = {1: cast(ByteRingReader, ring), 2: cast(ByteRingReader, Ring())}
    while loop._look():
        assert len(loop._rings) == 1 or not supervisor.sent
    assert [pair for pair, _ in disagreements.taken] == ring.entries
    assert [message.number for message in supervisor.sent] == [1]
    supervisor.close()


def test_what_is_left_in_two_rings_is_read_when_the_supervisor_is_gone(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparator_module, "STEP_S", -1.0)
    supervisor, disagreements, other = Supervisor(is_gone=True), Disagreements(ring), Ring()
    other.entries += [b"four", b"five"]
    comparator = Comparator(cast(Any, supervisor), cast(Any, disagreements))
    loop = RingLoop(cast(Any, supervisor), {}, comparator.step)
    loop._rings = {1: cast(ByteRingReader, ring), 2: cast(ByteRingReader, other)}
    loop.run()
    supervisor.close()
    assert sorted(pair for pair, _ in disagreements.taken) == sorted([*ring.entries, *other.entries])
