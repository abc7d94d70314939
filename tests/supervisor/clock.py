"""An event loop whose time a test has in hand: timers cost nothing; sockets and child processes are real."""

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from shoal.supervisor.event_loop import OneThread

#: How long a real process may do nothing at all while a test waits for one.
PATIENCE_S = 60.0
#: Timers that are due within this are due now: equal ones are told apart by nanoseconds.
NOW_S = 1e-3
#: Jumps to a next timer in one `run`, after which a flow that begins again and again is taken for one that never ends.
MAX_JUMPS = 100_000

T = TypeVar("T")


class _Selector(selectors.EpollSelector):
    """Never waits by itself: where no descriptor is ready, the clock decides what follows."""

    def __init__(self, on_idle: Callable[[float | None], list[Any]]) -> None:
        super().__init__()
        self._on_idle = on_idle

    def select(self, timeout: float | None = None) -> list[Any]:
        return super().select(0) or ([] if timeout == 0 else self._on_idle(timeout))

    def wait(self) -> list[Any]:
        return super().select(PATIENCE_S)


class ClockLoop(OneThread):
    """Time stands still while anything is ready; `run` and `pass_time` let it jump to the next timer.

    An error that no failure domain contains is raised by the call that met it.
    """

    def __init__(self) -> None:
        # Changed by the methods below.
        self._now_s, self._ties = 1000.0, itertools.count(1)
        self._is_enough: Callable[[], bool] | None = None
        self._num_jumps = 0
        self._errors: list[BaseException] = []
        self._waiting = _Selector(self._on_idle)
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers that are due at one instant fire in the order in which they were set, which asyncio leaves open."""
        return super().call_at(when + next(self._ties) * 1e-9, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or AssertionError(context["message"]))
        super().call_exception_handler(context)

    def run(self, flow: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns, however much time that takes. Fails where it waits for what can never happen."""
        self._is_enough, self._num_jumps = None, 0
        try:
            return self.run_until_complete(flow)
        finally:
            self.check()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, and all happen that comes of it. Real processes are not waited for."""
        self.run(asyncio.sleep(seconds))
        self.settle()

    def stand_still(self, seconds: float) -> None:
        """Let so much time pass in which nothing runs, as while a machine is suspended: timers are late by then."""
        self._now_s += seconds

    def until(self, is_enough: Callable[[], bool]) -> None:
        """Let everything happen but time, and real processes work, until nothing is left to do and `is_enough`."""
        self._is_enough = is_enough
        self.run_forever()
        self.check()

    def settle(self) -> None:
        """Let everything happen that needs neither time nor a process's work."""
        self.until(lambda: True)

    def check(self) -> None:
        """Raise the first error that has not been raised."""
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def end(self) -> None:
        """Cancel what still waits, and close; an error that the test has not met is raised."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        try:
            self.settle()
        finally:
            self.close()

    def _on_idle(self, next_s: float | None) -> list[Any]:
        if self._is_enough is None or (next_s is not None and next_s < NOW_S):
            assert next_s is not None, "nothing is left that could happen"
            self._num_jumps += 1
            assert self._num_jumps < MAX_JUMPS, f"the flow has not ended after {MAX_JUMPS} timers"
            self._now_s += next_s + 1e-9
        elif self._is_enough():
            self.stop()
        else:
            ready = self._waiting.wait()
            assert ready, f"no process has done anything for {PATIENCE_S} s"
            return ready
        return []
