"""A thread for measurements that may take long: the event loop asks, and gets a future. Runs in the supervisor.

The thread only reads: a sick GPU may answer late, and the kernel counts the pages of a large process for a while.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from shoal.supervisor.event_loop import EventLoop, Future, resolve

#: How long the end of the server waits for the last measurements (ours).
LAST_S = 1.0

T = TypeVar("T")


class MeasuringThread:
    """The thread, started by the first question, and its questions, answered one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Changed by the event loop's thread.
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def has_started(self) -> bool:
        """Whether there has been a question."""
        return self._thread is not None

    def ask(self, question: Callable[[], None]) -> None:
        """Have the thread call `question`, which raises nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._questions.put(question)

    def answer(self, measure: Callable[[], T], loop: EventLoop) -> "Future[T]":
        """A future of what `measure`, which raises nothing, returns in the thread. It stays open as long as that takes.
        Raises OSError where no descriptor is left."""
        future: Future[T] = loop.future()
        answers: list[T] = []
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

        def tell() -> None:  # in the thread
            answers.append(measure())
            os.eventfd_write(bell, 1)

        def arrived() -> None:
            loop.forget(bell)
            os.close(bell)
            resolve(future, answers[0])

        loop.on_readable(bell, arrived)
        self.ask(tell)
        return future

    def close(self) -> None:
        """End the thread after its pending measurements, or after a second without an answer."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread.join(LAST_S)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            question()
