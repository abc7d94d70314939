"""A thread for measurements, and other calls, that may take long: the event loop asks, and gets a future. Runs in the
supervisor.

A sick GPU may answer late, the kernel counts the pages of a large process for a while, and a disk may hang.
"""

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from shoal.supervisor.event_loop import EventLoop, Future, resolve

#: How long the end of the server waits for the last measurements (ours).
LAST_S = 1.0

T = TypeVar("T")


class MeasuringThread:
    """The thread, and its questions, answered one after the other. A question starts the thread, which ends when none
    is left: while nothing is measured, the process has one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Whether there has been a question. Changed by the event loop's thread.
        self.has_started = False
        self._lock = threading.Lock()
        # Changed under the lock.
        self._questions: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[], None]) -> bool:
        """Have the thread call `question`, which raises nothing. False where the system starts no thread."""
        self.has_started = True
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            self._questions.append(question)
        return True

    def answer(self, measure: Callable[[], T], loop: EventLoop) -> "Future[T]":
        """A future of what `measure`, which raises nothing, returns in the thread. The future stays open until
        `measure` returns. Raises OSError where no descriptor is left, or no thread starts."""
        future: Future[T] = loop.future()
        answers: list[T] = []
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

        def report() -> None:  # in the thread
            answers.append(measure())
            os.eventfd_write(bell, 1)

        def arrived() -> None:
            loop.forget(bell)
            os.close(bell)
            resolve(future, answers[0])

        if not self.ask(report):
            os.close(bell)
            raise OSError(errno.EAGAIN, "no thread can be started")
        loop.on_readable(bell, arrived)
        return future

    def close(self) -> bool:
        """Wait for the pending measurements, at most for a second. True if none is left."""
        with self._lock:
            thread = self._thread
        if thread is None:
            return True
        thread.join(LAST_S)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._questions:
                    self._thread = None
                    return
                question = self._questions.popleft()
            question()
