"""frontend/handover.py: connections change hands over real sockets, with what was read of them, none lost or kept."""

import gc
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from shoal.frontend.handover import MAX_BYTES, Sender, receive
from tests.scarcity import no_descriptors_left

Channel = tuple[socket.socket, socket.socket]


@pytest.fixture(autouse=True)
def _descriptors_are_balanced() -> Iterator[None]:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def channel() -> Iterator[Channel]:
    """The reading and the writing end, as the supervisor makes them."""
    reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reading.setblocking(False)
    writing.setblocking(False)
    with reading, writing:
        yield reading, writing


@pytest.fixture
def sender(channel: Channel) -> Sender:
    return Sender(channel[1])


def accepted() -> tuple[socket.socket, socket.socket]:
    """A client's end of a TCP connection and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 5.0)
        return client, listener.accept()[0]


def give(sender: Sender, data: bytes) -> socket.socket:
    """Give a connection away; what the client's end is left with."""
    client, server = accepted()
    sender.send(server, data)
    return client


def taken(channel: Channel) -> bytes | None:
    """What came with the next connection, which is closed."""
    received = receive(channel[0])
    if received is None:
        return None
    received[0].close()
    return received[1]


def test_descriptor_and_bytes_arrive(channel: Channel, sender: Sender) -> None:
    client, server = accepted()
    client.sendall(b" HTTP/1.1")
    sender.send(server, b"GET /")
    assert server.fileno() == -1
    received = receive(channel[0])
    assert received is not None
    connection, data = received
    with client, connection:
        assert (data, connection.recv(99)) == (b"GET /", b" HTTP/1.1")
        assert connection.getpeername() == client.getsockname()
        assert not os.get_inheritable(connection.fileno())
        connection.sendall(b"HTTP/1.1 200 OK")
        assert client.recv(99) == b"HTTP/1.1 200 OK"
    assert receive(channel[0]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0data\xff\r\n",
        bytes(range(256)) * 256,
        bytes(range(256)) * 256 + b"x",
        bytes(range(256)) * 512 + b"x",
        bytes(range(256)) * 830,
        bytes(range(256)) * 8192,
    ],
    ids=["none", "zero", "any", "64 KiB", "one more", "128 KiB and one", "207 KiB", "2 MiB"],
)
def test_bytes_arrive_as_they_are(channel: Channel, sender: Sender, data: bytes) -> None:
    with give(sender, data):
        assert taken(channel) == data


def test_order_is_kept(channel: Channel, sender: Sender) -> None:
    clients = [give(sender, b"%d" % number) for number in range(50)]
    assert not sender.wants_to_write
    assert [taken(channel) for _ in clients] == [b"%d" % number for number in range(50)]
    assert receive(channel[0]) is None
    for client in clients:
        client.close()


def test_what_a_full_socket_does_not_take_waits_in_order(channel: Channel, sender: Sender) -> None:
    sent = [b"%d" % number + bytes(60_000) for number in range(12)]
    clients = [give(sender, data) for data in sent]
    assert sender.wants_to_write
    assert sender.fileno() == channel[1].fileno()
    received = []
    while (data := taken(channel)) is not None:
        received.append(data)
    num_fitting = len(received)
    assert 0 < num_fitting < 12
    assert sender.wants_to_write
    while sender.wants_to_write:
        sender.flush()
        while (data := taken(channel)) is not None:
            received.append(data)
    assert received == sent
    sender.flush()
    assert receive(channel[0]) is None
    for client in clients:
        client.close()


def test_flush_into_a_full_socket_changes_nothing(channel: Channel, sender: Sender) -> None:
    clients = [give(sender, bytes(60_000)) for _ in range(6)]
    sender.flush()
    sender.flush()
    num_received = 0
    while sender.wants_to_write or num_received < 6:
        num_received += taken(channel) is not None
        sender.flush()
    assert (num_received, receive(channel[0])) == (6, None)
    for client in clients:
        client.close()


def test_a_connection_whose_client_has_gone_arrives_too(channel: Channel, sender: Sender) -> None:
    client, server = accepted()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()  # a reset
    sender.send(server, b"GET")
    assert taken(channel) == b"GET"


def test_what_is_cut_on_its_way_is_closed_and_said_and_the_next_arrives(
    channel: Channel, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """A process without a free descriptor is given none: the kernel says that the message was cut."""
    with give(sender, b"lost") as lost:
        with no_descriptors_left():
            assert receive(channel[0]) is None
        assert "cannot be taken over" in caplog.text
        lost.settimeout(5.0)
        assert lost.recv(1) == b""
    with give(sender, bytes(MAX_BYTES + 1)):
        assert taken(channel) == bytes(MAX_BYTES + 1)


def test_nothing_is_none_and_so_is_a_message_without_a_connection(channel: Channel) -> None:
    assert receive(channel[0]) is None
    channel[1].send(b"\0data")
    assert receive(channel[0]) is None


def test_two_readers_share_each_to_exactly_one(channel: Channel, sender: Sender) -> None:
    sent = [b"%d" % number for number in range(100)]
    clients = [give(sender, data) for data in sent]
    assert not sender.wants_to_write
    shares: list[list[bytes]] = [[], []]
    start = threading.Barrier(2)

    def drain(reading: socket.socket, share: list[bytes]) -> None:
        start.wait()
        with reading:
            while (data := taken((reading, reading))) is not None:
                share.append(data)

    threads = [threading.Thread(target=drain, args=(channel[0].dup(), share)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(shares[0] + shares[1]) == sorted(sent)
    assert [share == sorted(share, key=int) for share in shares] == [True, True]
    for client in clients:
        client.close()


def test_a_connection_for_which_there_is_no_descriptor_is_lost_and_said_so(
    channel: Channel, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    client = give(sender, b"x")
    with no_descriptors_left():
        assert receive(channel[0]) is None
    assert "no file descriptor is left" in caplog.text
    assert client.recv(1) == b""
    client.close()
