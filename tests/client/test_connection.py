"""A guest's connection; the test plays the supervisor and the batcher."""

import select
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shoal.client.connection import Connection, Waiter
from shoal.client.sync import connect
from shoal.control import Channel, Listener
from shoal.errors import ConnectionLostError
from shoal.messages.to_client import ServerStopping
from shoal.shm import layout
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.port import Port
from shoal.shm.ring import RingWriter
from shoal.shm.slab import Slab
from shoal.star.models import ModelTable
from shoal.star.place import Place
from tests.batcher.star import MODEL, End
from tests.submitted import Submitted


def test_an_answer_whose_segment_cannot_be_asked_for_any_more_ends_with_the_connection() -> None:
    """The thread that asks meets the server's end where it reads the answer, be it before the one that listens."""
    end = End(layout.CLIENT, 41)
    bell, batchers_bell = GuestBell.pair()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    port = Port(end.own, end.link_view, Doorbell.create(), 8, asks_for_segments=True)
    connection = Connection(Place(port, bell, Channel(there), ModelTable(), 10, 10))
    sleeper = threading.Lock()
    waiter = Waiter(lambda: None, None)
    with here, there:
        connection.submit(waiter, Submitted(MODEL), Submitted(MODEL), connection.allocate(1, MODEL), 0, 0, 0)
        batcher = RingWriter(end.link, end.own_view)
        batcher.push((layout.REPLY, waiter.number, 0, layout.pack_ref(51, 1, 1), *[0] * 12))
        batcher.publish()
        batchers_bell.ring()
        here.close()
        assert connection.wait(waiter, sleeper, time.monotonic() + 10)
        assert isinstance(waiter.error, ConnectionLostError)
        assert connection.is_lost


def test_a_server_of_another_version_is_no_server(tmp_path: Path) -> None:
    """Its welcome has other fields."""
    path = tmp_path / "sock"
    listener = Listener.at(str(path))

    def welcome() -> None:
        select.select([listener.fileno()], [], [])
        accepted = listener.accept()
        assert accepted is not None
        with accepted[0] as channel:
            channel.send_encoded(msgpack.packb(["GuestWelcomed", 1, b"key"]) or b"", ())

    server = threading.Thread(target=welcome)
    server.start()
    with pytest.raises(ConnectionLostError, match=r"no server is found at .*/sock: the server there is of another ver"):
        connect(str(path))
    server.join()
    listener.close()


def test_a_client_leaves_a_stopping_server_only_when_it_has_read_its_replies() -> None:
    """The server would take the block back, and a worker could write another client's answer there."""
    end, worker = End(layout.CLIENT, 41), End(layout.WORKER, 51)
    bell, batchers_bell = GuestBell.pair()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    port = Port(end.own, end.link_view, Doorbell.create(), 8, asks_for_segments=True)
    port.add_segment(51, worker.own_view)
    connection = Connection(Place(port, bell, Channel(there), ModelTable(), 10, 10))
    waiter = Waiter(lambda: None, None)
    with here, there:
        connection.submit(waiter, Submitted(MODEL), Submitted(MODEL), connection.allocate(1, MODEL), 0, 0, 0)
        block = Slab(worker.own).allocate(64)
        assert block is not None
        batcher = RingWriter(end.link, end.own_view)
        batcher.push((layout.REPLY, waiter.number, 0, block.ref, 8, *[0] * 11))
        batcher.publish()
        batchers_bell.ring()
        assert connection.wait(waiter, threading.Lock(), time.monotonic() + 10)
        connection._apply(ServerStopping(), 0)
        assert waiter.is_over
        assert not connection.leave()
        connection.release(waiter.replies[0])
        assert connection.is_lost


class TakenMeanwhile(deque[Any]):
    """A deque whose last entry another thread takes between a look and `popleft`."""

    def popleft(self) -> Any:
        self.clear()
        return super().popleft()


@pytest.mark.parametrize("name", ["_unwanted", "_unused_blocks"])
def test_threads_may_tidy_at_the_same_time(name: str) -> None:
    """An entry that another thread takes meanwhile is passed over."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = End(layout.CLIENT, 41)
    bell, _ = GuestBell.pair()
    port = Port(end.own, end.link_view, Doorbell.create(), 8, asks_for_segments=True)
    with here, there:
        connection = Connection(Place(port, bell, Channel(there), ModelTable(), 10, 10))
        setattr(connection, name, TakenMeanwhile([1]))
        connection.tidy()
        assert not getattr(connection, name)
