"""frontend/grpc/open_streams.py: which connections make room for others."""

from types import SimpleNamespace
from typing import Any

from shoal.frontend.grpc.open_streams import LEAST_IDLE_S, longest_idle

NOW_S = 1000.0


def connection(begun_s: float, *, calls: tuple[int, ...] = (), is_ending: bool = False) -> Any:
    """One that was last heard of at `begun_s`."""
    return SimpleNamespace(begun_s=begun_s, calls=calls, is_ending=is_ending)


def test_none_ends_while_there_is_room() -> None:
    assert longest_idle([connection(0.0) for _ in range(9)], 10, NOW_S) == []


def test_the_longest_idle_end_and_enough_of_them() -> None:
    connections = [connection(float(500 - number)) for number in range(128)]
    assert longest_idle(connections, 128, NOW_S) == connections[:-3:-1]


def test_open_calls_and_clients_that_have_just_come_are_spared() -> None:
    busy = connection(0.0, calls=(1,))
    new = connection(NOW_S - LEAST_IDLE_S / 2)
    idle = connection(NOW_S - LEAST_IDLE_S)
    assert longest_idle([busy, new, idle], 3, NOW_S) == [idle]
    assert longest_idle([busy, new], 2, NOW_S) == []


def test_those_that_are_ending_already_count() -> None:
    connections = [connection(1.0), connection(2.0), connection(0.0, is_ending=True)]
    assert longest_idle(connections, 3, NOW_S) == []
