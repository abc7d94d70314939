"""The common base of a test's star: the clock, the segments, and the causes of errors.

The clock stands still until a thread waits for an answer: the test, or a model in the middle of its `execute` that has
called another one. That thread then runs due work; when none is due, the clock jumps to the next time at which work is
due. No code of a model is called with the lock held, so threads of a model may submit, answer and wait, too.
"""

import heapq
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from shoal.errors import ShoalError
from shoal.shm.doorbell import Doorbell
from shoal.testing.future import Batch
from shoal.workers.segments import Segments
from shoal.workers.sentences import sentence_bytes

#: Owner ids; those of instances follow.
CLIENT, BATCHER = 1, 2
#: The clock's first time; 0 stands for "no time" in some places.
_START_NS = 1_000_000_000
#: Exceptions of models that are kept until the errors made from them have reached the test.
_MAX_CAUSES = 16

Work: TypeAlias = Callable[[], None]


class Simulation(ABC):
    """The clock, and what the instances and the client of a test share. `SimulatedStar` knows what is due when."""

    def __init__(self) -> None:
        self.bell = Doorbell.create()  # rung, but never waited for: every ring is read in turn
        #: All segments, which every worker may read.
        self.segments = Segments()
        #: Held while the fields below are used, but not while memory of a worker is; notified when waiting threads
        #: should look again.
        self.changed = threading.Condition()
        self.now_ns = _START_NS
        self.batches: list[Batch] = []
        self.owners = count(BATCHER + 1)  # owner ids of instances
        self._order = count()
        self._due: list[tuple[int, int, Work]] = []  # a heap of times, numbers in the order of scheduling, and work
        self._left: deque[Work] = deque()  # work that no thread could wait for; changed without the lock, too
        self._causes: deque[tuple[str, BaseException]] = deque(maxlen=_MAX_CAUSES)

    @abstractmethod
    def admit(self) -> None:
        """Let the exchange read new requests and cancellations. No batch is formed before time passes."""

    @abstractmethod
    def run_until(self, is_done: Callable[[], bool], end_ns: int | None = None) -> None:
        """Run due work until `is_done` returns True, or up to a time. Raises StuckError where `is_done` can
        never return True."""

    def time_ns(self) -> int:
        """The time on the clock, in ns."""
        return self.now_ns

    @property
    def now_ms(self) -> float:
        """The time on the clock since its start, in ms."""
        return (self.now_ns - _START_NS) / 1e6

    def wake(self) -> None:
        """Wake the threads that wait, so that they look again."""
        with self.changed:
            self.changed.notify_all()

    def later(self, work: Work) -> None:
        """Leave work to the next thread that waits.

        Finalizers call this, at any point of any thread, so it never waits.
        """
        self._left.append(work)
        if self.changed.acquire(blocking=False):  # else the thread that holds the lock looks again
            self.changed.notify_all()
            self.changed.release()

    def at(self, due_ns: int, work: Work) -> None:
        """Schedule work for a time on the clock."""
        with self.changed:
            heapq.heappush(self._due, (due_ns, next(self._order), work))

    def note_cause(self, failure: ShoalError, error: BaseException) -> None:
        """Remember the exception from which a model's error was made."""
        self._causes.append((sentence_bytes(failure).decode(errors="replace"), error))

    def with_cause(self, error: ShoalError) -> ShoalError:
        """Give a client's error the model's exception as its cause, if that is known. The error's sentence ends with
        the model's: an ensemble puts words in front."""
        for said in reversed(self._causes):
            if str(error).endswith(said[0]):
                error.__cause__ = said[1]
                break
        return error
