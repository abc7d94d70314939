"""A client's connection to a Unix socket, with addresses in the form of TCP's: code that tells endpoints, callers and
connections apart by their addresses needs no exception for it.

    of the listener   ("unix:/path", 0), as its endpoint's table has it
    of the client     ("127.0.0.1", 0): a caller on this machine, which it is; a proxy's headers count as over TCP

A socket without a name is no client's: it is one end of a pair, which a lane of gRPC has made.
"""

import socket
from typing import Any

from shoal.shared_settings import UNIX

_CLIENT = ("127.0.0.1", 0)


class UnixConnection(socket.socket):
    """An accepted connection of a Unix socket."""

    def getpeername(self) -> tuple[Any, ...]:
        """The address of a caller on this machine, which a client of a Unix socket is; its own address is empty."""
        return _CLIENT

    def getsockname(self) -> tuple[Any, ...]:
        """The address of the listener."""
        return f"{UNIX}{super().getsockname()}", 0


def with_addresses(accepted: socket.socket) -> socket.socket:
    """The connection as one with addresses, which then owns the descriptor; others as they are."""
    if accepted.family != socket.AF_UNIX or isinstance(accepted, UnixConnection) or not accepted.getsockname():
        return accepted
    timeout_s = accepted.gettimeout()
    connection = UnixConnection(fileno=accepted.detach())
    connection.settimeout(timeout_s)
    return connection
