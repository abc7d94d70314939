"""frontend/http/relays.py: bytes between a client over TLS and the road, over real sockets; the test is the loop, and
the road."""

import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.frontend.addressed_sockets import RelayedSocket
from shoal.frontend.http.relays import Relays
from shoal.frontend.kept_memory import SEND_S
from shoal.frontend.lane_loop import LINGER_S
from shoal.frontend.tls.tls_socket import TlsSocket
from tests.certificates import Certificates
from tests.frontend.grpc.connection_pair import tls_ends
from tests.scarcity import no_descriptors_left

LARGE = bytes(range(256)) * (64 * 1024)  # 16 MiB: more than the sockets and the lane hold
DEADLINE_S = 60.0


class Loop:
    """A lane's loop with at most two relayed connections."""

    def __init__(self) -> None:
        self.poller = select.epoll()
        self.handed_over: list[tuple[RelayedSocket, bytes]] = []
        self.returned: list[tuple[TlsSocket, bytes]] = []
        sources: Any = self
        self.relays = Relays(self.poller, sources, 2, lambda client, data: self.returned.append((client, data)))
        self.now_s = 1000.0

    def hand_over(self, connection: RelayedSocket, data: bytes) -> None:
        """Like that of `ConnectionSources`; the test is the road."""
        connection.setblocking(False)
        self.handed_over.append((connection, data))

    def run_until(self, condition: Callable[[], object]) -> None:
        """Pass until the condition holds. An event that comes again and again is a fault."""
        num_events, ends_s = 0, time.monotonic() + DEADLINE_S
        while not condition():
            events = self.poller.poll(0.01)
            for fd, event in events:
                assert self.relays.serve(fd, event, self.now_s)
            num_events += len(events)
            assert num_events < 10_000, "the loop never rests"
            assert time.monotonic() < ends_s, "it never came"


class Relayed:
    """One connection that is relayed, or refused."""

    def __init__(self, loop: Loop, certificates: Certificates, data: bytes = b"") -> None:
        self.loop = loop
        self.ours, self.client = tls_ends(certificates)
        loop.relays.begin(self.ours, data, loop.now_s)
        self.road, self.data = loop.handed_over[-1]  # of a connection that is refused: another's
        self.client.setblocking(False)
        self.got = bytearray()  # by the client
        self.has_ended = False
        self.taken = bytearray()  # by the road
        self.is_over = False

    def read(self) -> bytes:
        """All that the client has received by now."""
        while not self.has_ended:
            try:
                piece = self.client.recv(65536)
            except ssl.SSLWantReadError:
                break
            self.got += piece
            self.has_ended = not piece
        return bytes(self.got)

    def take(self) -> bytes:
        """All that the road has received by now."""
        while not self.is_over:
            try:
                piece = self.road.recv(65536)
            except BlockingIOError:
                break
            self.taken += piece
            self.is_over = not piece
        return bytes(self.taken)

    def send_all(self, data: bytes) -> None:
        """Send these bytes to the lane, which passes meanwhile."""
        sent = 0
        while sent < len(data):
            try:
                sent += self.client.send(data[sent : sent + 65536])
            except ssl.SSLWantWriteError:
                self.loop.run_until(lambda: select.select([], [self.client], [], 0)[1])

    def fill_client(self) -> int:
        """Answer until the client's socket, the lane and the road's socket are full; the number of bytes."""
        sent = 0
        while True:
            try:
                sent += self.road.send(LARGE[sent : sent + 65536])
            except BlockingIOError:
                if not select.select([], [self.road], [], 0)[1] and not self.loop.poller.poll(0.05):
                    return sent
                self.loop.run_until(lambda: not self.loop.poller.poll(0))

    def fill_road(self) -> int:
        """Send until the road's socket, the lane and the client's socket are full; the number of bytes."""
        sent = 0
        while True:
            try:
                sent += self.client.send(LARGE[sent : sent + 16384])
            except ssl.SSLWantWriteError:
                if not select.select([], [self.client], [], 0)[1] and not self.loop.poller.poll(0.05):
                    return sent
                self.loop.run_until(lambda: not self.loop.poller.poll(0))


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    for relay in {*made.relays._open.values()}:
        made.relays._close(relay)
    for client, _ in made.returned:
        client.close()
    for road, _ in made.handed_over:
        road.close()
    made.poller.close()


@pytest.fixture
def relayed(loop: Loop, certificates: Certificates) -> Iterator[Relayed]:
    made = Relayed(loop, certificates, b"GET ")
    with made.client:
        yield made


def test_the_road_has_the_client_s_addresses_and_bytes(loop: Loop, relayed: Relayed) -> None:
    assert relayed.data == b"GET "
    assert relayed.road.getpeername() == relayed.client.getsockname()
    assert relayed.road.getsockname() == relayed.client.getpeername()
    relayed.client.send(b"/v2")
    loop.run_until(lambda: relayed.take() == b"/v2")
    relayed.road.send(b"HTTP/1.1 200 OK")
    loop.run_until(lambda: relayed.read() == b"HTTP/1.1 200 OK")
    assert not relayed.has_ended


def test_a_connection_is_given_back_with_all_that_the_road_has_not_read(loop: Loop, relayed: Relayed) -> None:
    relayed.client.send(b"onetwo")
    loop.run_until(lambda: select.select([relayed.road], [], [], 0)[0])
    assert relayed.road.recv(3) == b"one"
    relayed.road.send(b"the response")
    relayed.road.give_back()
    loop.run_until(lambda: loop.returned)
    assert loop.returned == [(relayed.ours, b"two")]
    assert relayed.ours.fileno() >= 0
    assert not len(loop.relays)
    assert select.select([relayed.client], [], [], DEADLINE_S)[0]
    assert relayed.read() == b"the response"
    assert not relayed.has_ended


def test_bytes_that_the_road_did_not_take_come_back_behind_those_that_it_did_not_read(
    loop: Loop, relayed: Relayed
) -> None:
    sent = relayed.fill_road()
    assert 65536 < sent < len(LARGE)  # the lane reads no more than it can pass on
    relayed.road.give_back()
    loop.run_until(lambda: loop.returned)
    [(client, data)] = loop.returned
    while len(data) < sent - 16384:  # of which the client's own TLS may hold a record
        assert select.select([client], [], [], DEADLINE_S)[0]
        try:
            data += client.recv(65536)
        except BlockingIOError:
            continue
    assert data == LARGE[: len(data)]


def test_a_road_that_dies_ends_the_connection(loop: Loop, relayed: Relayed) -> None:
    relayed.road.send(b"HTTP/1.1 200")
    relayed.road.close()
    loop.run_until(lambda: relayed.read() and relayed.has_ended)
    assert relayed.got == b"HTTP/1.1 200"
    assert len(loop.relays) == 1  # its client may still read
    loop.relays.expire(loop.now_s + LINGER_S)
    assert not len(loop.relays)
    assert not loop.returned


def test_a_client_that_goes_on_sending_can_read_the_refusal(loop: Loop, relayed: Relayed) -> None:
    relayed.road.send(b"HTTP/1.1 413")
    relayed.road.close()
    relayed.send_all(LARGE)
    loop.run_until(lambda: relayed.read() and relayed.has_ended)
    assert relayed.got == b"HTTP/1.1 413"
    relayed.client.close()
    loop.run_until(lambda: not len(loop.relays))


def test_a_client_that_has_sent_all_gets_its_response(loop: Loop, relayed: Relayed) -> None:
    relayed.client.send(b"/v2")
    socket.socket.shutdown(relayed.client, socket.SHUT_WR)  # in TCP's words alone
    loop.run_until(lambda: relayed.take() and relayed.is_over)
    assert relayed.taken == b"/v2"
    relayed.road.send(b"HTTP/1.1 200 OK")
    loop.run_until(lambda: loop.poller.poll(0) == [])
    loop.run_until(lambda: select.select([relayed.client], [], [], 0)[0])
    assert relayed.client.fileno() >= 0


def test_a_client_that_resets_the_connection_is_gone_for_the_road(loop: Loop, relayed: Relayed) -> None:
    relayed.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
    relayed.client.close()
    loop.run_until(lambda: not len(loop.relays))
    assert relayed.take() == b""
    assert relayed.is_over
    with pytest.raises(BrokenPipeError):
        relayed.road.send(b"HTTP/1.1 200 OK")


def test_a_slow_reader_holds_up_the_road_and_gets_all(loop: Loop, relayed: Relayed) -> None:
    sent = relayed.fill_client()
    assert sent < len(LARGE)
    while sent < len(LARGE):
        relayed.read()
        try:
            sent += relayed.road.send(LARGE[sent : sent + 65536])
        except BlockingIOError:
            loop.run_until(lambda: relayed.read() and select.select([], [relayed.road], [], 0)[1])
    relayed.road.close()
    loop.run_until(lambda: relayed.read() and relayed.has_ended)
    assert relayed.got == LARGE


def test_a_client_that_reads_nothing_is_closed_in_time(loop: Loop, relayed: Relayed) -> None:
    relayed.fill_client()
    loop.relays.expire(loop.now_s + SEND_S - 0.1)
    assert len(loop.relays) == 1
    loop.relays.expire(loop.now_s + SEND_S)
    assert not len(loop.relays)


def test_one_connection_too_many_is_refused(loop: Loop, certificates: Certificates) -> None:
    num_descriptors = len(os.listdir("/proc/self/fd"))
    made = [Relayed(loop, certificates) for _ in range(3)]
    refused = made[2]
    while not refused.has_ended:
        assert select.select([refused.client], [], [], DEADLINE_S)[0]
        refused.read()
    assert refused.got.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"2 connections with TLS" in refused.got
    assert len(loop.handed_over) == 2
    for each in made:
        each.client.close()
    loop.run_until(lambda: all(each.take() == b"" and each.is_over for each in made[:2]))
    for road, _ in loop.handed_over:
        road.close()
    loop.run_until(lambda: not len(loop.relays))
    assert len(os.listdir("/proc/self/fd")) == num_descriptors


def test_one_connection_too_many_can_read_why_though_it_goes_on_sending(loop: Loop, certificates: Certificates) -> None:
    kept = [Relayed(loop, certificates) for _ in range(2)]
    refused = Relayed(loop, certificates)
    refused.send_all(LARGE)
    loop.run_until(lambda: refused.read() and refused.has_ended)
    assert refused.got.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert len(loop.relays) == 3
    loop.relays.expire(loop.now_s + LINGER_S - 0.1)
    assert len(loop.relays) == 3
    loop.relays.expire(loop.now_s + LINGER_S)
    assert len(loop.relays) == 2
    for each in [*kept, refused]:
        each.client.close()


def test_of_refused_connections_the_oldest_make_room(loop: Loop, certificates: Certificates) -> None:
    made = [Relayed(loop, certificates) for _ in range(5)]
    assert len(loop.relays) == 4
    loop.run_until(lambda: all(each.read().startswith(b"HTTP/1.1 503 ") and each.has_ended for each in made[2:]))
    for each in made:
        each.client.close()
    loop.run_until(lambda: len(loop.relays) == 2)


def test_a_connection_that_cannot_be_relayed_for_lack_of_descriptors_is_refused(
    loop: Loop, certificates: Certificates
) -> None:
    ours, client = tls_ends(certificates)
    with no_descriptors_left():
        loop.relays.begin(ours, b"GET ", loop.now_s)
    answer = b""
    while piece := client.recv(65536):
        answer += piece
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"cannot be relayed: no file descriptor is left, a process of the server's may have 3. Raise" in answer
    client.close()
    loop.run_until(lambda: not len(loop.relays))


def test_a_connection_that_the_kernel_does_not_watch_is_refused(loop: Loop, certificates: Certificates) -> None:
    """Here the kernel watches it already. An OSError would end the lane, with all its connections."""
    ours, client = tls_ends(certificates)
    loop.poller.register(ours.fileno())
    loop.relays.begin(ours, b"GET ", loop.now_s)
    answer = b""
    while piece := client.recv(65536):
        answer += piece
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    client.close()
    assert (len(loop.relays), loop.handed_over) == (0, [])
