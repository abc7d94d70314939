"""frontend/grpc/idle_connections.py: which connections make room for others."""

from dataclasses import dataclass, field

from shoal.frontend.grpc.idle_connections import LEAST_IDLE_S, longest_idle


@dataclass(eq=False)
class Connection:
    """A connection that was last heard of at `begun_s`."""

    begun_s: float
    calls: dict[int, object] = field(default_factory=dict)
    is_ending: bool = False


NOW_S = 1000.0


def test_none_ends_while_there_is_room() -> None:
    assert longest_idle([Connection(0.0) for _ in range(9)], 10, NOW_S) == []


def test_the_longest_idle_end_and_enough_of_them() -> None:
    connections = [Connection(float(500 - number)) for number in range(128)]
    assert longest_idle(connections, 128, NOW_S) == connections[:-3:-1]


def test_open_calls_and_clients_that_have_just_come_are_spared() -> None:
    busy = Connection(0.0, {1: object()})
    new = Connection(NOW_S - LEAST_IDLE_S / 2)
    idle = Connection(NOW_S - LEAST_IDLE_S)
    assert longest_idle([busy, new, idle], 3, NOW_S) == [idle]
    assert longest_idle([busy, new], 2, NOW_S) == []


def test_those_that_are_ending_already_count() -> None:
    connections = [Connection(1.0), Connection(2.0), Connection(0.0, is_ending=True)]
    assert longest_idle(connections, 3, NOW_S) == []
