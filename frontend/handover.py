"""Connections from one process to another: the descriptor and the bytes that were read of it, in one message.

Two pairs of datagram sockets, made by the supervisor: lanes send to the road what they will not do, the road sends back
what is idle again. A message goes to exactly one of the processes that read a socket. Nothing here blocks.
"""

import array
import logging
import socket
from collections import deque

_log = logging.getLogger("shoal")

#: What may have been read before a hand-over: a head, and the beginning of a body. Fits into a socket's buffer.
MAX_BYTES = 128 * 1024


class Sender:
    """Gives connections away, in order. What does not fit into the socket waits here; `wants_to_write` says so."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # Changed by send and flush.
        self._waiting: deque[tuple[socket.socket, bytes]] = deque()

    def fileno(self) -> int:
        """For selectors."""
        return self._channel.fileno()

    def close(self) -> None:
        """Nothing is given away any more."""
        self._channel.close()

    @property
    def wants_to_write(self) -> bool:
        """Whether `flush` should be called once the socket can be written."""
        return bool(self._waiting)

    def send(self, connection: socket.socket, data: bytes) -> None:
        """Give `connection` away; it is closed here. `data` is what was read of it and not yet used."""
        self._waiting.append((connection, data))
        self.flush()

    def flush(self) -> None:
        """Send as much of what waits as the socket takes."""
        while self._waiting:
            connection, data = self._waiting[0]
            rights = array.array("i", [connection.fileno()])
            try:
                # A datagram of no bytes would be read as the end of something.
                self._channel.sendmsg([b"\0", data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except BlockingIOError:
                return
            except OSError as error:  # it would stand in everybody's way for ever
                _log.error("a connection is closed, since it cannot be handed over: %s", error)
            self._waiting.popleft()
            connection.close()


def receive(channel: socket.socket) -> tuple[socket.socket, bytes] | None:
    """The next connection and what was read of it; None where another process took it, or there is none."""
    try:
        data, ancillary, flags, _ = channel.recvmsg(MAX_BYTES + 1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload)
    if flags & socket.MSG_CTRUNC:
        _log.error("a connection is lost on its way from one process to another: no file descriptor is left for it")
    return (socket.socket(fileno=fds[0]), data[1:]) if fds else None
