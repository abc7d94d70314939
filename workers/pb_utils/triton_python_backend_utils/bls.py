"""Business logic scripting: a model sends a request to another through the runtime, and waits for or iterates over
the responses."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from triton_python_backend_utils import runtime
from triton_python_backend_utils.errors import TritonModelException
from triton_python_backend_utils.response import InferenceResponse

if TYPE_CHECKING:
    from triton_python_backend_utils.model_request import ModelRequest


def needs_decoupled(model: str) -> str:
    """Triton's sentence for a decoupled model that was called for one response; the punctuation at its end is Triton's,
    too."""
    return (
        f"Model {model} is using the decoupled. The current BLS request call doesn't support models using the "
        "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
        "decoupled models.'"
    )


class ResponseIterator:
    """The responses to one request, in their order; the last one may be empty. Once all have come, they can be iterated
    over again."""

    def __init__(self, server: runtime.Runtime) -> None:
        self._server = server
        # Changed by the runtime's threads under the lock: the responses. Changed by the reader: its position in them.
        self._changed = threading.Condition()
        self._responses: list[InferenceResponse] = []
        self._is_complete = False
        self._wake: list[Callable[[], None]] = []
        self._cancel: Callable[[], None] | None = None
        self._position = 0

    @classmethod
    def of(cls, request: ModelRequest, decoupled: bool) -> ResponseIterator:
        """The responses to a request that is sent now. Raises TritonModelException without a server, and outside
        `execute`."""
        server = runtime.require("A request to another model")
        if not server.can_call_models:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        server.num_calls += 1
        responses = cls(server)
        responses._cancel = server.submit(request, decoupled, responses.add)
        return responses

    def add(self, response: InferenceResponse | None, is_final: bool) -> None:
        """Add a response; called by the runtime. If the responses end without a last one, `response` is None, and an
        empty response is added, as in Triton."""
        with self._changed:
            self._responses.append(InferenceResponse() if response is None else response)
            self._is_complete = is_final
            self._changed.notify_all()
            wake, self._wake = self._wake, []
        for each in wake:
            each()

    def cancel(self) -> None:
        """Cancel the call: the worker that executes it is notified, and further responses are dropped."""
        if self._cancel is not None and not self._is_complete:
            self._cancel()

    def next(self) -> InferenceResponse:
        """The next response, waiting for it. Raises StopIteration after the last."""
        return self.__next__()

    def __iter__(self) -> Iterator[InferenceResponse]:
        self._rewind()
        return self

    def __next__(self) -> InferenceResponse:
        with self._changed:
            self._server.wait(self._changed, self._has_next)
            if self._position == len(self._responses):
                raise StopIteration
            return self._take()

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        self._rewind()
        return self

    async def __anext__(self) -> InferenceResponse:
        await self.wait()
        with self._changed:
            if self._position == len(self._responses):
                raise StopAsyncIteration
            return self._take()

    async def wait(self) -> None:
        """Wait until there is a next response, or until none can come any more."""
        import asyncio  # here: only coroutines need it, and it takes 6 MB of memory

        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def wake() -> None:
            loop.call_soon_threadsafe(arrive)

        with self._changed:
            if self._has_next():
                return
            self._wake.append(wake)
        try:
            await arrived
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _has_next(self) -> bool:
        return self._is_complete or self._position < len(self._responses)

    def _take(self) -> InferenceResponse:
        self._position += 1
        return self._responses[self._position - 1]

    def _rewind(self) -> None:
        if self._is_complete and self._position == len(self._responses):
            self._position = 0


def execute(request: ModelRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
    """Send a request and wait for the response, or return an iterator: InferenceRequest.exec."""
    responses = ResponseIterator.of(request, decoupled)
    return responses if decoupled else responses.next()


async def execute_async(request: ModelRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
    """Send a request and wait for the first response: InferenceRequest.async_exec. An iterator, too, is returned only
    then: Triton's models iterate by a plain `for`, which would block the event loop until the first response."""
    responses = ResponseIterator.of(request, decoupled)
    await responses.wait()
    return responses if decoupled else responses.next()
