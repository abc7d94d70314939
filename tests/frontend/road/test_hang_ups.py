"""frontend/road/hang_ups.py over real connections: which request learns that its client has hung up, and when."""

import fcntl
import queue
import resource
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from shoal.errors import CancelledError
from shoal.frontend.road.hang_ups import HangUps, WatchedClient, has_left
from shoal.frontend.road.transport import Waiter, WatchedTransport
from tests.frontend.transport_harness import TransportHarness, harness, rung

__all__ = ["harness"]

#: Until what one end of a connection does has reached the other.
DEADLINE_S = 10
#: The first descriptor that select() does not take.
FIRST_UNSELECTABLE = 1024


class Line:
    """A connection and who waits for its answer."""

    def __init__(self, listener: socket.socket) -> None:
        self.client = socket.create_connection(listener.getsockname())
        self.client.settimeout(DEADLINE_S)
        server, _ = listener.accept()
        self.has_begun = False
        self.serve_with(server)
        self.waiter: Waiter = queue.SimpleQueue()

    def serve_with(self, server: socket.socket) -> None:
        """Make this the server's end."""
        self.server = server
        self.watched = WatchedClient(server, lambda: not self.has_begun)

    def reset(self) -> None:
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()


@pytest.fixture
def line() -> Iterator[Line]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Line(listener)
        with line.client, line.server:
            yield line


def test_a_request_whose_client_the_kernel_does_not_watch_goes_on(line: Line) -> None:
    """Here the kernel watches it already."""
    hang_ups = HangUps()
    hang_ups._poller.register(line.server, 0)
    with hang_ups.watch(line.watched, line.waiter.put):
        assert not hang_ups._watched


def test_a_closed_side_is_a_doubt_and_a_reset_the_end(line: Line) -> None:
    hang_ups = HangUps()
    with hang_ups.watch(line.watched, line.waiter.put):
        line.client.shutdown(socket.SHUT_WR)
        hang_ups.step(DEADLINE_S)
        assert line.waiter.get_nowait() is line.watched
        line.watched.probe()
        assert line.client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        hang_ups.step(0)
        assert line.waiter.empty()
        line.reset()
        hang_ups.step(DEADLINE_S)
        assert line.waiter.get_nowait() is None


def test_who_is_gone_resets_when_it_is_asked(line: Line) -> None:
    hang_ups = HangUps()
    with hang_ups.watch(line.watched, line.waiter.put):
        line.client.close()
        hang_ups.step(DEADLINE_S)
        assert line.waiter.get_nowait() is line.watched
        line.watched.probe()
        hang_ups.step(DEADLINE_S)
        assert line.waiter.get_nowait() is None
        line.watched.probe()  # it is gone: nothing happens


def test_a_client_has_left_when_its_connection_is_reset_by_now_or_when_it_is_asked(line: Line) -> None:
    assert not has_left(line.watched)
    line.client.shutdown(socket.SHUT_WR)
    assert not has_left(line.watched)  # it waits, though it sends nothing more
    assert line.client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.client.close()
    assert has_left(line.watched)


def test_a_client_that_has_closed_its_side_and_may_not_be_asked_has_not_left(line: Line) -> None:
    line.has_begun = True
    line.client.close()
    assert not has_left(line.watched)


def test_whose_answer_has_begun_is_not_asked(line: Line) -> None:
    line.has_begun = True
    line.watched.probe()
    line.server.close()
    assert line.client.recv(100) == b""


def test_who_hung_up_before_it_was_watched_is_seen(line: Line) -> None:
    hang_ups = HangUps()
    line.client.shutdown(socket.SHUT_WR)
    with hang_ups.watch(line.watched, line.waiter.put):
        hang_ups.step(DEADLINE_S)
    assert line.waiter.get_nowait() is line.watched


def test_data_and_unwatched_clients_wake_no_thread(line: Line) -> None:
    hang_ups = HangUps()
    with hang_ups.watch(line.watched, line.waiter.put):
        line.client.sendall(b"GET / HTTP/1.1\r\n")
        assert line.server.recv(1, socket.MSG_PEEK) == b"G"
        hang_ups.step(0)
    line.client.close()
    hang_ups.step(0)
    assert line.waiter.empty()


def test_a_request_is_doubted_and_then_cancelled(line: Line, harness: TransportHarness) -> None:
    hang_ups = HangUps()
    transport = WatchedTransport(harness.transport, partial(hang_ups.watch, line.watched))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(transport.infer, harness.prepared(10))
        rung(harness)
        number, _ = harness.submitted()
        line.client.close()
        hang_ups.step(DEADLINE_S)
        hang_ups.step(DEADLINE_S)  # it was asked by the thread that waits
        with pytest.raises(CancelledError):
            answer.result(DEADLINE_S)
    assert [record[:2] for record in harness.records()] == [(2, number)] * 2


def test_a_connection_of_any_number_is_doubted(line: Line, harness: TransportHarness) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        high = socket.socket(fileno=fcntl.fcntl(line.server, fcntl.F_DUPFD_CLOEXEC, FIRST_UNSELECTABLE))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with line.server:
        line.serve_with(high)
    with high:
        test_a_request_is_doubted_and_then_cancelled(line, harness)


@pytest.mark.parametrize("is_answered", [False, True], ids=["answered later", "answered already"])
def test_the_reply_to_a_request_whose_thread_fails_is_released(harness: TransportHarness, *, is_answered: bool) -> None:
    def fail() -> bool:
        if is_answered:
            harness.say(number, b"oh", more=False)
        raise ValueError("as something unforeseen")

    with socket.socket() as connection, ThreadPoolExecutor(1) as pool:
        waiter: Waiter = queue.SimpleQueue()
        answer = pool.submit(harness.transport.infer, harness.prepared(10), None, waiter)
        rung(harness)
        number, _ = harness.submitted()
        waiter.put(WatchedClient(connection, fail))
        with pytest.raises(ValueError, match="unforeseen"):
            answer.result(DEADLINE_S)
    if not is_answered:
        assert [record[:2] for record in harness.records()] == [(2, number)] * 2
        harness.say(number, b"oh", more=False)
    assert harness.port.num_held == 0


def test_a_stream_is_watched_until_its_end(line: Line, harness: TransportHarness) -> None:
    hang_ups = HangUps()
    parts = WatchedTransport(harness.transport, partial(hang_ups.watch, line.watched)).stream(harness.prepared(10))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, parts)
        rung(harness)
        number, _ = harness.submitted()
        harness.say(number, b"oh", more=True, status=2)
        assert str(first.result(DEADLINE_S).error) == "oh"
        line.reset()
        hang_ups.step(DEADLINE_S)
        with pytest.raises(CancelledError):
            next(parts)
    assert [record[:2] for record in harness.records() if record[0] == 2] == [(2, number)]
    line.server.close()
