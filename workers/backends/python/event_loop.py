"""The event loop of an instance whose execute is a coroutine: one per instance, in a thread of its own."""

import logging
import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio  # at run time for models with coroutines only: with ssl, which asyncio imports, it takes 6 MB

_log = logging.getLogger(__name__)

#: Seconds that cancelled coroutines may take to end; their thread gets as many again after that (ours).
CANCEL_WAIT_S = 5.0


class ModelEventLoop:
    """A thread with an event loop that runs coroutines concurrently; it starts with the first coroutine."""

    def __init__(self, name: str) -> None:
        self._name = name
        # These fields are changed by begin and stop.
        self.is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Changed in the event loop's thread. Tasks are kept here, since asyncio has only weak references to them.
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine in the loop's thread; returns at once. Exceptions of the coroutine are not handled here."""
        if self._loop is None:
            import asyncio

            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def stop(self, wait_s: float) -> None:
        """Wait for running coroutines for at most `wait_s` seconds, then cancel them. A thread that does not end
        after that is left running."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        self.is_stopping = True
        loop.call_soon_threadsafe(self._end, wait_s)
        thread.join(wait_s + 2 * CANCEL_WAIT_S)
        if thread.is_alive():
            _log.error("a coroutine blocks the event loop of thread '%s'; the thread is abandoned", self._name)

    def _run(self, loop: "asyncio.AbstractEventLoop") -> None:
        try:
            loop.run_forever()
        finally:
            # The model has called sys.exit() or stopped the loop. If only this thread ended, without a word, all
            # requests would wait for ever. So the worker ends, as it does after a sys.exit() in a plain model's
            # execute.
            if not self.is_stopping:
                _log.critical("the model has ended its event loop, and with it this worker", exc_info=True)
                os._exit(1)
            loop.close()

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        import asyncio

        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, wait_s: float) -> None:
        import asyncio

        self._ending = asyncio.get_running_loop().create_task(self._finish(wait_s))

    async def _finish(self, wait_s: float) -> None:
        import asyncio

        late = set(self._tasks)
        if late:
            _, late = await asyncio.wait(late, timeout=wait_s)
        for task in late:
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=CANCEL_WAIT_S)
        if late:
            _log.error("%d coroutines in thread '%s' went on after they were cancelled", len(late), self._name)
        asyncio.get_running_loop().stop()
