"""Unix sockets with addresses in the form of TCP's: code that tells endpoints, clients and connections apart by their
addresses needs no exception for Unix sockets.

One kind is a client's connection to a Unix socket. The other is the road's end of a connection that a lane relays,
since TLS ends in the lane: such a connection is a pair of Unix sockets and a *note*. The road uses its end as if it
were the client's own socket. The note is a file in memory by which the road gives an idle connection back: the road
writes into it the bytes that it has received and not parsed, then closes its end, upon which the lane reads the note.
An empty note says that the connection is over; the note is also empty if the road has died.
"""

import os
import socket
from typing import Any

from shoal.shared_settings import UNIX

#: The first byte of a note that gives a connection back; an empty note says that the connection is over.
_GOES_ON = b"\1"
#: Time limit of one recv or send of a thread of the road's, as a listener's connections have (supervisor/processes/
#: listeners.py): a client that does not read must hold no thread.
_TIMEOUT_S = 10
#: The most bytes of one read.
_READ_BYTES = 64 * 1024


class RelayedSocket(socket.socket):
    """The road's end of a relayed connection; its addresses are the client's and the listener's."""

    def __init__(self, fd: int, client: tuple[Any, ...], server: tuple[Any, ...], note: int) -> None:
        """Takes over the descriptors of the socket (`fd`) and of the note, which `close` closes."""
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self.client, self.server = client, server
        self.note = note  # -1 once closed

    def getpeername(self) -> tuple[Any, ...]:
        return self.client

    def getsockname(self) -> tuple[Any, ...]:
        """The address of the listener that the client has connected to."""
        return self.server

    def give_back(self) -> None:
        """Give an idle connection back to its lane, and close this end. Never blocks; bytes that the lane sends
        meanwhile stay with the lane."""
        try:
            self.shutdown(socket.SHUT_RD)
            self.setblocking(False)
            note = _GOES_ON
            while data := self.recv(_READ_BYTES):
                note += data
            os.write(self.note, note)
        except OSError:
            """The lane is gone, and its client with it."""
        self.close()

    def close(self) -> None:
        """Close this end and the note."""
        super().close()
        if self.note >= 0:
            os.close(self.note)
            self.note = -1


def make_pair(client: tuple[Any, ...], server: tuple[Any, ...]) -> tuple[socket.socket, RelayedSocket, int]:
    """A lane's end, which does not block, the road's end, and the lane's descriptor of the note."""
    ours, theirs = socket.socketpair()
    try:
        note = os.memfd_create("shoal relay", os.MFD_CLOEXEC)
        road_note = os.dup(note)
    except OSError:
        ours.close()
        theirs.close()
        raise
    ours.setblocking(False)
    timeval = _TIMEOUT_S.to_bytes(8, "little") + bytes(8)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    return ours, RelayedSocket(theirs.detach(), client, server, road_note), note


def read_note(note: int) -> bytes | None:
    """The bytes of a connection that the road received and did not parse; None if the connection is over. For the lane,
    once the road has closed its end."""
    text = os.pread(note, os.fstat(note).st_size, 0)
    return text[1:] if text.startswith(_GOES_ON) else None


_CLIENT = ("127.0.0.1", 0)


class UnixConnection(socket.socket):
    """An accepted connection of a Unix socket, with addresses in the form of TCP's."""

    def getpeername(self) -> tuple[Any, ...]:
        """An address of this machine, where the client of a Unix socket is; the kernel's address of that client is
        empty. So a Unix client counts as local unless a proxy's headers say otherwise, as over TCP."""
        return _CLIENT

    def getsockname(self) -> tuple[Any, ...]:
        """The address of the listener, as its endpoint's table has it: ("unix:/path", 0)."""
        return f"{UNIX}{super().getsockname()}", 0


def with_addresses(accepted: socket.socket) -> socket.socket:
    """A connection to a Unix listener as a UnixConnection, which then owns the descriptor. Other connections are
    returned as they are: those of TCP, and ends of socket pairs, which have no name and come from gRPC lanes."""
    if accepted.family != socket.AF_UNIX or isinstance(accepted, UnixConnection) or not accepted.getsockname():
        return accepted
    timeout_s = accepted.gettimeout()
    connection = UnixConnection(fileno=accepted.detach())
    connection.settimeout(timeout_s)
    return connection
