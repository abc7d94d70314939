"""`shoal.AsyncClient`: the calls of `shoal.Client` on asyncio.

The event loop waits for the bell and for the control connection; there is no thread. Calls that may wait for the
supervisor, a connection or memory for a large tensor run in the loop's executor.
"""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from numpy.typing import NDArray

from shoal.client.call import MAX_RELOADS, ClientCall
from shoal.client.connection import MAX_RECONNECTS, Connection, NotSubmittedError, question_limit_s
from shoal.client.request_arguments import RequestArguments, checked_shape, checked_text, takes, version_text
from shoal.client.result import Result
from shoal.client.session import Session
from shoal.client.sync import connect, late_to_join, path_of, question_about
from shoal.errors import ConnectionLostError, InvalidArgumentError, UnavailableError
from shoal.passwords import shown_url
from shoal.reasons import ModelGoneError

_T = TypeVar("_T")


class AsyncClient:
    """A client of the server at `place`, for the coroutines of one event loop; otherwise like `shoal.Client`.

    Many requests may be open at once: the server batches them as it batches requests of many connections, and the
    batcher is notified once for all requests of one turn of the event loop.
    """

    def __init__(self, place: str | os.PathLike[str] | None = None) -> None:
        self._place = path_of(place)
        if self._place is not None and "://" in self._place:
            raise InvalidArgumentError(
                f"'{shown_url(self._place)}' is a URL; with asyncio, use tritonclient's own clients for those"
            )
        # Changed by coroutines of one event loop, and so without a lock. One task connects; all coroutines that need a
        # connection wait for that task.
        self._session: Session | None = None
        self._connecting: asyncio.Task[Session] | None = None
        self._is_closed = False

    # --- inference ---

    @takes(RequestArguments)
    async def infer(self, asked: RequestArguments) -> Result:
        """Like `Client.infer`. A coroutine that is cancelled cancels its request."""
        num_reloads = 0
        while True:
            call, news = await self._submit(asked)
            try:
                with call:
                    await _await(call, news)
                    return call.result()
            except ModelGoneError:
                num_reloads += 1
                if num_reloads > MAX_RELOADS:
                    raise
                await _in_executor(partial(call.connection.catch_up, question_limit_s(asked.timeout)))

    @takes(RequestArguments)
    async def stream(self, asked: RequestArguments) -> AsyncIterator[Result]:
        """Like `Client.stream`: `async for result in client.stream(…)`."""
        call, news = await self._submit(asked, is_stream=True)
        with call:
            while not call.is_done:
                await _await(call, news)
                if (result := call.next_result()) is not None:
                    yield result

    async def _submit(self, asked: RequestArguments, *, is_stream: bool = False) -> tuple[ClientCall, "_Wakeup"]:
        num_tries = 0
        while True:
            session = await self._connected(asked.timeout)
            try:
                return await self._submit_to(session, asked, is_stream=is_stream)
            except NotSubmittedError:  # the server was replaced just now
                num_tries += 1
                if num_tries > MAX_RECONNECTS:
                    raise

    async def _submit_to(
        self, session: Session, asked: RequestArguments, *, is_stream: bool
    ) -> tuple[ClientCall, "_Wakeup"]:
        news = _Wakeup(asyncio.get_running_loop())

        def submit() -> ClientCall:
            return session.submit(asked, news.notify, is_stream=is_stream)

        return await _in_executor(submit) if session.needs_time(asked) else submit(), news

    async def empty(self, model: str, name: str, shape: Sequence[int], *, version: str | int = "") -> NDArray[Any]:
        """Like `Client.empty`, for coroutines."""
        session = await self._connected()
        return await _in_executor(lambda: session.empty(model, name, checked_shape(shape), version))

    # --- the server ---

    async def is_live(self) -> bool:
        """Whether the server answers. Raises no error."""
        try:
            await _in_executor((await self._connected()).connection.catch_up)
        except UnavailableError:
            return False
        return True

    async def is_ready(self, model: str = "", *, version: str | int = "") -> bool:
        """Like `Client.is_ready`."""
        if checked_text("model", model):
            return bool(await self._ask("is_ready", model, version))
        try:
            return bool(await self._ask("ready"))
        except UnavailableError:
            return False

    async def server_metadata(self) -> dict[str, Any]:
        """Like `Client.server_metadata`."""
        metadata: dict[str, Any] = await self._ask("server_metadata")
        return metadata

    async def model_metadata(self, model: str, *, version: str | int = "") -> dict[str, Any]:
        """Like `Client.model_metadata`."""
        metadata: dict[str, Any] = await self._ask("model_metadata", model, version)
        return metadata

    async def model_config(self, model: str, *, version: str | int = "") -> dict[str, Any]:
        """Like `Client.model_config`."""
        version = version_text(version)
        connection = (await self._connected()).connection
        await _in_executor(connection.catch_up)
        return connection.models.lookup(checked_text("model", model), version or None).config

    async def statistics(self, model: str = "", *, version: str | int = "") -> list[dict[str, Any]]:
        """Like `Client.statistics`."""
        rows: list[dict[str, Any]] = (await self._ask("statistics", model, version))["model_stats"]
        return rows

    async def _ask(self, verb: str, model: str = "", version: str | int = "") -> Any:
        asked = question_about(model, version)
        connection = (await self._connected()).connection
        return await _in_executor(lambda: connection.ask(verb, asked))

    # --- the connection ---

    async def _connected(self, timeout_s: float | None = None) -> Session:
        if (session := self._live()) is not None:
            return session
        limit_s = question_limit_s(timeout_s)
        end_s = time.monotonic() + limit_s
        while (session := self._live()) is None:
            if self._is_closed:
                raise ConnectionLostError("the client is closed")
            left_s = max(0.0, end_s - time.monotonic())
            connecting, begins = self._connecting, False
            if connecting is None or connecting.done():
                # The task goes on if this coroutine is cancelled: the task's thread waits for the server all the same.
                connecting = self._connecting = asyncio.ensure_future(self._connect(left_s))
                connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
                begins = True
            if not (await asyncio.wait([connecting], timeout=None if begins else left_s))[0]:
                raise late_to_join("the server", limit_s)
            if begins:  # only this coroutine raises the error of a failed attempt; others try again
                return connecting.result()
        return session

    def _live(self) -> Session | None:
        session = self._session
        if session is None or session.connection.is_lost or session.connection.is_exiting:
            return None
        return session

    async def _connect(self, limit_s: float) -> Session:
        connection = await _in_executor(lambda: connect(self._place, limit_s))
        if self._is_closed:
            connection.close()
            connection.channel.close()
            raise ConnectionLostError("the client is closed")
        self._session = session = Session(connection)
        loop = asyncio.get_running_loop()
        _listen(loop, connection)
        _flush_together(loop, connection)
        return session

    async def close(self) -> None:
        """Close the connection; open requests end with ConnectionLostError. Arrays stay readable."""
        self._is_closed = True
        session, self._session, self._connecting = self._session, None, None
        if session is not None:
            _hang_up(asyncio.get_running_loop(), session.connection)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _await(call: ClientCall, news: "_Wakeup") -> None:
    """Wait for the next response of a call. Raises the error of `call.late()` at the call's time limit."""
    deadline_s = news.loop.time() + call.limit_s
    while not call.has_news:
        if not await news.wait(deadline_s):
            raise call.late()


class _Wakeup:
    """Wakes one coroutine, mostly from the loop's thread, sometimes from a thread of an executor."""

    __slots__ = ("_future", "_thread", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self._future: asyncio.Future[bool] = loop.create_future()

    def notify(self) -> None:
        """Wake the coroutine, or let its next `wait` return at once."""
        if threading.get_ident() == self._thread:
            self._settle(True)
        else:
            self.loop.call_soon_threadsafe(self._settle, True)

    def _settle(self, came: bool) -> None:
        if not self._future.done():
            self._future.set_result(came)

    async def wait(self, deadline_s: float) -> bool:
        """Wait for a call of `notify` since the last wait. False if the loop's time `deadline_s` comes first."""
        timer = self.loop.call_at(deadline_s, self._settle, False)
        try:
            came = await self._future
        finally:
            timer.cancel()
        self._future = self.loop.create_future()
        return came


def _listen(loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
    """Let the loop handle replies and messages of a connection until nothing refers to the connection any more."""
    weakly = weakref.ref(connection)
    bell_fd, channel_fd = connection.bell.fd, connection.channel.fileno()

    def ring() -> None:
        alive = weakly()
        if alive is None:
            loop.remove_reader(bell_fd)
            return
        alive.bell.clear()
        alive.hand_out()
        if alive.is_lost:
            loop.remove_reader(bell_fd)
        elif alive.is_exiting and alive.leave():
            _hang_up(loop, alive)

    def receive() -> None:
        alive = weakly()
        if alive is None or not alive.receive():
            loop.remove_reader(channel_fd)
            loop.remove_reader(bell_fd)

    loop.add_reader(bell_fd, ring)
    loop.add_reader(channel_fd, receive)


def _flush_together(loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
    """Ring the batcher once for all requests of one turn of the event loop, which then share batches."""
    thread, flush = threading.get_ident(), connection.flush
    is_due = False

    def flush_all() -> None:
        nonlocal is_due
        with connection.shared.lock:
            is_due = False
            flush()

    def flush_soon() -> None:
        nonlocal is_due
        if threading.get_ident() != thread:
            flush()
        elif not is_due:
            is_due = True
            loop.call_soon(flush_all)

    connection.flush = flush_soon


def _hang_up(loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
    loop.remove_reader(connection.bell.fd)
    if (fd := connection.channel.fileno()) >= 0:  # below 0: the channel is closed already
        loop.remove_reader(fd)
    connection.close()
    connection.channel.close()


async def _in_executor(call: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, call)
