"""The event loop of an instance whose execute is a coroutine: one, for as long as it lives, in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class EventLoop:
    """Runs coroutines beside each other; the thread starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Changed by begin and stop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Changed in the loop's thread: it keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it; returns at once. What it raises is its own business."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def stop(self, wait_s: float) -> None:
        """Wait for what runs, at most so long; then it is cancelled."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._finish(wait_s), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, wait_s: float) -> None:
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=wait_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
