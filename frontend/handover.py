"""The hand-over of connections between processes: the descriptor and the bytes that were read from it, in one message.

The supervisor makes two pairs of datagram sockets: through one, lanes send the road connections that they will not
serve; through the other, the road sends idle connections back. A message goes to exactly one of the processes that read
a socket. Bytes that are too many for a message are sent in a file in memory, whose descriptor is in the message. Of a
connection with TLS, which ends in its lane, the road gets the end of a socket pair (addressed_sockets.py). Never
blocks.
"""

import array
import json
import logging
import os
import socket
from collections import deque

from shoal.frontend.addressed_sockets import RelayedSocket, with_addresses

_log = logging.getLogger("shoal")

#: Most bytes of a connection that a message itself holds: a head and a small body. A socket's buffer takes three such
#: messages; a message larger than the buffer could not be sent at all.
MAX_BYTES = 64 * 1024
#: The descriptors of a message: the connection, the note if the connection is relayed, and the file with its bytes if
#: they are not in the message.
_MAX_FDS = 3
#: A message's first byte. For a relayed connection it is followed by a length in two bytes, and by JSON of that length
#: with the two addresses.
_OWN, _RELAYED = b"\0", b"\1"
_MAX_ADDRESSES_BYTES = 1024


class Sender:
    """The sending end, which gives connections away in their order. Connections whose messages do not fit into the
    socket's buffer wait here; see `wants_to_write`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # The fields below are changed by send and flush.
        self._waiting: deque[tuple[socket.socket, bytes]] = deque()
        #: Bytes, read from the connections that wait here, that will go with them.
        self.waiting_nbytes = 0

    def fileno(self) -> int:
        return self._channel.fileno()

    def close(self) -> None:
        self._channel.close()

    @property
    def wants_to_write(self) -> bool:
        """Whether `flush` must be called once the socket can be written."""
        return bool(self._waiting)

    def send(self, connection: socket.socket, data: bytes) -> None:
        """Give `connection` away, and close it in this process. `data` are bytes that were read from it and not
        used."""
        self._waiting.append((connection, data))
        self.waiting_nbytes += len(data)
        self.flush()

    def flush(self) -> None:
        """Send as many of the waiting connections as the socket takes."""
        while self._waiting:
            connection, data = self._waiting[0]
            try:
                _send(self._channel, connection, data)
            except BlockingIOError:
                return
            except OSError as error:  # this connection is dropped: later ones would wait behind it for ever
                _log.error("a connection is closed, since it cannot be handed over: %s", error)
            self._waiting.popleft()
            self.waiting_nbytes -= len(data)
            connection.close()


def _send(channel: socket.socket, connection: socket.socket, data: bytes) -> None:
    fds = array.array("i", [connection.fileno()])
    start = _OWN
    if isinstance(connection, RelayedSocket):
        fds.append(connection.note)
        addresses = json.dumps([connection.client, connection.server]).encode()
        start = _RELAYED + len(addresses).to_bytes(2, "little") + addresses
    file = -1
    try:
        if len(data) > MAX_BYTES:
            file = os.memfd_create("shoal handover", os.MFD_CLOEXEC)
            _write(file, data)
            fds.append(file)
            data = b""
        # `start` has a byte at least: the receiver would take an empty datagram for the end of the file.
        channel.sendmsg([start, data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    finally:
        if file >= 0:
            os.close(file)


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(channel: socket.socket) -> tuple[socket.socket, bytes] | None:
    """The next connection and the bytes read from it; None if another process took it, or there is none. Raises OSError
    if the channel is broken.

    A connection of whose descriptors some did not arrive, since this process has none left, is closed: its bytes are
    lost.
    """
    while True:
        try:
            data, ancillary, flags, _ = channel.recvmsg(
                MAX_BYTES + 3 + _MAX_ADDRESSES_BYTES, socket.CMSG_SPACE(4 * _MAX_FDS), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
        try:
            if flags & socket.MSG_CTRUNC or not fds:
                raise OSError("no file descriptor is left")
            if flags & socket.MSG_TRUNC:
                raise OSError("the message that hands it over was cut")
            connection, data, num_used = _unpack(data, fds)
        except OSError as error:
            _log.error("a connection is closed, since it cannot be taken over: %s", error)
            for fd in fds:
                os.close(fd)
            continue
        for fd in fds[num_used:]:
            os.close(fd)
        return connection, data


def _unpack(message: bytes, fds: "array.array[int]") -> tuple[socket.socket, bytes, int]:
    """The connection of a message, its bytes, and how many of the descriptors the connection owns. If it raises
    OSError, the connection owns none."""
    if message[:1] == _OWN:
        data = message[1:] if len(fds) == 1 else _read(fds[1])
        return with_addresses(socket.socket(fileno=fds[0])), data, 1
    end = 3 + int.from_bytes(message[1:3], "little")
    data = message[end:] if len(fds) == 2 else _read(fds[2])
    client, server = json.loads(message[3:end])
    return RelayedSocket(fds[0], tuple(client), tuple(server), fds[1]), data, 2


def _read(file: int) -> bytes:
    nbytes = os.fstat(file).st_size
    data = os.pread(file, nbytes, 0)
    if len(data) < nbytes:
        raise OSError(f"{len(data)} of {nbytes} bytes could be read")
    return data
