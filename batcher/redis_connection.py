"""One connection to Redis in the batcher's loop: values by name, asked for and kept without ever waiting.

Rules: whoever asks hears within `socket_timeout`, a value or that there is none. A Redis that is silent for longer, or
says what is no reply, is left; it is tried again a second later, and until then nothing is asked. Names, addresses, TLS
and passwords are a thread's business, which lives until there is a connection or an error: nobody waits for it.
"""

import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import NoneType

from hiredis import Reader, pack_command

from shoal.batcher.shared_answers import MAX_VALUE_BYTES
from shoal.cache_settings import RedisSettings

_log = logging.getLogger(__name__)

#: What waits to be sent at most; then values are not kept. A gigabit takes 34 ms for it (ours).
MAX_UNSENT_BYTES = 4 * MAX_VALUE_BYTES
#: Until a Redis that could not be reached, or did not answer, is tried again (ours).
RETRY_NS = 1_000_000_000

_RECEIVE_BYTES = 256 << 10
#: At a time, so that whoever else rings has a turn.
_MAX_RECEIVES = 8
#: In place of a key: a value was sent, of which only a refusal is worth hearing.
_KEPT = 0
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
#: Nothing more can be read, or sent, for now.
_NOT_NOW = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError

#: Bytes that hiredis may hold beyond the largest value: its first line, and replies that were read a moment ago.
_MOST_BESIDE_VALUE = 64 << 10
_INCOMPLETE = object()

#: Who asked, and the value; None: there is none, or nobody knows.
Found = tuple[int, bytes | None]


class ProtocolError(ConnectionError):
    """What came is no reply, and nothing that follows can be understood."""


class Refusal(Exception):
    """What an error reply says."""


#: A text, a value or a number; None for a value that is not there, or what is wrong.
Reply = bytes | int | Refusal | None


def command(*words: str | bytes | int) -> bytes:
    """A command and its arguments as Redis takes them."""
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # the package's hint is for a command without arguments
    return packed


class ReplyReader:
    """Replies of Redis to a cache's commands, which are never arrays, out of what arrives."""

    def __init__(self, max_nbytes: int) -> None:
        """`max_nbytes`: the largest value that is expected."""
        self._most = max_nbytes + _MOST_BESIDE_VALUE
        self._reader = Reader(protocolError=ProtocolError, replyError=Refusal, notEnoughData=_INCOMPLETE)

    def read(self, data: bytes) -> Iterator[Reply]:
        """All replies that are complete with this. Raises ProtocolError."""
        self._reader.feed(data)
        while (reply := self._next()) is not _INCOMPLETE:
            if not isinstance(reply, (bytes, int, Refusal, NoneType)):
                raise ProtocolError(f"a reply is a {type(reply).__name__}")
            yield reply
        if self._reader.len() > self._most:
            raise ProtocolError(f"a reply has more than {self._most} bytes")

    def _next(self) -> object:
        try:
            return self._reader.gets()
        except MemoryError:  # hiredis makes a list as long as an array's first line says, before its elements have come
            raise ProtocolError("a reply is an array that does not fit into memory") from None


class RedisConnection:
    """`ask` and `keep`, then `step`. The poller wakes the loop when there is something to read or room to write."""

    def __init__(self, settings: RedisSettings, poller: select.epoll, wake: Callable[[], None]) -> None:
        """`wake` ends a wait of the loop, and is called by another thread."""
        self._settings = settings
        self._poller = poller
        self._wake = wake
        self._timeout_ns = round(settings.socket_timeout_s * 1e9)
        self._place = f"Redis at {settings.host}:{settings.port}"
        # Changed by step: the connection, when there may be another (None: once it is called), and what has been told.
        self._socket: socket.socket | None = None
        self._retry_ns: int | None = None
        self._is_connecting = False
        self._is_told = False
        self._is_refusal_told = False
        #: What the thread has come to; changed by it, and by step.
        self._made: socket.socket | OSError | ValueError | None = None
        #: Of the connection; -1 where there is none.
        self.fd = -1
        #: Whether there may be something to read, or room. Set by the loop.
        self.is_ready = False
        # Changed by ask, keep, forget and step: who waits, and until when where that is earlier than for others; what
        # replies are to, in their order, and until when; what is to be sent, and what is being.
        self._asked: set[int] = set()
        self._hasty: dict[int, int] = {}
        self._awaited: deque[tuple[int, int]] = deque()
        self._reader = ReplyReader(MAX_VALUE_BYTES)
        self._unsent: list[bytes] = []
        self._num_unsent_bytes = 0
        self._sending = memoryview(b"")
        self._found: list[Found] = []

    # --- what the cache wants ---

    def ask(self, key: int, name: bytes, now_ns: int, deadline_ns: int = 0) -> bool:
        """Look for a value; `step` tells. False where nothing can be asked. The deadline is the asker's (0 = none)."""
        if self._socket is None:
            return False
        latest_ns = now_ns + self._timeout_ns
        self._asked.add(key)
        if 0 < deadline_ns < latest_ns:
            self._hasty[key] = deadline_ns
        # Not GET: whatever stands there, no more than this comes.
        self._say(command(b"GETRANGE", name, 0, MAX_VALUE_BYTES - 1), key, latest_ns)
        return True

    def forget(self, key: int) -> bool:
        """Whether it waited for a value; it does no more."""
        self._hasty.pop(key, None)
        if key not in self._asked:
            return False
        self._asked.remove(key)
        return True

    def keep(self, name: bytes, value: bytes, now_ns: int) -> None:
        """Send a value, unless that is too much for now."""
        nbytes = len(value)
        if self._socket is not None and self._num_unsent_bytes + len(self._sending) + nbytes <= MAX_UNSENT_BYTES:
            self._say(command(b"SET", name, value), _KEPT, now_ns + self._timeout_ns)

    def _say(self, words: bytes, key: int, latest_ns: int) -> None:
        self._awaited.append((key, latest_ns))
        self._unsent.append(words)
        self._num_unsent_bytes += len(words)

    # --- the loop's part ---

    @property
    def deadline_ns(self) -> int | None:
        """When `step` must run again though nothing comes; 0: at once."""
        if self._socket is None:
            return None if self._is_connecting else self._retry_ns
        if self.is_ready or (self._unsent and not self._sending):
            return 0
        if not self._awaited:
            return None
        latest_ns = self._awaited[0][1]
        return min(latest_ns, *self._hasty.values()) if self._hasty else latest_ns

    def step(self, now_ns: int) -> list[Found]:
        """Send what there is, hear what has come, look at the time. Who has waited long enough hears of no value."""
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
                self._hear(reply)

    def _hear(self, reply: Reply) -> None:
        if not self._awaited:
            raise ProtocolError("it replies to what was not asked")
        key, _ = self._awaited.popleft()
        if isinstance(reply, Refusal) and not self._is_refusal_told:
            self._is_refusal_told = True
            _log.warning("%s refuses: %s; such answers are neither found nor kept", self._place, reply)
        if self.forget(key):
            # Where nothing stands GETRANGE finds an empty text.
            self._found.append((key, reply if isinstance(reply, bytes) and reply else None))

    def _lose(self, error: OSError, now_ns: int) -> None:
        """Whatever was asked is not known. One that was idle may have been closed: that is no news."""
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
        """There is no connection, for a while; why, if that is to be told."""
        self._retry_ns = now_ns + RETRY_NS
        if error is not None and not self._is_told:
            self._is_told = True
            _log.warning("%s is left: %s; until it is back, the cache is this server's own memory", self._place, error)

    # --- the connection ---

    def _connect(self, now_ns: int) -> None:
        """Begin to, or look what has become of it."""
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
            _log.info("%s answers%s", self._place, " again" if self._is_told else "")
            self._is_told = self._is_refusal_told = False
        elif self._retry_ns is None or now_ns >= self._retry_ns:
            try:
                threading.Thread(target=self._make, name="redis", daemon=True).start()
            except RuntimeError as error:  # the system has none left
                self._wait(error, now_ns)
                return
            self._is_connecting = True

    def _make(self) -> None:
        """The thread."""
        try:
            self._made = connected(self._settings)
        except (OSError, ValueError) as error:  # the latter where the host cannot be a name
            self._made = error
        self._wake()


def connected(settings: RedisSettings) -> socket.socket:
    """A connection that has answered, and does not block from now on. Raises OSError; what `connect_timeout` bounds is
    each wait for the network, and the whole of it once the addresses are known."""
    connection = socket.create_connection((settings.host, settings.port), settings.connect_timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.is_tls:
            connection = _with_tls(connection, settings)
        _greet(connection, settings)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def _with_tls(connection: socket.socket, settings: RedisSettings) -> socket.socket:
    context = ssl.create_default_context(cafile=settings.cacert or None, capath=settings.cacert_dir or None)
    if settings.cert:
        context.load_cert_chain(settings.cert, settings.key or None, password="")  # or it asks the terminal
    return context.wrap_socket(connection, server_hostname=settings.sni or settings.host)


def _greet(connection: socket.socket, settings: RedisSettings) -> None:
    """Say who we are. A process that stands still takes connections, too: only one that has answered is there."""
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
            raise ConnectionResetError("it has not let us in")
        replies += reader.read(data)
    for reply in replies:
        if isinstance(reply, Refusal):
            raise ConnectionRefusedError(str(reply))
