"""One connection to Redis in the batcher's loop: values by name, requested and stored without ever blocking.

Each lookup is answered within `socket_timeout`, by a value or by None. A Redis that is silent for longer, or sends a
malformed reply, is disconnected; a second later the connection is tried again, and until then lookups are refused.
Names, addresses, TLS and passwords are resolved in a thread that ends with a connection or an error; the loop does not
wait for that thread.
"""

import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from hiredis import pack_command

from shoal.batcher.shared_answers import MAX_VALUE_BYTES
from shoal.cache_settings import RedisSettings

_log = logging.getLogger(__name__)

#: Most bytes that wait to be sent; further values are not stored. So many bytes take 34 ms on a gigabit link (ours).
MAX_UNSENT_BYTES = 4 * MAX_VALUE_BYTES
#: Pause before a Redis that could not be reached, or did not answer, is tried again (ours).
RETRY_NS = 1_000_000_000

_RECEIVE_BYTES = 256 << 10
#: Most reads per step, so that peers that ring meanwhile are served.
_MAX_RECEIVES = 8
#: In place of a request's key: the expected reply is that to a SET, of which only a refusal matters.
_KEPT = 0
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
#: Errors raised if nothing more can be read, or sent, for now.
_NOT_NOW = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError

#: The first bytes of replies, by kind.
_TEXT, _ERROR, _NUMBER, _VALUE = b"+-:$"
_KINDS = frozenset((_TEXT, _ERROR, _NUMBER, _VALUE))
_LINE_END = b"\r\n"
#: Most bytes of a text, an error or a number (ours; those that Redis sends have some dozens of bytes).
_MAX_LINE_BYTES = 64 << 10

#: The key of the request that needed a value, and the value; None: there is none, or the lookup failed.
Found = tuple[int, bytes | None]


class ProtocolError(ConnectionError):
    """Received bytes are not a reply of Redis; no bytes after them can be understood."""


class ErrorReply(Exception):
    """The text of an error reply."""


#: A text, a value or a number; None for a missing value; ErrorReply for an error.
Reply = bytes | int | ErrorReply | None


def command(*words: str | bytes | int) -> bytes:
    """A command and its arguments in Redis's protocol."""
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # the package's hint is for a command without arguments
    return packed


class ReplyReader:
    """Incremental parser of Redis's replies to a cache's commands: texts, errors, numbers and values. A reply of any
    other kind is refused by its first byte: an array may claim any number of elements, and a map may have keys that a
    Python dict cannot have."""

    def __init__(self, max_nbytes: int) -> None:
        """`max_nbytes` is the largest value that is expected."""
        self._max_nbytes = max_nbytes
        self._unread = bytearray()  # the beginning of a reply; changed by read

    def read(self, data: bytes) -> Iterator[Reply]:
        """All replies that these bytes complete. Raises ProtocolError for bytes that are no text, error, number or
        value, and for a value or a line that is too long."""
        unread, start = self._unread, 0
        unread += data
        while (found := self._next(start)) is not None:
            reply, start = found
            yield reply
        del unread[:start]

    def _next(self, start: int) -> tuple[Reply, int] | None:
        """The reply that begins at `start`, and where it ends; None if its end has not been received."""
        unread = self._unread
        if start == len(unread):
            return None
        kind = unread[start]
        if kind not in _KINDS:
            raise ProtocolError(f"a reply begins with {bytes((kind,))!r}, as none of Redis's to a cache does")
        line_end = unread.find(_LINE_END, start, start + _MAX_LINE_BYTES)
        if line_end < 0:
            if len(unread) - start >= _MAX_LINE_BYTES:
                raise ProtocolError(f"a line of a reply has more than {_MAX_LINE_BYTES} bytes")
            return None
        line, end = bytes(unread[start + 1 : line_end]), line_end + 2
        if kind == _TEXT:
            return line, end
        if kind == _ERROR:
            return ErrorReply(line.decode("utf-8", "replace")), end
        try:
            number = int(line)
        except ValueError:
            raise ProtocolError(f"a reply has {line[:20]!r} in place of a number") from None
        if kind == _NUMBER:
            return number, end
        if number == -1:
            return None, end
        if not 0 <= number <= self._max_nbytes:
            raise ProtocolError(f"a reply has {number} bytes, and {self._max_nbytes} at most were asked for")
        value_end = end + number
        if len(unread) < value_end + 2:
            return None
        if not unread.startswith(_LINE_END, value_end):
            raise ProtocolError("a reply is longer than it says")
        with memoryview(unread) as whole:
            return bytes(whole[end:value_end]), value_end + 2


class RedisConnection:
    """A connection to Redis, with its commands to be sent and its expected replies. `ask` and `keep` queue commands,
    `step` sends and receives. `poller` wakes the loop when the socket is readable or writable."""

    def __init__(self, settings: RedisSettings, poller: select.epoll, wake: Callable[[], None]) -> None:
        """`wake` ends a wait of the loop; it is called by another thread."""
        self._settings = settings
        self._poller = poller
        self._wake = wake
        self._timeout_ns = round(settings.socket_timeout_s * 1e9)
        self._place = f"Redis at {settings.host}:{settings.port}"
        # Changed by step: the connection; when another may be tried (None: at the next call); whether a failure and a
        # refusal were logged.
        self._socket: socket.socket | None = None
        self._retry_ns: int | None = None
        self._is_connecting = False
        self._is_failure_logged = False
        self._is_refusal_logged = False
        #: The connecting thread's result; changed by that thread, and by step.
        self._made: socket.socket | OSError | ValueError | None = None
        #: Descriptor of the connection; -1 without one.
        self.fd = -1
        #: Whether the socket may be readable or writable. Set by the loop.
        self.is_ready = False
        # Changed by ask, keep, forget and step: keys of requests that wait for values; deadlines of those requests that
        # may wait for less than the timeout; expected replies in order, each with the time at which it is overdue;
        # bytes to be sent, and being sent.
        self._asked: set[int] = set()
        self._hasty: dict[int, int] = {}
        self._awaited: deque[tuple[int, int]] = deque()
        self._reader = ReplyReader(MAX_VALUE_BYTES)
        self._unsent: list[bytes] = []
        self._num_unsent_bytes = 0
        self._sending = memoryview(b"")
        self._found: list[Found] = []

    # --- called by the cache ---

    def ask(self, key: int, name: bytes, now_ns: int, deadline_ns: int = 0) -> bool:
        """Request a value; `step` returns it. False if there is no connection. `deadline_ns` (monotonic) is the
        request's deadline; 0 = none."""
        if self._socket is None:
            return False
        latest_ns = now_ns + self._timeout_ns
        self._asked.add(key)
        if 0 < deadline_ns < latest_ns:
            self._hasty[key] = deadline_ns
        # GETRANGE and not GET, so that Redis does not send the whole of a value that is too large.
        self._queue_command(command(b"GETRANGE", name, 0, MAX_VALUE_BYTES - 1), key, latest_ns)
        return True

    def forget(self, key: int) -> bool:
        """Stop a request's wait for a value. False if the request did not wait."""
        self._hasty.pop(key, None)
        if key not in self._asked:
            return False
        self._asked.remove(key)
        return True

    def keep(self, name: bytes, value: bytes, now_ns: int) -> None:
        """Send a value to be stored, unless too many bytes wait to be sent already."""
        nbytes = len(value)
        if self._socket is not None and self._num_unsent_bytes + len(self._sending) + nbytes <= MAX_UNSENT_BYTES:
            self._queue_command(command(b"SET", name, value), _KEPT, now_ns + self._timeout_ns)

    def _queue_command(self, words: bytes, key: int, latest_ns: int) -> None:
        self._awaited.append((key, latest_ns))
        self._unsent.append(words)
        self._num_unsent_bytes += len(words)

    # --- called by the loop ---

    @property
    def deadline_ns(self) -> int | None:
        """When `step` must run again though nothing arrives, in monotonic ns; 0: at once; None: never."""
        if self._socket is None:
            return None if self._is_connecting else self._retry_ns
        if self.is_ready or (self._unsent and not self._sending):
            return 0
        if not self._awaited:
            return None
        latest_ns = self._awaited[0][1]
        return min(latest_ns, *self._hasty.values()) if self._hasty else latest_ns

    def step(self, now_ns: int) -> list[Found]:
        """Send and receive as much as possible without waiting. Returns the values found; None for lookups that
        failed or timed out. Never raises: an error of the network closes the connection."""
        if self._socket is None:
            self._connect(now_ns)
        if self._socket is not None:
            try:
                if self._unsent or self._sending:
                    self._send(self._socket)
                if self.is_ready:
                    self._receive(self._socket)
                if self._awaited and self._awaited[0][1] <= now_ns and not self.is_ready:
                    raise TimeoutError(f"it was silent for {self._settings.socket_timeout_s * 1000:g} ms")
            except OSError as error:
                self._lose(error, now_ns)
        for key in [key for key, latest_ns in self._hasty.items() if latest_ns <= now_ns]:
            self.forget(key)
            self._found.append((key, None))
        found, self._found = self._found, []
        return found

    def _send(self, connection: socket.socket) -> None:
        if not self._sending:
            self._sending = memoryview(b"".join(self._unsent))
            self._unsent.clear()
            self._num_unsent_bytes = 0
        try:
            while self._sending:
                self._sending = self._sending[connection.send(self._sending) :]
        except _NOT_NOW:
            return

    def _receive(self, connection: socket.socket) -> None:
        for _ in range(_MAX_RECEIVES):
            try:
                data = connection.recv(_RECEIVE_BYTES)
            except _NOT_NOW:
                self.is_ready = False
                return
            if not data:
                raise ConnectionResetError("it has closed the connection")
            for reply in self._reader.read(data):
                self._take_reply(reply)

    def _take_reply(self, reply: Reply) -> None:
        if not self._awaited:
            raise ProtocolError("it sent a reply that no command is waiting for")
        key, _ = self._awaited.popleft()
        if isinstance(reply, ErrorReply) and not self._is_refusal_logged:
            self._is_refusal_logged = True
            _log.warning("%s refuses a command: %s; such responses are neither found nor stored", self._place, reply)
        if self.forget(key):
            # GETRANGE returns an empty text for a missing value.
            self._found.append((key, reply if isinstance(reply, bytes) and reply else None))

    def _lose(self, error: OSError, now_ns: int) -> None:
        """Close the connection, and fail all lookups. The error is not logged if Redis closed an idle connection."""
        assert self._socket is not None
        is_news = bool(self._awaited) or isinstance(error, ProtocolError)
        self._poller.unregister(self.fd)
        self._socket.close()
        self._socket, self.fd, self.is_ready = None, -1, False
        self._found += [(key, None) for key in self._asked]
        self._asked.clear()
        self._hasty.clear()
        self._awaited.clear()
        self._unsent.clear()
        self._num_unsent_bytes = 0
        self._sending = memoryview(b"")
        self._reader = ReplyReader(MAX_VALUE_BYTES)
        self._wait(error if is_news else None, now_ns)

    def _wait(self, error: object, now_ns: int) -> None:
        """Set the time of the next attempt to connect, and log the error if it is the first since Redis last
        answered."""
        self._retry_ns = now_ns + RETRY_NS
        if error is not None and not self._is_failure_logged:
            self._is_failure_logged = True
            _log.warning(
                "%s is not used: %s; until it answers, responses are cached in this server's memory only",
                self._place,
                error,
            )

    # --- the connection ---

    def _connect(self, now_ns: int) -> None:
        """Start the thread that connects, or use its result."""
        if self._is_connecting:
            made, self._made = self._made, None
            if made is None:
                return
            self._is_connecting = False
            if isinstance(made, Exception):
                self._wait(made, now_ns)
                return
            self._socket, self.fd = made, made.fileno()
            self._poller.register(self.fd, _EDGES)
            _log.info("%s answers%s", self._place, " again" if self._is_failure_logged else "")
            self._is_failure_logged = self._is_refusal_logged = False
        elif self._retry_ns is None or now_ns >= self._retry_ns:
            try:
                threading.Thread(target=self._make, name="redis", daemon=True).start()
            except RuntimeError as error:  # the system allows no further thread
                self._wait(error, now_ns)
                return
            self._is_connecting = True

    def _make(self) -> None:
        """The connecting thread's body."""
        try:
            self._made = connected(self._settings)
        except (OSError, ValueError) as error:  # ValueError: no host can have this name
            self._made = error
        self._wake()


def connected(settings: RedisSettings) -> socket.socket:
    """A non-blocking connection that has logged in. Raises OSError if Redis cannot be reached or refuses, ValueError
    for an impossible host name. `connect_timeout` bounds each wait for the network and, once the addresses are known,
    the sum of all waits."""
    connection = socket.create_connection((settings.host, settings.port), settings.connect_timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.is_tls:
            context = ssl.create_default_context(cafile=settings.cacert or None, capath=settings.cacert_dir or None)
            if settings.cert:
                # without a password OpenSSL would ask for one on the terminal
                context.load_cert_chain(settings.cert, settings.key or None, password="")
            connection = context.wrap_socket(connection, server_hostname=settings.sni or settings.host)
        _greet(connection, settings)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def _greet(connection: socket.socket, settings: RedisSettings) -> None:
    """Log in, select the database, wait for the replies: a stopped Redis accepts connections, too. Raises OSError if
    Redis refuses or does not answer."""
    commands = []
    if settings.user or settings.password:
        names = (settings.user,) if settings.user else ()
        commands.append(command("AUTH", *names, settings.password))
    if settings.db:
        commands.append(command("SELECT", settings.db))
    commands.append(command("PING"))
    connection.sendall(b"".join(commands))
    reader, replies = ReplyReader(0), list[Reply]()
    end_s = time.monotonic() + settings.connect_timeout_s
    while len(replies) < len(commands):
        if time.monotonic() > end_s or not (data := connection.recv(4096)):
            raise ConnectionResetError("it did not accept the connection")
        replies += reader.read(data)
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise ConnectionRefusedError(str(reply))
