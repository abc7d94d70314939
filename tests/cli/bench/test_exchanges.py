"""HTTP and gRPC as a load speaks them: answers in any pieces, errors by their sentence. Bytes are written by hand."""

import pytest

from shoal.cli.bench.grpc_exchange import GrpcExchange, grpc_message
from shoal.cli.bench.http_exchange import HttpExchange, http_request
from shoal.cli.bench.transport import Exchange

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
REFUSED = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 20\r\n\r\n{"error":"no such"}\n'


def received(exchange: Exchange, data: bytes, size: int) -> list[bool]:
    """Whether the answer was whole after each piece of so many bytes."""
    return [exchange.receive(data[at : at + size])[1] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("answer", "error", "is_last"),
    [
        (OK, None, False),
        (REFUSED, "no such", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", None, True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", None, True),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nlost", "status 502: lost", False),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "status 503", False),
        (b"HTTP/1.1 200 OK\r\n\r\n", "an answer with status 200 has no Content-Length, which bench needs", True),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the answer is not HTTP/1.1", True),
    ],
    ids=["ok", "refused", "close", "1.0", "text", "empty", "no length", "ssh"],
)
def test_http_answers_in_any_pieces(answer: bytes, error: str | None, is_last: bool, size: int) -> None:
    exchange = HttpExchange([b"request"])
    for _ in range(2):
        done = received(exchange, answer, size)
        assert done == [False] * (len(done) - 1) + [True]
        assert (exchange.error, exchange.is_last) == (error, is_last)


@pytest.mark.parametrize("pieces", [[OK + OK], [OK + b"x"], [OK[:-2], b"lo!"]], ids=["answer", "byte", "in pieces"])
def test_bytes_behind_an_http_answer_are_an_error(pieces: list[bytes]) -> None:
    exchange = HttpExchange([b"request"])
    assert received(exchange, OK, 1000) == [True]
    assert [exchange.receive(each)[1] for each in pieces][-1]
    assert (exchange.error, exchange.is_last) == ("the server sent more than its Content-Length says", True)


def test_http_requests_are_sent_in_turns() -> None:
    first = http_request("/v2/models/m/infer", "host:8000", [("A", "b")], b"xyz")
    assert first == b"POST /v2/models/m/infer HTTP/1.1\r\nHost: host:8000\r\nA: b\r\nContent-Length: 3\r\n\r\nxyz"
    exchange = HttpExchange([first, b"second"])
    assert [exchange.request(number) for number in range(3)] == [first, b"second", first]


#: Literals without indexing: grpc-status: 0, and grpc-status: 3 with grpc-message: no%20such.
STATUS_OK = b"\x00\x0bgrpc-status\x010"
STATUS_REFUSED = b"\x00\x0bgrpc-status\x013\x00\x0cgrpc-message\x09no%20such"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def grpc_answer(stream: int, trailers: bytes) -> bytes:
    """Headers with :status 200, a message, trailers."""
    return (
        frame(1, 0x4, stream, b"\x88")
        + frame(0, 0, stream, grpc_message(b"result"))
        + frame(1, 0x5, stream, trailers)
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("trailers", "error"),
    [(STATUS_OK, None), (STATUS_REFUSED, "INVALID_ARGUMENT: no such"),
     (b"\x88", "an answer without a gRPC status (HTTP status 200)"), (b"\xff", "trailers that cannot be read")],
    ids=["ok", "refused", "no status", "broken"],
)  # fmt: skip
def test_grpc_answers_in_any_pieces(trailers: bytes, error: str | None, size: int) -> None:
    exchange = GrpcExchange("host", "/Service/Method", [grpc_message(b"request")])
    for stream in (1, 3, 5):
        sent = exchange.request(0)
        assert int.from_bytes(sent[5:9], "big") == stream
        done = received(exchange, grpc_answer(stream, trailers), size)
        assert done == [False] * (len(done) - 1) + [True]
        assert (exchange.error or "").startswith(error or "")
        assert (exchange.error is None) == (error is None)


def test_a_repeated_grpc_call_has_headers_from_the_table() -> None:
    exchange = GrpcExchange("host", "/Service/Method", [grpc_message(b"")])
    first, second, third = (exchange.request(0) for _ in range(3))
    assert len(second) < len(first) / 2
    assert second[9:].replace(b"\0\0\0\3", b"\0\0\0\5") == third[9:]


def test_a_large_grpc_message_waits_for_the_windows_of_the_server() -> None:
    exchange = GrpcExchange("host", "/Service/Method", [grpc_message(bytes(100_000))])
    sent = exchange.request(0)
    first = len(sent)
    assert first < 65_535 + 1000  # the window before any other is given
    reply, is_whole = exchange.receive(frame(8, 0, 0, (70_000).to_bytes(4, "big")))
    assert (reply, is_whole) == (b"", False)  # the stream's own window is still closed
    reply, _ = exchange.receive(frame(8, 0, 1, (70_000).to_bytes(4, "big")))
    kinds = []
    while reply:
        kinds.append((reply[3], reply[4]))
        reply = reply[9 + int.from_bytes(reply[:3], "big") :]
    assert kinds[-1] == (0, 1)  # DATA with END_STREAM
    # An initial window of a million in SETTINGS holds for the next stream, too: all of it is sent at once.
    assert exchange.receive(frame(4, 0, 0, b"\0\4" + (1_000_000).to_bytes(4, "big")))[0] == frame(4, 1, 0, b"")
    exchange.receive(frame(8, 0, 0, (1_000_000).to_bytes(4, "big")))
    assert len(exchange.request(0)) > 100_000


def test_pings_are_answered_and_a_reset_or_a_farewell_is_the_end() -> None:
    exchange = GrpcExchange("host", "/Service/Method", [grpc_message(b"")])
    assert exchange.opening().startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    exchange.request(0)
    assert exchange.receive(frame(6, 0, 0, b"12345678")) == (frame(6, 1, 0, b"12345678"), False)
    assert exchange.receive(frame(3, 0, 1, bytes(4))) == (b"", True)
    assert exchange.error == "the server reset the stream"
    exchange.receive(frame(7, 0, 0, bytes(8)))
    assert exchange.is_last
