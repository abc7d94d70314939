"""What the star of a test shares with its client and its instances: the clock, the segments, and what the test sees.

The clock stands still until a thread waits for an answer: the test, or a model in the middle of its `execute` that has
asked another one. That thread then runs what is due; where nothing is due, the clock jumps to what is due next. No code
of a model is called with the lock held, so threads of a model may submit, answer and wait, too.
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
#: Where the clock begins; 0 stands for "no time" here and there.
_START_NS = 1_000_000_000
#: Exceptions of models that are remembered until the error that was made of them has reached the test.
_MAX_CAUSES = 16

Work: TypeAlias = Callable[[], None]


class Simulation(ABC):
    """The clock, and what the instances and the client of a test share. `SimulatedStar` knows what is due when."""

    def __init__(self) -> None:
        self.bell = Doorbell.create()  # rung by all, heard by none: every ring is looked into
        #: The segments of all, which every worker may read.
        self.segments = Segments()
        #: Held while what follows is looked at or changed, but not while memory of a worker is; notified when threads
        #: that wait should look again.
        self.changed = threading.Condition()
        self.now_ns = _START_NS
        self.batches: list[Batch] = []
        self.owners = count(BATCHER + 1)  # ids of instances
        self._order = count()
        self._due: list[tuple[int, int, Work]] = []  # a heap
        self._left: deque[Work] = deque()  # what no thread could wait for; changed without the lock, too
        self._causes: deque[tuple[str, BaseException]] = deque(maxlen=_MAX_CAUSES)

    @abstractmethod
    def admit(self) -> None:
        """Let the exchange read new requests and cancellations. No batch is formed before time passes."""

    @abstractmethod
    def run_until(self, is_done: Callable[[], bool], end_ns: int | None = None) -> None:
        """Run what is due until something has come true, or up to a time. Raises StuckError where it never will."""

    def time_ns(self) -> int:
        """What the clock shows."""
        return self.now_ns

    @property
    def now_ms(self) -> float:
        """The clock since it began."""
        return (self.now_ns - _START_NS) / 1e6

    def wake(self) -> None:
        """Wake the threads that wait, so that they look again."""
        with self.changed:
            self.changed.notify_all()

    def later(self, work: Work) -> None:
        """Leave work to the thread that waits next.

        A finalizer calls this, which runs in the middle of anything, so it waits for nothing.
        """
        self._left.append(work)
        if self.changed.acquire(blocking=False):  # else the thread that has it looks again, or wakes one that does
            self.changed.notify_all()
            self.changed.release()

    def at(self, due_ns: int, work: Work) -> None:
        """Schedule work for a time of the clock."""
        with self.changed:
            heapq.heappush(self._due, (due_ns, next(self._order), work))

    def note_cause(self, failure: ShoalError, error: BaseException) -> None:
        """Remember the exception that a model's error was made of."""
        self._causes.append((sentence_bytes(failure).decode(errors="replace"), error))

    def with_cause(self, error: ShoalError) -> ShoalError:
        """Give an error of a client the exception of a model as its cause, if that is known. The error's sentence ends
        with the model's: an ensemble puts words in front."""
        for said in reversed(self._causes):
            if str(error).endswith(said[0]):
                error.__cause__ = said[1]
                break
        return error
