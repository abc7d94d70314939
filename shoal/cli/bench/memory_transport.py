"""Requests of a load through a server's shared memory, by `shoal.AsyncClient`, which copies in and out of it.

The client's event loop runs only while the load waits.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.cli.remote import UnreachableError
from shoal.client.aio import AsyncClient
from shoal.errors import ConnectionLostError, ShoalError

#: A wait of less is done without sleeping, since asyncio sleeps for whole milliseconds.
_SHORT_S = 0.002


class MemoryTransport:
    """A transport whose slots are coroutines. A request has an array for each name of the model's inputs."""

    def __init__(self, place: str | None, model: str, version: str, requests: Sequence[Mapping[str, Any]]) -> None:
        self.idle_ns = 0
        self.arrived_ns = 0
        self._model = model
        self._version = version
        self._requests = requests
        # Changed by send and wait: the loop, its tasks, and answers that `wait` has not yielded yet.
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(place)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answered: list[tuple[int, int, str | None]] = []  # slot, time of the answer, error
        self._is_waiting = False
        self._num_sent = 0
        self._failure: UnreachableError | None = None

    def send(self, slot: int) -> None:
        """Begin the next request in a free slot; it is sent while `wait` runs the event loop."""
        request = self._requests[self._num_sent % len(self._requests)]
        self._num_sent += 1
        self._tasks[slot] = self._loop.create_task(self._ask(slot, request))

    async def _ask(self, slot: int, request: Mapping[str, Any]) -> None:
        error = None
        try:
            await self._client.infer(self._model, request, version=self._version)
        except ShoalError as refused:
            if isinstance(refused, ConnectionLostError):
                self._failure = UnreachableError(str(refused))
            error = f"{refused.words}: {refused}"
        self._answered.append((slot, time.perf_counter_ns(), error))
        if self._is_waiting:  # else `abandon` runs the loop, which must go on until the request has ended
            self._loop.stop()

    def wait(self, timeout_s: float, *, is_exact: bool = False) -> Iterator[tuple[int, str | None]]:
        """Run the event loop for at most `timeout_s`, in whole milliseconds; yields each slot that is answered, and an
        error's sentence or None. Only the time in which the loop uses no CPU counts as idle."""
        del is_exact
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        if not self._answered:
            timer = self._loop.call_later(0 if timeout_s < _SHORT_S else timeout_s, self._loop.stop)
            self._is_waiting = True
            self._loop.run_forever()
            self._is_waiting = False
            timer.cancel()
        spent_ns = time.perf_counter_ns() - wall_ns
        self.idle_ns += max(0, spent_ns - (time.thread_time_ns() - cpu_ns))
        answered, self._answered = self._answered, []
        for slot, self.arrived_ns, error in answered:
            del self._tasks[slot]
            yield slot, error
        if self._failure is not None:
            raise self._failure

    def abandon(self, slot: int) -> None:
        """Free a slot by cancelling its request."""
        task = self._tasks.pop(slot, None)
        if task is not None:
            task.cancel()
            self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            self._answered = [each for each in self._answered if each[0] != slot]  # if it was answered just before

    def close(self) -> None:
        """Cancel all requests, and close the client and the event loop."""
        for slot in list(self._tasks):
            self.abandon(slot)
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
