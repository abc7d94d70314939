"""The connection to a real Redis server, and to some that are none, as the batcher's loop drives it."""

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.batcher.redis_connection import (
    MAX_UNSENT_BYTES,
    RETRY_NS,
    ErrorReply,
    Found,
    ProtocolError,
    RedisConnection,
    Reply,
    ReplyReader,
)
from shoal.batcher.shared_answers import MAX_VALUE_BYTES
from shoal.cache_settings import RedisSettings, redis_settings
from shoal.shm.doorbell import Doorbell
from tests.batcher.redis_server import DEADLINE_S, RedisServer
from tests.certificates import make_certificates

LOGGER = "shoal.batcher.redis_connection"
#: A machine that does much else may take a while for what takes none.
PATIENCE_NS = 10_000_000_000

MANY = b"+OK\r\n$3\r\na\r\n\r\n$-1\r\n:42\r\n-ERR no\r\n$0\r\n\r\n"


@given(st.lists(st.integers(0, len(MANY)), max_size=6))
def test_replies_come_whole_however_they_are_cut(cuts: list[int]) -> None:
    reader, replies = ReplyReader(10), list[Reply]()
    edges = [0, *sorted(cuts), len(MANY)]
    for start, end in pairwise(edges):
        replies += reader.read(MANY[start:end])
    assert replies[:4] + replies[5:] == [b"OK", b"a\r\n", None, 42, b""]
    assert isinstance(replies[4], ErrorReply)
    assert str(replies[4]) == "ERR no"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"*1\r\n+a\r\n", r"a reply begins with b'\*'"),
        (b"*2147483647\r\n", r"a reply begins with b'\*'"),
        (b"%1\r\n*0\r\n+b\r\n", "a reply begins with b'%'"),
        (b"HTTP/1.1 400 Bad Request\r\n", "a reply begins with b'H'"),
        (b"$x\r\n", "a reply has b'x' in place of a number"),
        (b":\r\n", "a reply has b'' in place of a number"),
        (b"$11\r\n", "a reply has 11 bytes, and 10 at most were asked for"),
        (b"$-2\r\n", "a reply has -2 bytes"),
        (b"$1\r\nabc", "a reply is longer than it says"),
        (b"+" + bytes(1 << 17), "a line of a reply has more than 65536 bytes"),
    ],
)
def test_what_is_no_reply(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        list(ReplyReader(10).read(data))


@given(st.binary(max_size=40))
def test_garbage_is_a_reply_or_an_error(data: bytes) -> None:
    try:
        list(ReplyReader(10).read(data))
    except ProtocolError:
        return


def settings(port: int, **said: str) -> RedisSettings:
    patient = {"socket_timeout": "10000", "connect_timeout": "10000"}
    made = redis_settings({"redis": {"host": "127.0.0.1", "port": str(port), **patient, **said}}, {})
    assert made is not None
    return made


class Loop:
    """The batcher's loop with nothing else in it, on a clock that can be put forward."""

    def __init__(self, settings: RedisSettings) -> None:
        self.poller, self.bell, self.ahead_ns = select.epoll(), Doorbell.create(), 0
        self.poller.register(self.bell.fd, select.EPOLLIN | select.EPOLLET)
        self.connection = RedisConnection(settings, self.poller, self.bell.ring)
        self.found: list[Found] = []
        assert self.connection.deadline_ns is None, "it waits for the loop to begin"
        self.connection.step(self.now_ns)

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

    def turn(self) -> None:
        """Wait until something happens or is due, then let it."""
        deadline_ns = self.connection.deadline_ns
        sleep_s = DEADLINE_S if deadline_ns is None else max(0, deadline_ns - self.now_ns) / 1e9
        for fd, _ in self.poller.poll(sleep_s):
            self.connection.is_ready |= fd == self.connection.fd
        self.found += self.connection.step(self.now_ns)

    def until(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s
            self.turn()

    def connect(self) -> "Loop":
        self.until(lambda: self.connection.fd >= 0)
        return self

    def ask(self, name: bytes, key: int = 1) -> bytes | None:
        """What is found of one name."""
        assert self.connection.ask(key, name, self.now_ns)
        self.until(lambda: bool(self.found))
        ((found_key, value),) = self.found
        assert found_key == key
        self.found.clear()
        return value

    def keep(self, name: bytes, value: bytes) -> None:
        self.connection.keep(name, value, self.now_ns)

    def close(self) -> None:
        """The thread, if there is one, is waited for."""
        self.until(lambda: not self.connection._is_connecting)
        if self.connection._socket is not None:
            self.connection._socket.close()
        self.poller.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


Opened = Callable[[RedisSettings], Loop]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Loops that are closed when the test is over."""
    with contextlib.ExitStack() as stack:

        def make(settings: RedisSettings) -> Loop:
            loop = Loop(settings)
            stack.callback(loop.close)
            return loop

        yield make


@pytest.fixture
def loop(redis_server: RedisServer, opened: Opened) -> Loop:
    return opened(settings(redis_server.port)).connect()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


# --- a Redis that is there ---


def test_what_one_keeps_another_finds(redis_server: RedisServer, loop: Loop, opened: Opened) -> None:
    value = bytes(range(256)) * 4096
    assert len(value) == MAX_VALUE_BYTES
    assert loop.ask(b"name") is None
    loop.keep(b"name", value)
    assert loop.ask(b"name") == value
    assert opened(settings(redis_server.port)).connect().ask(b"name") == value


def test_many_are_asked_at_once_and_some_forgotten(loop: Loop) -> None:
    for number in range(1, 101):
        loop.keep(b"%d" % number, b"value of %d" % number)
    for number in range(1, 201):
        assert loop.connection.ask(number, b"%d" % number, loop.now_ns)
    for number in range(1, 201, 2):
        assert loop.connection.forget(number)
        assert not loop.connection.forget(number)
    loop.until(lambda: len(loop.found) == 100)
    assert loop.found == [(even, b"value of %d" % even if even <= 100 else None) for even in range(2, 201, 2)]
    loop.found.clear()
    assert loop.ask(b"7", 201) == b"value of 7"
    assert loop.connection.deadline_ns is None, "nothing is awaited"


def test_what_is_too_large_is_cut_and_what_is_no_value_is_refused(
    redis_server: RedisServer, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.set("large", bytes(3 * MAX_VALUE_BYTES))
        client.rpush("list", b"a")
    assert loop.ask(b"large") == bytes(MAX_VALUE_BYTES)
    for _ in range(2):
        assert loop.ask(b"list") is None
    (sentence,) = warnings(caplog)
    assert "refuses a command: WRONGTYPE" in sentence
    loop.keep(b"a", b"b")
    assert loop.ask(b"a") == b"b"


def test_a_redis_without_room_is_one_that_keeps_nothing(
    redis_server: RedisServer, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
    loop.keep(b"a", b"b")
    assert loop.ask(b"a") is None
    assert "refuses a command: OOM" in warnings(caplog)[0]


def test_databases_are_apart(redis_server: RedisServer, loop: Loop, opened: Opened) -> None:
    loop.keep(b"a", b"0")
    assert loop.ask(b"a") == b"0"
    assert opened(settings(redis_server.port, db="3")).connect().ask(b"a") is None


def test_passwords(redis_server: RedisServer, loop: Loop, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server.client() as client:
        client.config_set("requirepass", "secret!")
        client.acl_setuser("shoal", enabled=True, passwords=["+other!"], keys=["shoal:*"], commands=["+@all"])
    for said in ({"password": "secret!"}, {"user": "shoal", "password": "other!"}):
        assert opened(settings(redis_server.port, **said)).connect().ask(b"shoal:x") is None
    assert warnings(caplog) == []
    for said, sentence in (({}, "NOAUTH"), ({"password": "wrong"}, "WRONGPASS")):
        caplog.clear()
        refused = opened(settings(redis_server.port, **said))
        refused.until(lambda: bool(warnings(caplog)))
        assert sentence in warnings(caplog)[0]
        assert "secret!" not in caplog.text
        assert not refused.connection.ask(1, b"shoal:x", refused.now_ns)


# --- a Redis that fails ---


def test_one_that_is_killed_is_left_and_found_again(
    redis_server: RedisServer, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.pause()  # so that nothing is answered any more
    for key in (1, 2):
        assert loop.connection.ask(key, b"name", loop.now_ns)
    loop.connection.step(loop.now_ns)
    redis_server.kill()
    loop.until(lambda: len(loop.found) == 2)
    assert sorted(loop.found) == [(1, None), (2, None)]
    assert not loop.connection.ask(3, b"name", loop.now_ns)
    loop.keep(b"name", b"value")
    for _ in range(3):  # it is tried again and again, and told once
        loop.ahead_ns += RETRY_NS
        loop.turn()
        loop.until(lambda: not loop.connection._is_connecting)
    assert len(warnings(caplog)) == 1
    assert "is not used" in caplog.text
    redis_server.start()
    caplog.set_level(logging.INFO, LOGGER)
    loop.found.clear()
    loop.ahead_ns += RETRY_NS
    loop.connect()
    assert "answers again" in warnings(caplog)[-1]
    loop.keep(b"name", b"value")
    assert loop.ask(b"name") == b"value"


def test_one_that_stands_still_is_waited_for_once(
    redis_server: RedisServer, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.pause()
    began_ns = loop.now_ns
    assert loop.connection.ask(1, b"name", began_ns)
    assert loop.connection.step(began_ns + PATIENCE_NS - 1) == []
    assert loop.connection.deadline_ns == began_ns + PATIENCE_NS
    assert loop.connection.step(began_ns + PATIENCE_NS) == [(1, None)]
    assert not loop.connection.ask(2, b"name", loop.now_ns)
    assert "it was silent for 10000 ms" in warnings(caplog)[0]
    loop.ahead_ns += PATIENCE_NS + 2 * RETRY_NS
    patient = loop.connection._settings
    loop.connection._settings = patient._replace(connect_timeout_s=0.05)
    loop.turn()
    loop.until(lambda: not loop.connection._is_connecting)
    assert loop.connection.fd < 0, "it takes connections, but does not answer"
    redis_server.resume()
    loop.connection._settings = patient
    loop.ahead_ns += 2 * RETRY_NS
    assert loop.connect().ask(b"name") is None
    assert len(warnings(caplog)) == 1


def test_who_has_less_time_waits_less(redis_server: RedisServer, loop: Loop) -> None:
    redis_server.pause()
    now_ns = loop.now_ns
    assert loop.connection.ask(1, b"name", now_ns)
    assert loop.connection.ask(2, b"name", now_ns, now_ns + 5000)
    assert loop.connection.ask(3, b"name", now_ns, now_ns + 10 * PATIENCE_NS)
    assert loop.connection.step(now_ns) == []
    assert loop.connection.deadline_ns == now_ns + 5000
    assert loop.connection.step(now_ns + 5000) == [(2, None)]
    assert loop.connection.deadline_ns == now_ns + PATIENCE_NS
    redis_server.resume()
    loop.until(lambda: len(loop.found) == 2)
    assert loop.found == [(1, None), (3, None)]


def test_what_a_slow_one_cannot_take_is_not_kept(redis_server: RedisServer, loop: Loop) -> None:
    redis_server.pause()
    for number in range(100):
        loop.keep(b"%d" % number, bytes(MAX_VALUE_BYTES))
        loop.connection.step(loop.now_ns)
    assert loop.connection._num_unsent_bytes + len(loop.connection._sending) <= MAX_UNSENT_BYTES + 4096
    redis_server.resume()
    assert loop.ask(b"0") == bytes(MAX_VALUE_BYTES)
    assert loop.ask(b"99") is None


def test_one_that_is_idle_may_hang_up_unheard(
    redis_server: RedisServer, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    loop.until(lambda: loop.connection.fd < 0)
    loop.ahead_ns += RETRY_NS
    assert loop.connect().ask(b"name") is None
    assert warnings(caplog) == []


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server whose connections are answered so, each by a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the test is over
                thread = threading.Thread(target=answer, args=(connection,))
                thread.start()
                stack.callback(thread.join, DEADLINE_S)

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(DEADLINE_S)


@pytest.mark.parametrize(
    ("replies", "sentence"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "a reply begins with b'H'"),
        ([b"+PONG\r\n", b"%1\r\n*0\r\n+b\r\n"], "a reply begins with b'%'"),
        ([b"+PONG\r\n", b"$99999999999\r\n"], "a reply has 99999999999 bytes, and 1048576 at most were asked for"),
        ([b"+PONG\r\n", b"+a\r\n+b\r\n"], "it sent a reply that no command is waiting for"),
        ([b"+PONG\r\n", b""], "it has closed the connection"),
        ([b""], "it did not accept the connection"),
        ([b"-LOADING Redis is loading\r\n"], "LOADING"),
    ],
)
def test_one_that_is_no_redis_is_left(
    replies: list[bytes], sentence: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            for reply in replies:
                if not connection.recv(4096):
                    return
                connection.sendall(reply)

    with answering(answer) as port:
        loop = opened(settings(port))
        if len(replies) > 1:
            loop.connect()
            assert loop.connection.ask(1, b"name", loop.now_ns)
        loop.until(lambda: bool(warnings(caplog)))
        assert all(value in (None, b"a") for _, value in loop.found)
        loop.close()
    assert sentence in warnings(caplog)[0]


def test_where_there_is_no_thread_left_it_is_tried_again(
    redis_server: RedisServer, opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # as CPython says it

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        loop = opened(settings(redis_server.port))
    assert "can't start new thread" in caplog.text
    loop.ahead_ns += RETRY_NS
    assert loop.connect().ask(b"name") is None


def test_a_host_that_cannot_be(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    loop = opened(settings(1)._replace(host="a" * 64 + ".example"))
    loop.until(lambda: bool(warnings(caplog)))
    assert "is not used" in caplog.text


# --- TLS ---


@pytest.mark.parametrize("shows", [False, True], ids=["who shows nothing", "who shows a certificate"])
def test_with_tls(
    redis_server: RedisServer, opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture, shows: bool
) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_cert, made.server_key)
    context.load_verify_locations(made.root)
    context.verify_mode = ssl.CERT_REQUIRED

    def answer(connection: socket.socket) -> None:
        """Pass everything on to Redis, and back."""
        with connection, contextlib.suppress(OSError):
            outside = context.wrap_socket(connection, server_side=True)
            with outside, socket.create_connection(("127.0.0.1", redis_server.port)) as inside:
                while True:
                    ready = [outside] if outside.pending() else select.select([outside, inside], [], [], DEADLINE_S)[0]
                    for source in ready:
                        if not (data := source.recv(65536)):
                            return
                        (inside if source is outside else outside).sendall(data)

    files = {"cacert": str(made.root), "sni": "localhost"}
    if shows:
        files |= {"cert": str(made.client_cert), "key": str(made.client_key)}
    value = bytes(range(256)) * 4000
    with answering(answer) as port:
        loop = opened(settings(port, tls_enabled="true", **files))
        if shows:
            loop.connect().keep(b"name", value)
            assert loop.ask(b"name") == value
        else:
            loop.until(lambda: bool(warnings(caplog)))
        loop.close()
