"""The process that the instances of a group on one device share, where the model says so.

The first instance starts the process and has its main thread; each of the others is a thread that the process starts
once the first is up, and a worker like any other: with a connection, memory, rings and batches of its own. When the
process dies, all its instances do. The first instance then starts another process, by its own restarts, and the others
start their threads in it. The first instance ends last. Runs in the supervisor.
"""

from collections.abc import Callable
from typing import Protocol

from shoal.supervisor.event_loop import EventLoop, Future, first, resolve
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.worker import Worker
from shoal.supervisor.processes.progress import WorkerProgress


class SharingInstance(Protocol):
    """The attributes of an instance that are used for the process that it shares."""

    state: InstanceState
    worker: Worker
    is_failed: bool

    @property
    def progress(self) -> WorkerProgress | None: ...


class SharedProcess:
    """The instances that share one worker process after the other."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        # Changed by add and remove; the first element is the first instance.
        self._instances: list[SharingInstance] = []
        # Changed as the process comes up and ends, and by remove; the future is done when the first instance has come
        # up, or an instance has been removed, so that another one may be the first.
        self._changed: Future[None] = loop.future()
        self._num_completed = 0  # batches of those instances of the present process that have ended
        self._at_last: Callable[[], None] | None = None

    def add(self, instance: SharingInstance) -> None:
        """Take in an instance; the first one starts the process."""
        self._instances.append(instance)

    def remove(self, instance: SharingInstance) -> None:
        """Forget an instance that has ended for good. An instance that never was up is removed twice: the second time
        has no effect."""
        if instance in self._instances:
            self._instances.remove(instance)
            self._wake()

    def is_first(self, instance: SharingInstance) -> bool:
        """Whether this instance starts the process."""
        return bool(self._instances) and self._instances[0] is instance

    async def up(self, instance: SharingInstance, leaving: Future[None]) -> Worker | None:
        """Wait until the first instance is up, or is stopping and only waits for the others' threads; returns its
        worker. None where `instance` is or becomes the first instance, or `leaving` is done earlier."""
        while not (leaving.done() or self.is_first(instance)):
            starter = self._instances[0]
            serves = starter.state is InstanceState.UP or self._at_last is not None
            if serves and starter.worker.pid:  # without a pid the process is known to be dead
                return starter.worker
            await first(self._changed, leaving)
        return None

    def came_up(self) -> None:
        """Let the other instances start their threads: the first is up."""
        self._num_completed = 0
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, self._loop.future()
        resolve(changed, None)

    def ended(self, progress: WorkerProgress | None) -> None:
        """Note the progress of an instance whose thread has ended; the first may end once it is the last."""
        self._num_completed += 0 if progress is None else progress.num_completed
        if self._at_last is not None and not self._has_threads:
            at_last, self._at_last = self._at_last, None
            at_last()

    @property
    def num_completed(self) -> int:
        """The batches that all instances of the present process have completed, those that have ended included."""
        there = [each.progress for each in self._instances]
        return self._num_completed + sum(each.num_completed for each in there if each is not None)

    def has_others(self, worker: Worker) -> bool:
        """Whether other instances than this worker's are, or just were, in its process."""
        others = [each.worker for each in self._instances if each.worker is not worker]
        return worker.thread is not None or any(each.child is worker.child for each in others)

    def fail(self) -> None:
        """Mark the other instances, which wait for the first one, as failed."""
        for each in self._instances[1:]:
            each.is_failed = True

    def stop_last(self, stop: Callable[[], None]) -> None:
        """Call `stop`, which ends the first instance, once no other has a thread."""
        if self._has_threads:
            self._at_last = stop
        else:
            stop()

    @property
    def _has_threads(self) -> bool:
        return any(each.worker.pid for each in self._instances[1:])
