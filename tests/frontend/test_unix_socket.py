"""Connections of Unix sockets among others: which have addresses, and which are pairs of a lane's own."""

import socket
from pathlib import Path

from shoal.frontend.addressed_sockets import UnixConnection, with_addresses


def test_a_clients_connection_has_addresses_and_keeps_its_descriptor(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen()
        client.connect(path)
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        fd = accepted.fileno()
        with with_addresses(accepted) as connection:
            assert (connection.fileno(), accepted.fileno(), connection.gettimeout()) == (fd, -1, 0.0)
            assert connection.getsockname() == (f"unix:{path}", 0)
            assert connection.getpeername() == ("127.0.0.1", 0)
            assert with_addresses(connection) is connection
            client.sendall(b"x")
            assert connection.recv(1) == b"x"


def test_a_pair_and_tcp_stay_as_they_are() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert with_addresses(one) is one  # the road takes it for a lane's tunnel
        assert not isinstance(one, UnixConnection)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert with_addresses(accepted) is accepted
