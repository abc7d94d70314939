"""Lines of orders: the poller answers the orders of one line one after another, and different lines at the same time.

Each line with an order has a thread, which ends with the line's last order; so a download, or a disk that hangs, keeps
only the orders of its own line waiting. Threads are daemons: a process that is to end waits for none.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock, Semaphore, Thread
from typing import Generic, TypeVar

from shoal.errors import UnavailableError
from shoal.open_files import RAISE_TASKS

T = TypeVar("T")

#: The most lines that are worked on at once (ours); a further line waits for one of these to end.
LINES_AT_ONCE = 32


class Lines(Generic[T]):
    """The lines that have orders, by name; `answer` is called in a line's thread, and raises nothing."""

    def __init__(self, answer: Callable[[T], None]) -> None:
        self._answer = answer
        self._places = Semaphore(LINES_AT_ONCE)
        self._lock = Lock()
        # Changed under the lock: by line, the orders that wait for earlier orders of the line.
        self._waiting: dict[str, deque[T]] = {}

    def add(self, line: str, order: T) -> None:
        """Answer an order once the earlier orders of its line have been answered. Raises UnavailableError where the
        system starts no thread for a line."""
        with self._lock:
            if line in self._waiting:
                self._waiting[line].append(order)
                return
            self._waiting[line] = deque([order])
        try:
            Thread(target=self._work, args=(line,), name=line, daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                del self._waiting[line]
            raise UnavailableError(f"the reader of model repositories has no thread: {error}. {RAISE_TASKS}") from error

    def _work(self, line: str) -> None:
        with self._places:
            while (order := self._next(line)) is not None:
                self._answer(order)

    def _next(self, line: str) -> T | None:
        with self._lock:
            if self._waiting[line]:
                return self._waiting[line].popleft()
            del self._waiting[line]
            return None
