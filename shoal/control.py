"""The control plane: one Unix socket, msgpack messages, descriptors beside them.

The supervisor listens; every other process connects once, and is sent the state that it needs, then every change. The
messages are in shoal/messages. A message that has a sequence number is acknowledged when it has been applied: no record
that names a segment is sent to a process before the process has acknowledged the segment. The end of a connection
reports a death, on either side. The socket's address is abstract, random, and open to the same user only, so no file is
left behind.
"""

import array
import errno
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from shoal.messages.from_client import GuestConnected
from shoal.messages.message import Kinds, M, Message, MessageError, encode
from shoal.messages.shared import Acknowledged
from shoal.open_files import explain, limit, num_open

#: The variable from which a child process has the supervisor's address.
ADDRESS_VARIABLE = "SHOAL_CONTROL"
#: The beginning of a supervisor's address; its pid and a random number follow.
ADDRESS_PREFIX = "shoal-"
#: A larger message travels as a memfd: a socket's buffer holds 200 KB, and a model configuration may be larger.
MAX_INLINE_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_DESCRIPTORS = 8
#: The errors by which a child notices its supervisor's death: the end of file or, when it joins or sends, a refused
#: connection, a broken pipe, or a reset, if the supervisor had not read all. The child then ends.
GONE = (EOFError, ConnectionError)

_PEERCRED = struct.Struct("3i")
_NO_PEER = -1  # the user id at the other end of a socket that is not connected
_TIMEVAL = struct.Struct("ll")  # seconds, microseconds


class Channel:
    """A control connection: messages in both directions, whole and in order."""

    def __init__(self, connection: socket.socket, *, is_guests: bool = False) -> None:
        """`is_guests`: the peer is an untrusted client, whose messages of more than MAX_INLINE_BYTES are refused."""
        self._socket = connection
        self._is_guests = is_guests

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        """Make this channel blocking or not; a non-blocking one raises BlockingIOError where there is no message."""
        self._socket.setblocking(blocking)

    def set_deadline(self, deadline_s: float | None) -> None:
        """Limit each later wait of a blocking channel to the seconds that are now left until a monotonic time: `send`
        and `receive` raise TimeoutError when these are over. None: no limit."""
        self._socket.settimeout(None if deadline_s is None else max(0.001, deadline_s - time.monotonic()))

    def send(self, message: Message, seq: int = 0) -> None:
        """Send a message, with duplicates of its descriptors; the peer acknowledges a sequence number other than 0.

        Raises OSError where the peer has ended or does not read.
        """
        self.send_encoded(*encode(message, seq))

    def send_encoded(self, body: bytes, fds: Sequence[int]) -> None:
        """Send a message that `encode` has encoded. Raises OSError where the peer has ended or does not read."""
        if len(body) <= MAX_INLINE_BYTES:
            self._send(b"\x00" + body, fds)
            return
        spilled = os.memfd_create("shoal-message", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(spilled, 0, len(body))
            os.pwrite(spilled, body, 0)
            self._send(b"\x01", [*fds, spilled])
        finally:
            os.close(spilled)

    def _send(self, data: bytes, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.sendmsg([data], rights)

    def receive(self, kinds: Kinds[M]) -> tuple[M, int]:
        """The next message, one of these kinds, and its sequence number; the caller closes its descriptors.

        Raises EOFError when the peer has closed the connection, or a message is cut short; MessageError for any other
        message, as user code in a worker may send one; BlockingIOError where none has arrived.
        """
        data, fds = self._receive()
        try:
            if not data:
                raise EOFError("the control connection is closed")
            body = memoryview(data)[1:] if data[0] == 0 else self._read_spilled(fds)
            return kinds.decode(body, fds)
        except (EOFError, MessageError):
            for fd in fds:
                os.close(fd)
            raise

    def _read_spilled(self, fds: list[int]) -> bytes:
        """The body of a large message, from the memfd that is its last descriptor. Raises MessageError."""
        if self._is_guests or not fds:
            raise MessageError("a message that is too large, or has no body")
        spilled = fds.pop()
        try:
            return os.pread(spilled, MAX_MESSAGE_BYTES, 0)
        except OSError as error:
            raise MessageError(f"a large message cannot be read: {error}") from error
        finally:
            os.close(spilled)

    def _receive(self) -> tuple[bytes, list[int]]:
        limits = MAX_INLINE_BYTES + 1, socket.CMSG_SPACE(MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(*limits)
        except ConnectionResetError:
            # The peer closed before reading all. Linux reports that once, ahead of the peer's messages or the end.
            data, ancillary, flags, _ = self._socket.recvmsg(*limits)
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // 4 * 4])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            # Descriptors for which no number is left are dropped by the kernel (recvmsg(2), MSG_CTRUNC).
            is_scarce = flags & socket.MSG_CTRUNC and num_open() >= limit()
            for fd in fds:
                os.close(fd)
            why = f": {explain(OSError(errno.EMFILE, ''))}" if is_scarce else ""
            raise EOFError(f"a control message was cut short{why}")
        return data, fds.tolist()

    def acknowledge(self, seq: int) -> None:
        """Acknowledge the message with this sequence number, which has been applied; 0 needs no acknowledgement."""
        if seq:
            self.send(Acknowledged(seq))

    def is_hung_up(self) -> bool:
        """Whether the peer is known to have closed its end; there may be messages left to receive."""
        return self._polls(select.POLLRDHUP)

    def is_readable(self) -> bool:
        """Whether `receive` would not wait: there is a message, or the peer's end."""
        return self._polls(select.POLLIN)

    def _polls(self, event: int) -> bool:
        poller = select.poll()
        poller.register(self.fileno(), event)
        return bool(poller.poll(0))

    def shutdown(self) -> None:
        """Shut the connection down, from any thread: a thread that waits for a message gets EOFError."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listener:
    """The supervisor's listening socket: accepts processes of the same user, and root's unless they are guests."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    @classmethod
    def create(cls) -> "Listener":
        """Listen on a fresh random address in the abstract namespace: there is no file to remove."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(f"\0{ADDRESS_PREFIX}{os.getpid()}-{os.urandom(16).hex()}")
        listening.listen(64)
        listening.setblocking(False)
        return cls(listening)

    @classmethod
    def adopt(cls, listening: socket.socket) -> "Listener":
        """Listen on a socket that listens already."""
        listening.setblocking(False)
        return cls(listening)

    @property
    def address(self) -> str:
        """The address for a child's environment; `@` stands for the leading zero byte."""
        return "@" + str(self._socket.getsockname()[1:], "ascii")

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._socket.fileno()

    @classmethod
    def at(cls, path: str) -> "Listener":
        """Listen to guests on a socket in the file system, open to the same user only. Replaces a socket without a
        listener; raises OSError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with suppress(FileNotFoundError):
                remove_left_over(path)
            listening.bind(path)
            os.chmod(path, 0o600)
            listening.listen(64)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        return cls(listening)

    def accept(self, *, is_guests: bool = False) -> tuple[Channel, int] | None:
        """The next connection, non-blocking, and its process's pid as the kernel knows it; None for another user's.
        Root's processes are accepted, too, except as guests."""
        connection, _ = self._socket.accept()
        pid, uid = peer_of(connection)
        if uid != os.geteuid() and (is_guests or uid != 0):
            connection.close()
            return None
        connection.setblocking(False)
        return Channel(connection, is_guests=is_guests), pid

    def close(self) -> None:
        """Close the listening socket."""
        self._socket.close()


def remove_left_over(path: str) -> None:
    """Remove the socket of a killed server. Raises FileNotFoundError without one, FileExistsError where a server
    listens, or the path is no socket."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "it is a file, not a socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # a server listens, and has not accepted for long
    raise FileExistsError(errno.EEXIST, "another server listens there", path)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel knows them."""
    pid, uid, _ = _PEERCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    return pid, uid


def connect_guest(path: str, deadline_s: float) -> Channel:
    """Connect this process, a user's, to the server that listens at `path`. Blocking until a monotonic time at most,
    which stays the channel's deadline.

    Raises OSError where no server listens, PermissionError where the server is another user's, TimeoutError where too
    many connections wait for the server to accept them.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _connect_by(connection, path, deadline_s)
        if peer_of(connection)[1] != os.geteuid():
            raise PermissionError(errno.EPERM, "the server is another user's", path)
    except OSError:
        connection.close()
        raise
    channel = Channel(connection)
    channel.set_deadline(deadline_s)
    with suppress(BrokenPipeError):  # the server has refused this process, and closed
        channel.send(GuestConnected())
    return channel


def _connect_by(connection: socket.socket, path: str, deadline_s: float) -> None:
    """Connect a blocking socket. A Unix socket waits for a place among the connections to accept only while it blocks,
    and then for SO_SNDTIMEO (unix(7): EAGAIN). Where a signal ends that wait, Python takes the socket for connected."""
    uid = _NO_PEER
    while uid == _NO_PEER:
        left_us = max(1, int((deadline_s - time.monotonic()) * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(*divmod(left_us, 1_000_000)))
        try:
            connection.connect(path)
        except BlockingIOError as error:
            raise TimeoutError(errno.ETIMEDOUT, "the server accepts no connection", path) from error
        uid = peer_of(connection)[1]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))


def join(message: Message, address: str = "") -> Channel:
    """Connect this process to its supervisor, or to the one at another address, and send this first message, which says
    what the process is. Blocking.

    Raises OSError where there is no supervisor.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect("\0" + (address or os.environ[ADDRESS_VARIABLE])[1:])
    except OSError:
        connection.close()
        raise
    channel = Channel(connection)
    channel.send(message)
    return channel
