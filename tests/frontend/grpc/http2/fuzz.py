"""A fuzzer for HTTP/2's server side: each seed is a client that keeps the rules, breaks one, or sends broken bytes.

Whatever the client does, no exception comes out, no more is kept than the bounds allow, every token comes back, and a
broken rule is answered with the code that violations.py has for it. The long form:
`python -m tests.frontend.grpc.http2.fuzz 1000000`.
"""

import random
import sys
from collections.abc import Callable

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, RequestStarted, StreamReset
from shoal.frontend.grpc.http2.expected_frames import ExpectedFrames
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import (
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PLAIN_CALL,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STATUS_200,
    TRAILERS,
    WINDOW_UPDATE,
    frame,
    frames_in,
    number,
    scatter,
    setting,
)
from tests.frontend.grpc.http2.violations import CONNECTION_WINDOW, MAX_FRAME, OF_BOTH, STREAM_WINDOW

LIMITS = Limits(
    stream_window=STREAM_WINDOW,
    connection_window=CONNECTION_WINDOW,
    max_frame=MAX_FRAME,
    max_streams=20,
    max_ping_strikes=0,
)
#: Error codes that a client may get: those of the RFC that the server uses.
TOLD = {0, 1, 3, 5, 6, 7, 9, 11}
#: A head with fields for the table, so that later blocks may refer to them.
_INDEXED_CALL = b"\x83\x86\x44\4/s/M\x5f\x10application/grpc"
_BLOCKS = (PLAIN_CALL, PLAIN_CALL, _INDEXED_CALL, b"\x83\x86\xbf\xbe", b"\x83\x86\x84", b"\x83\x86\x84\x40\1a\1b")


class Server:
    """The application behind the connection, which answers sooner or later, in any of the ways there are."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.connection = Http2Connection(LIMITS, 0.0)
        self.frames = ExpectedFrames()
        self._target = memoryview(bytearray(60_000))
        self.sent = bytearray()
        self.open: dict[int, bool] = {}  # by stream: whether its response has begun
        self.tokens: set[int] = set()
        self._num_tokens = 0
        self.resets: list[int] = []

    def receive(self, data: bytes) -> None:
        dice = self._dice
        while data:
            expected = self.connection.expected
            if expected is not None and dice.random() < 0.5:
                self.frames.expect(self._target[: dice.randrange(1, 60_000)], *expected)
                nbytes = scatter(data[: dice.randrange(1, 60_000)], self.frames.buffers)
                received, num_alike, rest = self.frames.split(nbytes)
                events = self.connection.received_directly(received, num_alike)
                events += self.connection.receive(rest, 0.0)
            else:
                nbytes = dice.choice((1, 9, 30, 1000, 1 << 20))
                events = self.connection.receive(data[:nbytes], 0.0)
            data = data[nbytes:]
            for event in events:
                if isinstance(event, RequestStarted):
                    assert event.stream_id not in self.open
                    self.open[event.stream_id] = False
                elif isinstance(event, DataReceived):
                    assert event.stream_id <= self.connection.streams.last_id  # it may be answered already
                    self.connection.credit(event.stream_id, len(event.data))
                elif isinstance(event, StreamReset):
                    self.resets.append(event.error_code)
                    self.open.pop(event.stream_id, None)
            if self.connection.is_failed:
                assert len(self.connection.streams.open) == 0
                return
            self.check()

    def act(self) -> None:
        if not self.open or self.connection.is_failed:
            return
        dice, connection = self._dice, self.connection
        stream_id = dice.choice(list(self.open))
        way = dice.randrange(6)
        data: list[bytes | memoryview] = [b"x" * dice.choice((0, 1, 300, 5000, 70_000)), memoryview(b"yz")]
        if way < 3 and not self.open[stream_id]:
            connection.respond(stream_id, STATUS_200, data, TRAILERS, self._token())
            del self.open[stream_id]
        elif way == 3:
            if not self.open[stream_id]:
                connection.send_headers(stream_id, STATUS_200)
                self.open[stream_id] = True
            connection.send_data(stream_id, data, self._token())
        elif way == 4 and self.open[stream_id]:
            connection.send_trailers(stream_id, TRAILERS)
            del self.open[stream_id]
        elif way == 5:
            connection.reset(stream_id, 2)
            del self.open[stream_id]

    def flush(self) -> None:
        pieces, tokens = self.connection.output()
        self.sent += b"".join(pieces)
        self.tokens.difference_update(tokens)

    def check(self) -> None:
        """Check that nothing has grown beyond its bound."""
        connection = self.connection
        receiving = connection._receiving
        assert len(connection.streams.open) <= LIMITS.max_streams
        assert len(connection.streams.left) <= 4096
        assert len(receiving._partial) <= LIMITS.max_header_bytes + 300
        assert len(receiving._block) <= LIMITS.max_header_bytes + 300
        assert len(receiving.blocks.known) <= 64
        assert connection.num_answers <= LIMITS.max_unsent_answers + 1 << 16

    def _token(self) -> int:
        self._num_tokens += 1
        self.tokens.add(self._num_tokens)
        return self._num_tokens


def _honest(dice: random.Random, next_id: int, used: list[int]) -> tuple[bytes, bool]:
    """A frame or two as any client may send them, and whether a stream was opened."""
    kind = dice.randrange(12)
    stream_id = dice.choice(used) if used else next_id
    if kind < 5 or not used:
        body = dice.choice((b"", b"x", b"x" * 200, b"x" * 5000))
        said = frame(HEADERS, 5 if kind == 4 else 4, next_id, dice.choice(_BLOCKS))
        return said if kind == 4 else said + frame(DATA, dice.choice((0, 1, 1)), next_id, body), True
    if kind == 5:
        return frame(WINDOW_UPDATE, 0, dice.choice((0, stream_id)), number(dice.choice((1, 1000, 100_000)))), False
    if kind == 6:
        return frame(RST_STREAM, 0, stream_id, number(8)), False
    if kind == 7:
        return frame(PING, dice.choice((0, 1)), 0, b"12345678"), False
    if kind == 8:
        return frame(SETTINGS, 0, 0, setting(4, dice.choice((0, 10, 65_535))) + setting(1, 0)), False
    if kind == 9:
        return frame(PRIORITY, 0, stream_id, b"\0\0\0\0\1"), False
    if kind == 10:
        return frame(dice.randrange(10, 256), dice.randrange(256), stream_id, b"x" * dice.randrange(50)), False
    return frame(GOAWAY, 0, 0, b"\0" * 8 + b"bye"), False


def _broken(dice: random.Random, said: bytes) -> bytes:
    """These bytes with a few bits changed, or a part lost or repeated."""
    damaged = bytearray(said)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(damaged))
        way = dice.randrange(4)
        if way < 2:
            damaged[at] ^= 1 << dice.randrange(8)
        elif way == 2:
            del damaged[at : at + dice.randrange(1, 20)]
        else:
            damaged[at:at] = damaged[at : at + dice.randrange(1, 20)]
        if not damaged:
            return b"\0"
    return bytes(damaged)


def run(seed: int) -> str:
    """Run one client; returns how it ended. Raises AssertionError, or the error that should never come out."""
    dice = random.Random(seed)
    server = Server(dice)
    way = dice.randrange(3)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b"" if way else setting(4, dice.choice((0, 100, 65_535)))))
    if way == 0:
        ended = _violate(dice, server)
    else:
        ended = _wander(dice, server, is_sound=way == 1)
    server.connection.close()
    while server.connection._pieces or server.connection._small or server.connection._tokens:
        server.flush()
    assert not server.tokens
    frames = frames_in(bytes(server.sent))
    for each in frames:
        if each.kind in (RST_STREAM, GOAWAY):
            assert int.from_bytes(each.payload[:4] if each.kind == RST_STREAM else each.payload[4:8], "big") in TOLD | {
                2
            }
    assert (frames[-1].kind == GOAWAY) == server.connection.is_failed
    assert [each.kind for each in frames].count(GOAWAY) == server.connection.is_failed
    return ended


def _wander(dice: random.Random, server: Server, *, is_sound: bool) -> str:
    next_id, used = 1, list[int]()
    for _ in range(dice.randrange(1, 12)):
        said, is_opened = _honest(dice, next_id, used)
        if is_opened:
            used.append(next_id)
            next_id += 2 * dice.randrange(1, 3)
        server.receive(said if is_sound or dice.random() < 0.7 else _broken(dice, said))
        if dice.random() < 0.6:
            server.act()
        if dice.random() < 0.6:
            server.flush()
        if server.connection.is_failed:
            return "failed"
    return "open"


def _violate(dice: random.Random, server: Server) -> str:
    """Bring the connection into the state of violations.py, with detours, and commit one of the violations."""
    connection = server.connection
    server.receive(frame(HEADERS, 4, 1, PLAIN_CALL) + frame(PING, 0, 0, b"12345678"))
    server.receive(frame(HEADERS, 4, 3, PLAIN_CALL) + frame(DATA, 1, 3, b"x") + frame(HEADERS, 5, 5, PLAIN_CALL))
    detours: list[Callable[[], None]] = [
        lambda: server.receive(frame(PRIORITY, 0, 77, b"\0" * 5)),
        lambda: server.receive(frame(WINDOW_UPDATE, 0, 0, number(5)) + frame(99, 1, 2, b"what")),
        lambda: server.receive(frame(WINDOW_UPDATE, 0, 1, number(5)) + frame(DATA, 0, 1)),
        lambda: connection.send_data(3, [b"x" * 30_000], server._token()),
        server.flush,
    ]
    for detour in dice.sample(detours, dice.randrange(len(detours))):
        detour()
    connection.respond(5, STATUS_200, [], TRAILERS)
    connection.receive(frame(SETTINGS, 0, 0, setting(4, 1 << 20)) + frame(WINDOW_UPDATE, 0, 0, number(1 << 20)), 0.0)
    while len(connection.streams.open) > 2:
        server.flush()
    while connection._pieces or connection._small or connection._tokens:
        server.flush()
    told_before = len(server.sent)
    violation = dice.choice(OF_BOTH)
    server.receive(violation.said)
    while connection._pieces or connection._small or connection._tokens:
        server.flush()
    kind, code = violation.told
    wanted = GOAWAY if kind == "GOAWAY" else RST_STREAM
    told = [
        int.from_bytes(each.payload[4:8] if wanted == GOAWAY else each.payload, "big")
        for each in frames_in(bytes(server.sent[told_before:]))
        if each.kind == wanted
    ]
    assert told, violation.name
    assert told[-1] == code, violation.name
    assert connection.is_failed == (wanted == GOAWAY), violation.name
    return kind


def main(num_runs: int, first_seed: int) -> None:
    """Run so many clients, and print how they ended."""
    ends: dict[str, int] = {}
    for seed in range(first_seed, first_seed + num_runs):
        try:
            ended = run(seed)
        except BaseException as error:
            raise RuntimeError(f"seed {seed}") from error
        ends[ended] = ends.get(ended, 0) + 1
    sys.stdout.write(f"{ends}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
