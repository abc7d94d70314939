"""snapshots.py: an error of ours in one snapshot keeps no later one from being written. The test plays the poller."""

from typing import cast

import pytest

from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.models.snapshots import ModelsSnapshot, Snapshots
from shoal.supervisor.processes.repository import RepositoryPoller
from tests.supervisor.clock import ClockLoop


class Poller:
    """Writes each snapshot at once."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.written: list[str] = []

    def save_snapshot(self, name: str, models: str) -> Future[None]:
        self.written.append(f"{name.partition('-')[2]}: {models}")
        return self._loop.done_future()


def test_an_error_of_ours_in_one_snapshot_keeps_no_later_one_from_being_written(clock: ClockLoop) -> None:
    loop = EventLoop(clock)
    poller, errors = Poller(loop), [KeyError("m")]

    def describe() -> ModelsSnapshot:
        if errors:
            raise errors.pop()
        return {}

    snapshots = Snapshots(loop, cast(RepositoryPoller, poller), describe, are_written=True)
    snapshots.save("startup")
    with pytest.raises(KeyError):
        clock.settle()
    snapshots.save("snapshot")
    clock.settle()
    assert poller.written == ["snapshot.cfg: {}"]
