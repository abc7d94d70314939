"""The event loop of a model with coroutines, on the test's clock: `asyncio.sleep` takes no real time.

The loop runs until all its coroutines wait, and then knows for what: a time, a socket, or a thread.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from shoal.workers.backends.python.event_loop import ModelEventLoop


class _Selector(selectors.DefaultSelector):
    """A selector that stops the loop where it would block."""

    stop: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self.stop(timeout)
        return ready


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """One model instance's loop, run by one waiting thread at a time."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        wake: Callable[[], None],
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`wake` is called when a thread has scheduled a callback; callbacks run in the context that `around` makes."""
        self._now_ns = now_ns
        self._wake = wake
        self._around = around
        self._own_selector = _Selector()
        super().__init__(self._own_selector)
        self._own_selector.stop = self._stop_at
        self._num_own_files = len(self._own_selector.get_map())
        # Changed by claim and run, and by threads that schedule callbacks. Time of the first timer, in ns; None: there
        # is none.
        self.due_ns: int | None = None
        self.is_claimed = False
        self._is_woken = False

    def time(self) -> float:
        """The time on the test's clock, in seconds."""
        return self._now_ns() / 1e9

    def call_soon_threadsafe(  # type: ignore[override]  # the base class names more arguments
        self, callback: Callable[..., object], *arguments: Any, **options: Any
    ) -> asyncio.Handle:
        """Schedule a callback as any loop does, and wake the threads that wait."""
        handle = super().call_soon_threadsafe(callback, *arguments, **options)
        self._is_woken = True
        self._wake()
        return handle

    @property
    def has_sockets(self) -> bool:
        """Whether a coroutine waits for a file or a socket."""
        return len(self._own_selector.get_map()) > self._num_own_files

    def is_due(self, now_ns: int) -> bool:
        """Whether `run` would run a callback now."""
        return self._is_woken or (self.due_ns is not None and self.due_ns <= now_ns)

    def claim(self) -> Callable[[], None]:
        """Reserve the loop for the calling thread, and return `run`, which that thread must call."""
        self.is_claimed = True
        return self.run

    def run(self) -> None:
        """Run until every coroutine waits."""
        self._is_woken = False
        # This thread may be inside a coroutine of another loop: that of a test, as in every cell of a notebook, or of a
        # model that waits for this loop's model. From Python 3.14 on the current task belongs to the thread, not to the
        # loop: while it is set, no task of this loop could take a step.
        outer = asyncio._get_running_loop()
        task = asyncio.current_task(outer) if outer else None
        if outer and task:
            asyncio.tasks._leave_task(outer, task)
        asyncio._set_running_loop(None)
        try:
            with self._around():
                self.run_forever()
        finally:
            asyncio._set_running_loop(outer)
            if outer and task:
                asyncio.tasks._enter_task(outer, task)
            self.is_claimed = False

    def _stop_at(self, timeout: float | None) -> None:
        # At least a nanosecond later: seconds are rounded floats, and a timer never quite due would stop the clock.
        self.due_ns = None if timeout is None else self._now_ns() + max(1, round(timeout * 1e9))
        self.stop()


class InlineEventLoop(ModelEventLoop):
    """The Python backend's coroutines without a thread: waiting threads run `loop`."""

    def __init__(self, loop: VirtualEventLoop) -> None:
        super().__init__("")
        self.loop = loop

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine when the loop runs next."""
        self.loop.call_soon_threadsafe(self._begin, coroutine)

    def stop(self, wait_s: float = 0.0) -> None:
        """Cancel running coroutines, and close the loop. No time passes meanwhile, so `wait_s` has no effect."""
        del wait_s
        self.is_stopping = True
        for task in self._tasks:
            task.cancel()
        self.loop.run()
        self.loop.close()
