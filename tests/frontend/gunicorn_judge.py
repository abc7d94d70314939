"""gunicorn's own parser as the judge of heads and of whole requests, for tests and for the fuzzer.

What the lane accepts, gunicorn must read alike; what the road has collected, gunicorn must not go on beyond.
"""

import os
import random
import runpy
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from gunicorn.config import Config
from gunicorn.http.body import LengthReader
from gunicorn.http.errors import ParseException
from gunicorn.http.parser import RequestParser

from shoal.frontend.http.http_head import Head, parse_head
from shoal.frontend.road.arrival import Arrival, Framing
from shoal.frontend.road.connection import ParsedHead, parsed

#: What stands behind a head on the connection; a judge that sees another end has another rest.
REST = b"REST"
#: gunicorn trusts this peer more than others.
PEER = ("127.0.0.1", 54321)


class Judged(NamedTuple):
    """A request as gunicorn reads it."""

    method: str
    target: str
    headers: dict[str, str]
    content_length: int
    keep_alive: bool
    rest: bytes


Judge = Callable[[bytes], "Judged | None"]


def head_judge() -> Judge:
    """gunicorn's parser with the settings that the front ends run it with; None where it refuses."""
    variables = {
        "SHOAL_FRONT_ENDS": '{"road": 1}',
        "SHOAL_GO_FD": "0",
        "SHOAL_ROAD_LISTENER_FDS": "0",
        "SHOAL_ROAD_THREADS": "1",
        "SHOAL_GRACEFUL_TIMEOUT_S": "1",
        "SHOAL_MODULE": "",
    }
    with patch.dict(os.environ, variables):
        conf = runpy.run_module("shoal.frontend.gunicorn_conf")
    config = Config()
    known = {name: value for name, value in conf.items() if name in config.settings}
    assert known["limit_request_fields"] == 100
    for name, value in known.items():
        config.set(name, value)

    def ask(raw: bytes) -> Judged | None:
        parser = RequestParser(config, iter([raw + REST]), PEER)
        try:
            request: Any = next(parser)
        except (ParseException, StopIteration, OSError):  # OSError: NoMoreData, a head without an end
            return None
        headers: dict[str, str] = {}
        for name, value in request.headers:
            headers[name.lower()] = f"{headers[name.lower()]},{value}" if name.lower() in headers else value
        reader = request.body.reader
        assert isinstance(reader, LengthReader)
        unreader: Any = parser.unreader
        rest = unreader.take_buffered()
        return Judged(request.method, request.uri, headers, reader.length, not request.should_close(), rest)

    return ask


def assert_gunicorn_agrees(raw: bytes, judge: Judge) -> Head | None:
    """Whatever is accepted is to gunicorn the same request; what it found, for the caller to look at."""
    head = parse_head(raw)
    if head is None:
        return None
    judged = judge(raw)
    assert judged is not None, raw
    method, target = raw.split(b" ")[:2]
    expected = Judged(method.decode(), target.decode(), head.headers, head.content_length, head.keep_alive, REST)
    assert judged == expected, raw
    return head


# --- whole requests ---

LIMIT = 1 << 20
HEAD = b"POST /v2 HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = {
    HEAD + b"\r\n": 0,
    HEAD + b"Content-Length: 0\r\n\r\n": 0,
    HEAD + b"content-LENGTH:5 \r\n\r\nabcde": 5,
    CHUNKED + b"0\r\n\r\n": 0,
    CHUNKED + b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n000\r\nA: b\r\n\r\n": 19,
}


class Peer:
    """The parts of a connection that a head is parsed with."""

    cfg = Config()
    client = ("127.0.0.1", 5)


def judge(head: bytes) -> Framing | None:
    found: ParsedHead | None = parsed(head, Peer())  # type: ignore[arg-type]
    return None if found is None else Framing(found.length, LIMIT, found.expects_continue)


def complete_after(data: bytes, size: int) -> int:
    """How many bytes of `data`, in pieces of this size, are looked at before the request counts as complete; -1: it
    does not."""
    arrival = Arrival(judge)
    for start in range(0, len(data), size):
        arrival.add(data[start : start + size])
        if arrival.is_complete:
            return min(start + size, len(data))
    return -1


PARTS = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"0", b"5", b"a", b";", b":", b"\0", b"\xff", b",", b"+", b"-", b"0x"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(b"0\r\n\r\n", b"A: b\r\n"),
]


def mutated(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(list(WHOLE)))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        if rng.random() < 0.6:
            data[place:place] = rng.choice(PARTS)
        else:
            del data[place : place + rng.randint(1, 3)]
    return bytes(data)


def assert_same_end(data: bytes, size: int) -> bool:
    """The request that gunicorn reads out of the collected bytes is the one that it reads out of all bytes, or none;
    whether gunicorn accepts it."""
    end = complete_after(data, size)
    whole = read_by_gunicorn(data)
    if whole is None or end < 0:
        assert whole is None or end > 0, data
        return False
    assert read_by_gunicorn(data[:end]) in (whole, None), data
    assert read_by_gunicorn(data[:end]) == whole or end < whole[1], data
    return True


def read_by_gunicorn(data: bytes) -> tuple[bytes, int] | None:
    """The body, and how many bytes the request has; None if gunicorn refuses it."""
    parser: Any = RequestParser(Peer.cfg, iter([data]), Peer.client)
    try:
        request = next(parser)
        body = request.body.read()
    except (ParseException, OSError, StopIteration):
        return None
    announced = [int(value) for name, value in request.headers if name == "CONTENT-LENGTH"]
    if announced and len(body) < announced[0]:  # cut short
        return None
    return body, len(data) - len(parser.unreader.buf.getvalue())
