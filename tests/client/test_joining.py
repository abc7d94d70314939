"""Servers that listen but do not let a client join, as a stopped process does."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import AsyncClient, Client
from shoal.client import aio, connection, sync
from shoal.client.connection import Connection
from shoal.client.session import Session
from shoal.control import Channel, Listener
from shoal.errors import ConnectionLostError, InvalidArgumentError, TimedOutError
from shoal.shm import layout
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.port import Port
from shoal.star.models import ModelTable
from shoal.star.place import Place
from tests.batcher.star import End

INPUTS = {"A": [1]}
#: The limit of joining in these tests, which no test waits for, and the timeout of calls, in seconds.
LONG_S, SHORT_S = 60.0, 0.05


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a socket that takes connections, and on which nothing is sent."""
    monkeypatch.setattr(connection, "QUESTION_S", LONG_S)
    with closing(Listener.at(str(tmp_path / "sock"))):
        yield str(tmp_path / "sock")


def test_a_request_waits_for_joining_as_long_as_its_timeout(path: str) -> None:
    with Client(path) as client, pytest.raises(TimedOutError, match=rf"{path} has not let .* 0.05 s.*kill -CONT"):
        client.infer("m", INPUTS, timeout=SHORT_S)


def test_a_coroutine_waits_for_joining_as_long_as_its_timeout(path: str) -> None:
    async def ask() -> None:
        async with AsyncClient(path) as client:
            await client.infer("m", INPUTS, timeout=SHORT_S)

    with pytest.raises(TimedOutError, match=r"has not let this client join within 0.05 s"):
        asyncio.run(ask())


def test_a_coroutine_waits_no_longer_where_another_one_joins(path: str) -> None:
    async def ask() -> None:
        async with AsyncClient(path) as client:
            slow = asyncio.ensure_future(client.infer("m", INPUTS, timeout=1.0))
            await asyncio.sleep(0)  # the first call has begun to join
            with pytest.raises(TimedOutError, match=r"the server has not let .* within 0.05 s"):
                await client.infer("m", INPUTS, timeout=SHORT_S)
            with pytest.raises(TimedOutError, match=r"within 1 s"):
                await slow

    asyncio.run(ask())


def test_calls_without_a_timeout_of_their_own_have_the_command_s(path: str) -> None:
    with Client(path) as client:
        client.timeout_s = SHORT_S
        with pytest.raises(TimedOutError, match=r"within 0.05 s"):
            client.model_config("m")
        assert not client.is_live()


def test_calls_without_any_have_a_limit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUESTION_S", SHORT_S)
    with Client(path) as client, pytest.raises(TimedOutError, match=r"within 0.05 s"):
        client.server_metadata()


def test_a_thread_waits_no_longer_where_another_one_joins(path: str) -> None:
    with Client(path) as client:
        client._lock.acquire()  # a thread that is joining has it
        with pytest.raises(TimedOutError, match=r"within 0.05 s"):
            client.infer("m", INPUTS, timeout=SHORT_S)
        client._lock.release()


def test_a_server_that_accepts_no_more_connections_is_late(tmp_path: Path) -> None:
    """The queue of connections to the server is full, so that connecting itself waits."""
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(path)
            with pytest.raises(TimedOutError, match=r"within 0.05 s"):
                sync.connect(path, SHORT_S)


def test_a_signal_does_not_end_the_wait_for_a_server_that_accepts_no_more_connections(tmp_path: Path) -> None:
    """The server was said to be another user's."""
    path = str(tmp_path / "sock")
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(path)
            signal.setitimer(signal.ITIMER_REAL, SHORT_S, SHORT_S)
            try:
                with pytest.raises(TimedOutError, match=r"within 0.2 s"):
                    sync.connect(path, 0.2)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", [np.float32, np.float16, Fraction])
def test_a_timeout_may_be_a_number_of_any_type(path: str, number: Any) -> None:
    """numpy's numbers of other sizes than float64's failed with a TypeError, in calls that join."""
    with Client(path) as client, pytest.raises(TimedOutError, match=r"within 0.0625 s"):
        client.infer("m", INPUTS, timeout=number(0.0625))


def test_a_coroutine_that_is_cancelled_leaves_the_connection_to_the_next_one(path: str) -> None:
    """Each one that was cancelled kept a thread, and a connection that no call used."""

    async def ask() -> None:
        async with AsyncClient(path) as client:
            first = asyncio.ensure_future(client.infer("m", INPUTS, timeout=0.5))
            await asyncio.sleep(0)  # it has begun to join
            connecting = client._connecting
            first.cancel()
            with pytest.raises(TimedOutError, match=r"the server has not let .* within 0.05 s"):
                await client.infer("m", INPUTS, timeout=SHORT_S)
            assert client._connecting is connecting

    asyncio.run(ask())


def test_a_client_that_is_closed_while_it_joins_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = joined(there)
    joins = threading.Event()

    def join(*_: object) -> Connection:
        joins.wait()
        return connection

    async def ask() -> None:
        client = AsyncClient("a server")
        call = asyncio.ensure_future(client.infer("m", INPUTS))
        await asyncio.sleep(0)
        await client.close()
        joins.set()
        with pytest.raises(ConnectionLostError, match="the client is closed"):
            await call
        assert connection.is_lost
        assert here.recv(1) == b""

    monkeypatch.setattr(aio, "connect", join)
    with here:
        asyncio.run(ask())


def joined(there: socket.socket) -> Connection:
    end = End(layout.CLIENT, 41)
    port = Port(end.own, end.link_view, Doorbell.create(), 8, asks_for_segments=True)
    return Connection(Place(port, GuestBell.pair()[0], Channel(there), ModelTable(), 10, LONG_S))


def test_a_question_to_a_server_that_stands_still_has_a_limit() -> None:
    """It waited ten minutes, the default of --model-load-timeout-secs, whatever the timeout."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there, Client("a server") as client:
        client._session = Session(joined(there))
        client.timeout_s = SHORT_S
        calls: list[Callable[[], object]] = [
            lambda: client.model_config("m"), lambda: client.model_metadata("m"), lambda: client.is_ready("m"),
            client.statistics, client.server_metadata,
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(TimedOutError, match=r"^the server has not answered within 0.05 s\. .*kill -CONT"):
                call()
        assert not client.is_live()
        assert not client.is_ready()
        with pytest.raises(TimedOutError, match=r"has not answered within 0.05 s"):
            client.infer("m", INPUTS, timeout=SHORT_S)


def test_a_question_after_the_server_s_end_is_not_asked() -> None:
    """One that came between the end and the closing of the channel waited for its whole time."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        lost = joined(there)
        lost.lose("the server is gone, or has hung up")
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match=r"^the server is gone, or has hung up$"):
                lost.ask("ping", {}, LONG_S)


def test_a_place_that_is_no_path_is_refused() -> None:
    places: list[Any] = [5, b"/tmp/sock", "a\0b", "\ud800", ["sock"]]
    for kind in (Client, AsyncClient):
        for place in places:
            with pytest.raises(
                InvalidArgumentError, match=r"^a server's place is the path of its socket, or a URL, not"
            ):
                kind(place)


def test_a_joined_client_waits_without_the_deadline_of_joining() -> None:
    """The channel's socket blocks again once the deadline is taken back."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, Channel(there) as channel:
        channel.set_deadline(0.0)
        with pytest.raises(TimeoutError):
            channel._receive()
        channel.set_deadline(None)
        assert there.getblocking()
        threading.Thread(target=here.close).start()
        assert channel._receive() == (b"", [])
