"""Requests that no well-meaning client sends: their status, whether the connection survives, and that the server does.

Raw bytes in, raw bytes out. A refused message's end cannot be known, so its connection ends with the answer. Bodies
that HTTP has understood and the handlers refuse are in `http_cases/refused.py`.
"""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.end_to_end.http_cases.malformed import (
    BODY,
    CHUNKED,
    CLOSED,
    FRAMING,
    HEADS,
    INFER,
    KEPT,
    PATHS,
    WHOLE,
    Refused,
    chunk,
    length,
    message,
)
from tests.end_to_end.http_cases.sending import connect, receive, send
from tests.end_to_end.server import Server


@pytest.fixture(scope="module")
def server(every_kind: Server) -> Iterator[Server]:
    yield every_kind
    assert every_kind.process.poll() is None


@pytest.mark.parametrize("case", FRAMING + HEADS + PATHS, ids=lambda case: case.id)
def test_malformed(server: Server, case: Refused) -> None:
    reply = send(server, case.sent, case.fin)
    assert (reply.status, reply.closed) == (case.status, case.closes), reply
    if reply.status:
        assert reply.headers["content-type"] == "application/json"
        sentence = json.loads(reply.body)
        assert list(sentence) == ["error"]
        assert case.part in sentence["error"]
    assert send(server, message(length(BODY))).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        message(length(BODY)),
        CHUNKED + WHOLE,
        CHUNKED + b"".join(chunk(BODY[index : index + 1]) for index in range(len(BODY))) + b"0\r\n\r\n",
        CHUNKED + b"%X;name=value\r\n%s\r\n0\r\nX-Checksum: 1\r\n\r\n" % (len(BODY), BODY),
        message(length(BODY), b"Content-Type: text/plain; charset=utf-16"),
        INFER.replace(b"POST /", b"POST http://elsewhere/") + length(BODY) + b"\r\n\r\n" + BODY,
    ],
    ids=["length", "chunked", "many-chunks", "chunk-extension-and-trailer", "content-type", "absolute-target"],
)
def test_unusual_but_legal(server: Server, sent: bytes) -> None:
    reply = send(server, sent)
    assert (reply.status, reply.closed) == (200, KEPT)
    assert json.loads(reply.body)["outputs"][0]["data"] == [1, 2, 3, 4, 5, 6]


def test_http_1_0_is_answered_and_closed(server: Server) -> None:
    reply = send(server, message(length(BODY)).replace(b"/1.1", b"/1.0"))
    assert (reply.status, reply.closed) == (200, CLOSED)


def test_a_later_minor_version_is_answered_with_ours(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(message(length(BODY)).replace(b"/1.1", b"/1.9"))
        assert connection.recv(65536, socket.MSG_PEEK).startswith(b"HTTP/1.1 200 ")
        reply = receive(connection)
    assert (reply.status, reply.closed) == (200, KEPT)


def test_a_refusal_has_the_phrase_of_its_status(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(message(b"Transfer-Encoding: xchunked", body=b""))
        assert connection.recv(65536).startswith(b"HTTP/1.1 501 Not Implemented\r\n")


def test_expectation_is_met_before_the_body(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(message(length(BODY), b"Expect: 100-continue", body=b""))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(BODY)
        reply = receive(connection)
    assert (reply.status, reply.closed) == (200, KEPT)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    bodies = [BODY.replace(b"[1,", b"[%d," % number) for number in range(5)]
    with connect(server) as connection:
        connection.sendall(b"".join(message(length(body), body=body) for body in bodies))
        received = b""
        while received.count(b'"data":[') < 5 or not received.endswith(b"}]}"):
            piece = connection.recv(65536)
            assert piece
            received += piece
    found = [int(part.split(b",")[0]) for part in received.split(b'"data":[')[1:]]
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("id_", ["a\r\nE1120 fake", "\x1b[31m", "x" * 1024])
def test_ids_come_back_as_they_went(server: Server, id_: str) -> None:
    """M-26."""
    body = BODY.replace(b"{", b'{"id":%s,' % json.dumps(id_).encode(), 1)
    reply = send(server, message(length(body), body=body))
    assert (reply.status, json.loads(reply.body)["id"]) == (200, id_)


def test_id_that_is_too_long(server: Server) -> None:
    """M-26."""
    body = BODY.replace(b"{", b'{"id":"%s",' % (b"x" * 1025), 1)
    reply = send(server, message(length(body), body=body))
    assert (reply.status, reply.closed) == (400, KEPT)
