"""The supervisor's event loop: asyncio's, with one thread. No callback blocks longer than the limit that it is given.

A callback or a flow (a coroutine) belongs to the failure domain in which it is registered (failure_domains.py). This is
the supervisor's only import of asyncio. Four rules make its flows readable and safe:

1. Sending is never deferred: a plain function has sent and changed everything when it returns. Only waiting is awaited.
2. Messages are handled in the reader's callback; a handler changes state or resolves a future. Flows wait for futures.
3. A future that several flows may wait for is awaited by `first` or `shared` only: cancelling a task that awaits a bare
   future cancels the future.
4. What a flow has acquired is noted on its object before the flow awaits, so that the object's end can give it back.
"""

import logging
import sys
from collections.abc import Callable, Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar

from shoal.supervisor.failure_domains import bound

_has_ssl = "ssl" in sys.modules
if not _has_ssl:
    sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio does without: 6 to 10 ms and 4 MiB of every start
import asyncio  # noqa: E402
from asyncio import CancelledError, Future, Lock, Task, gather, sleep  # noqa: E402

if not _has_ssl:
    del sys.modules["ssl"]

__all__ = [
    "CancelledError", "EventLoop", "Future", "Lock", "OneThread", "Task", "first", "first_awake", "gather",
    "reject", "resolve", "shared", "sleep",
]  # fmt: skip

_log = logging.getLogger(__name__)

#: How long a listening socket pauses after descriptors have run out (ours).
ACCEPT_AGAIN_S = 0.5

#: Seconds between two looks of `first_awake` (ours).
LOOK_S = 1.0

Callback = Callable[[], None]
T = TypeVar("T")


class OneThread(asyncio.SelectorEventLoop):
    """asyncio's loop for a process of one thread: no other thread wakes the loop or is handed anything."""

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        """Do nothing: this loop has no self-pipe."""

    def __del__(self) -> None:
        """Close the selector alone: a flow that ends with the process may wake others (asyncio's Lock does), and to
        wake a flow in a closed loop is an error."""
        selector = getattr(self, "_selector", None)  # None once the loop is closed
        if selector is not None:
            selector.close()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Not supported; raises RuntimeError: PR_SET_PDEATHSIG kills a child when the thread that started it ends."""
        raise RuntimeError("the supervisor has one thread: children die with the thread that made them")


class EventLoop:
    """Callbacks for readable and writable descriptors and for points in monotonic time, and the tasks of flows."""

    def __init__(self, loop: OneThread | None = None) -> None:
        self._loop = OneThread() if loop is None else loop
        self._loop.set_exception_handler(self._on_error)
        # Changed by the methods below.
        self._readable: dict[int, Callback] = {}
        self._tasks = set[Task[Any]]()  # asyncio itself has only weak references to tasks
        self._error: BaseException | None = None

    def on_readable(self, fd: int, callback: Callback) -> None:
        """Call back whenever `fd` can be read or has been hung up."""
        self._readable[fd] = bound(callback)
        self._loop.add_reader(fd, self._readable[fd])

    def on_writable(self, fd: int, callback: Callback | None) -> None:
        """Call back also whenever `fd`, which is registered already, can be written; None ends that."""
        if callback is None:
            self._loop.remove_writer(fd)
        else:
            self._loop.add_writer(fd, bound(callback))

    def pause(self, fd: int, delay_s: float) -> None:
        """Stop reading `fd` for `delay_s` seconds: no descriptor is left for what would be received or accepted."""
        callback = self._readable[fd]
        self._loop.remove_reader(fd)

        def go_on() -> None:
            if self._readable.get(fd) is callback:
                self._loop.add_reader(fd, callback)

        self.call_after(delay_s, go_on)

    def forget(self, fd: int) -> None:
        """Remove the callbacks for `fd`; call this before closing the descriptor."""
        if self._readable.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)

    def now_s(self) -> float:
        """The monotonic time in seconds."""
        return self._loop.time()

    def call_after(self, delay_s: float, callback: Callback) -> None:
        self._loop.call_later(delay_s, bound(callback))

    def every(self, period_s: float, look: Callable[[float], None]) -> None:
        """Call `look` now and every `period_s` seconds, whatever it raises, with the seconds by which it is late."""

        def call(due_s: float) -> None:
            now_s = self.now_s()
            self.call_after(period_s, lambda: call(now_s + period_s))
            look(now_s - due_s)

        call(self.now_s())

    def future(self) -> Future[Any]:
        """A new future of this loop, whose result is set by `resolve` or `reject`."""
        return self._loop.create_future()

    def done_future(self) -> Future[None]:
        """A new future of this loop that is done already, for a flow that has nothing to wait for."""
        done = self.future()
        done.set_result(None)
        return done

    def begin(self, flow: Coroutine[Any, Any, T]) -> Task[T]:
        """Run a flow from the next turn of the loop on; the caller awaits the task and handles its error."""
        task = self._loop.create_task(flow)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start(self, flow: Coroutine[Any, Any, T]) -> Task[T]:
        """Run a flow from the next turn of the loop on; the present failure domain handles an error that it raises."""
        task = self.begin(flow)
        task.add_done_callback(bound(lambda done: done.cancelled() or done.result()))
        return task

    def _ended(self, task: Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio then takes the error as seen

    def after(self, future: Future[Any], callback: Callback) -> None:
        """Call back once a future is done: in place of a flow, where a single statement follows the wait."""
        future.add_done_callback(bound(lambda _: callback()))

    def run(self) -> None:
        """Run callbacks until `stop`. An error that no failure domain contains ends the loop and is raised here."""
        self._loop.run_forever()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """Return from `run` after this turn of the loop; without effect outside `run`."""
        if self._loop.is_running():
            self._loop.stop()

    def end(self) -> None:
        """Close the flows that have not begun and never will, as the process ends: Python would warn of each."""
        for task in self._tasks:
            flow: Any = task.get_coro()
            if getcoroutinestate(flow) == CORO_CREATED:
                flow.close()

    def _on_error(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:  # otherwise asyncio reports a task that is destroyed unfinished as the process ends
            self._error = self._error or error
            self.stop()


async def first(*futures: Future[Any], limit_s: float | None = None) -> set[Future[Any]]:
    """Return the futures that are done as soon as one of them is, or an empty set after `limit_s`. The others go on; no
    future's error is raised."""
    done, _ = await asyncio.wait(futures, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    return done


async def first_awake(*futures: Future[Any], limit_s: float) -> set[Future[Any]]:
    """Like `first`, but time in which this process did not run, as on a suspended machine, is not counted: the process
    whose answer is awaited did not run then either."""
    left_s = limit_s
    while not (done := await first(*futures, limit_s=min(left_s, LOOK_S))) and left_s > LOOK_S:
        left_s -= LOOK_S  # however late this look is: meanwhile this process did not run
    return done


async def shared(future: Future[T]) -> T:
    """Await a future that other tasks await, too; does not yield where the future is done."""
    return await asyncio.shield(future)


def resolve(future: Future[T], result: T) -> None:
    """Set a future's result, unless its outcome is known."""
    if not future.done():
        future.set_result(result)


def reject(future: Future[Any], error: Exception) -> None:
    """Set a future's error, unless its outcome is known. A future that is not awaited by any flow causes no warning."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # asyncio then takes the error as seen
