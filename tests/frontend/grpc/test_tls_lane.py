"""frontend/grpc/tls_lane.py: the bounds of handshakes; real sockets, the test's clock, and the test as the loop."""

import logging
import os
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.grpc.tls_lane import GrpcTlsLane
from shoal.frontend.lane_loop import HEAD_S, LINGER_S, GunicornHandle
from shoal.frontend.tls.context import RenewedContext
from shoal.tls import server_context
from tests.certificates import Certificates
from tests.frontend.grpc.connection_pair import plain_ends
from tests.frontend.grpc.http2.peer import HEADERS, PLAIN_CALL, PREFACE, SETTINGS, frame
from tests.frontend.lane_star import Star

#: The headers of a call that infers.
INFER = PLAIN_CALL.replace(b"\4/s/M", b"\x2a/inference.GRPCInferenceService/ModelInfer")
#: The same with a list of 3.5 KiB, in a block that is too long to be remembered.
LARGE_INFER = INFER + b"\0\1n\x7f\xb9\x19" + b"y" * (0x7F + 0x39 + (0x19 << 7))


def calls(start: int, stop: int, block: bytes) -> bytes:
    """The headers of calls that have no message yet."""
    return b"".join([frame(HEADERS, 4, 2 * number + 1, block) for number in range(start, stop)])


class Client:
    """A client whose every step of the handshake is the test's."""

    def __init__(self, lane: "Lane", context: ssl.SSLContext) -> None:
        accepted, self.socket = plain_ends()
        self.fd = accepted.fileno()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        lane.lane._add(accepted, b"", is_new=True)
        self.accepted = lane.lane._handshakes._open[self.fd]

    def say_hello(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self.send(self._outgoing.read())

    def finish(self) -> None:
        """End the handshake with what the lane has answered, and begin to speak HTTP/2."""
        self._incoming.write(self.socket.recv(65536))
        self._tls.do_handshake()
        self._tls.write(PREFACE + frame(SETTINGS, 0, 0))
        self.send(self._outgoing.read())

    def send(self, data: bytes) -> None:
        """Returns when the lane can receive it."""
        self.socket.sendall(data)
        assert select.select([self.accepted], [], [], 60)[0]

    @property
    def is_shut_out(self) -> bool:
        """Whether the lane has closed the connection."""
        return self.accepted.fileno() < 0 and self.socket.recv(65536) == b""


class Lane:
    """A lane that may have forty connections, and so four handshakes, and its clients."""

    def __init__(self, certificates: Certificates) -> None:
        star = Star()
        place: Any = SimpleNamespace(port=star.port, request_timeout_s=60.0)
        front_end: Any = SimpleNamespace(state=star.state, place=place)
        files = str(certificates.server_cert), str(certificates.server_key)
        host = GunicornHandle([], -1, lambda: True, lambda: None)
        self.tls = RenewedContext(server_context(*files, "", False), ssl.create_default_context)
        self.lane = GrpcTlsLane(front_end, host, self.tls)
        self.lane._max_connections = 40
        self.lane._handshakes._max_num = 4
        self.lane.now_s = 1000.0
        self._context = ssl.create_default_context(cafile=certificates.root)
        self._context.set_alpn_protocols(["h2"])
        self.clients: list[Client] = []

    def connect(self, count: int) -> list[Client]:
        connected = [Client(self, self._context) for _ in range(count)]
        self.clients += connected
        return connected

    def run_pass(self) -> None:
        """One pass of the loop."""
        for fd, event in self.lane._poller.poll(0):
            connection = self.lane._connections.get(fd)
            if connection is None:
                self.lane._on_other(fd, event)
            else:
                self.lane._serve(connection, event)
        self.lane._finish_pass()

    @property
    def connections(self) -> dict[int, GrpcConnection]:
        return self.lane._connections


@pytest.fixture
def lane(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("SHOAL_SEND_FD", str(ours.detach()))
    lane = Lane(certificates)
    with theirs:
        yield lane
    for client in lane.clients:
        client.socket.close()
    lane.lane._handshakes.close()
    for connection in list(lane.connections.values()):
        lane.lane.close(connection)
    lane.lane._sources.end()


def test_a_client_has_a_place_among_connections_when_its_handshake_is_complete(lane: Lane) -> None:
    (client,) = lane.connect(1)
    client.say_hello()
    lane.run_pass()
    assert not lane.connections
    assert not lane.lane._is_idle
    client.finish()
    lane.run_pass()
    connection = lane.connections[client.fd]
    assert connection.peer == "127.0.0.1"
    assert connection.silent_until_s == 0.0  # its preface has been read: it came along with the handshake's end


def test_who_stalls_is_shut_out_in_time_and_costs_one_line_at_most_a_second(
    lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    stalled = lane.connect(3)
    for client in stalled[:2]:
        client.send(b"\x16\3\1")
    lane.run_pass()
    for late_s, shut_out in ((HEAD_S - 0.1, False), (HEAD_S, True)):
        lane.lane.now_s = 1000.0 + late_s
        lane.lane._tick()
        assert [client.is_shut_out for client in stalled] == [shut_out] * 3
    lane.lane.now_s += 1.0
    lane.lane._tick()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    start = "TLS handshakes of gRPC's clients that failed: 1, the last from 127.0.0.1: it was not complete in time"
    assert lines == [start, start]  # who has never said anything is no handshake that failed
    assert list(lane.lane._port.noted) == [0, 2, 0]


def test_the_oldest_handshake_makes_room(lane: Lane) -> None:
    clients = lane.connect(6)
    assert [client.is_shut_out for client in clients] == [True, True, False, False, False, False]


def test_so_many_steps_of_handshakes_in_one_pass(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.frontend.tls.handshakes._MAX_STEPS", 2)
    clients = lane.connect(4)
    for client in clients:
        client.say_hello()
    for num_heard in (2, 4):
        lane.run_pass()
        assert sum(client.accepted.has_spoken for client in clients) == num_heard


def test_a_stopping_lane_waits_for_handshakes_for_as_long_as_for_idle_clients(lane: Lane) -> None:
    early, late = lane.connect(2)
    early.say_hello()
    lane.run_pass()
    lane.lane._stops_at_s = lane.lane.now_s + 30.0
    lane.lane._begin_to_stop()
    early.finish()
    lane.run_pass()
    assert lane.connections[early.fd].is_ending
    lane.lane.now_s += LINGER_S
    lane.lane._tick()
    assert late.is_shut_out
    assert not lane.lane._handshakes


def test_an_end_of_a_pair_that_cannot_be_watched_is_not_kept(lane: Lane) -> None:
    """Here the kernel watches it already."""
    ours, theirs = socket.socketpair()
    listener: Any = SimpleNamespace(fd=ours.fileno())
    with ours, theirs:
        lane.lane._poller.register(ours)
        with pytest.raises(FileExistsError):
            lane.lane.listen(listener)
        assert lane.lane._listeners == {}


@pytest.mark.parametrize("add", [GrpcTlsLane._add, GrpcLane._add], ids=["handshake", "connection"])
def test_a_client_whom_the_kernel_does_not_watch_is_closed(
    lane: Lane, add: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Here the kernel watches it already. An OSError would end the lane, with all its connections."""
    accepted, client = plain_ends()
    lane.lane._poller.register(accepted.fileno())
    add(lane.lane, accepted, b"", is_new=True)
    with client:
        assert client.recv(1) == b""
    assert (len(lane.lane._handshakes), lane.connections) == (0, {})
    assert "File exists" in caplog.text


def test_a_listener_that_the_kernel_does_not_watch_is_tried_again(lane: Lane) -> None:
    sources, poller = lane.lane._sources, lane.lane._poller
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sources._listeners = {listener.fileno(): listener}
        poller.register(listener.fileno())
        sources.open()
        assert not sources._is_open
        sources.resume()
        assert sources._is_open
        assert sources.accept(listener.fileno()) == []
        poller.unregister(listener.fileno())
        sources._listeners = {}


def test_a_standstill_of_the_machine_takes_none_of_the_time_that_a_stopping_lane_has(lane: Lane) -> None:
    lane.connect(1)
    lane.lane._is_alive = lambda: False
    assert not lane.lane._is_done(30.0)
    for passed_s in (1000.0, *[1.0] * 27):
        lane.lane.now_s += passed_s
        assert not lane.lane._is_done(30.0)
    lane.lane.now_s += 1.0
    assert lane.lane._is_done(30.0), "a pass may take two seconds, so much of the thousand counts"


@pytest.mark.parametrize(
    ("bound", "most", "block", "nums"),
    [("MAX_STREAMS", 32, INFER, (16, 16)), ("MAX_HEADER_BYTES", 64 * 1024, LARGE_INFER, (8, 8))],
    ids=["streams", "headers"],
)
def test_connections_share_what_a_lane_may_have_open(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, block: bytes, nums: tuple[int, int]
) -> None:
    """Each of two may have half of it, whatever the other has: that loses what it has beyond, or does not take."""
    monkeypatch.setattr(f"shoal.frontend.grpc.open_streams.{bound}", most)
    clients = lane.connect(2)
    for client in clients:
        client.say_hello()
    lane.run_pass()
    for client in clients:
        client.finish()
    lane.run_pass()
    busy, other = (lane.connections[client.fd] for client in clients)

    def call(connection: GrpcConnection, start: int, stop: int) -> int:
        lane.lane._handle(connection, connection.http2.receive(calls(start, stop, block), lane.lane.now_s))
        lane.lane._tick()
        lane.lane._finish_pass()
        return len(connection.http2.streams.open)

    num_kept, num_others = nums
    assert call(busy, 0, 24) == (24 if block is INFER else num_kept)
    assert call(busy, 24, 25) <= 24
    assert call(other, 0, 17) == num_others
    lane.lane._tick()
    lane.lane._finish_pass()
    assert len(busy.http2.streams.open) == num_kept, "its last calls ended, which had no messages"
    busy.close()
    del lane.connections[busy.fd]
    lane.lane._tick()
    assert call(other, 17, 60) > num_others


def test_certificates_are_renewed_for_handshakes_from_then_on(lane: Lane) -> None:
    before, renewed = lane.tls.context, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    answers: list[Any] = [OSError("broken"), ValueError("odd"), renewed]

    def read() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lane.tls._read = read
    for expected in (before, before, renewed):
        lane.lane._renew_certificates()
        lane.tls.renewals.join()
        assert lane.tls.context is expected


def test_a_disk_that_hangs_under_renewed_certificates_keeps_no_client_waiting(lane: Lane, tmp_path: Path) -> None:
    """The file is a pipe: to open it for reading waits for a writer."""
    os.mkfifo(tmp_path / "key.pem")
    renewed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def read() -> ssl.SSLContext:
        (tmp_path / "key.pem").read_bytes()
        return renewed

    lane.tls._read = read
    lane.lane._renew_certificates()
    (client,) = lane.connect(1)
    client.say_hello()
    lane.run_pass()
    client.finish()
    lane.run_pass()
    assert client.fd in lane.connections
    (tmp_path / "key.pem").write_bytes(b"")
    lane.tls.renewals.join()
    assert lane.tls.context is renewed
