"""frontend/road/road.py: a road that is to end serves what it has given back to lanes that have ended meanwhile; a
request whose client has gone before a thread was free is dropped, and one that has waited too long is refused."""

import json
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.errors import NoMoreData
from gunicorn.workers.gthread import ThreadWorker

from shoal.frontend import handover
from shoal.frontend.road.admissions import AdmissionServer
from shoal.frontend.road.arrival import Arrival, Framing
from shoal.frontend.road.connection import RoadConnection, parsed
from shoal.frontend.road.endpoints import Endpoints
from shoal.frontend.road.road import RoadApplication, RoadWorker, mend
from shoal.frontend.road.thread_turns import ThreadTurns, Turn
from shoal.frontend.road.uploads import Uploads
from shoal.frontend.road.work import Work
from shoal.frontend.state import ServerState

#: More than the socket between road and lanes takes with the smallest buffer.
NUM_CONNECTIONS = 40
#: A request's head: its path, and the number of bytes of its body.
POST = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
LATE = "Request timeout expired: no answer within 60 s (--request-timeout-secs)"


class Road:
    """A road's process, its connections, and the requests that have arrived."""

    def __init__(self) -> None:
        made: Any = RoadWorker
        self.worker: Any = made(0, os.getpid(), [], None, 30, Config(), None)
        self.state = ServerState(torchserve_apis={"torchserve": ["inference"]})
        self.poller = selectors.DefaultSelector()
        self.arrived: list[RoadConnection] = []
        reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        incoming, self.lanes = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for each in (reading, writing, incoming, self.lanes):
            each.setblocking(False)
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.worker.poller = self.poller
        self.worker._incoming, self.worker._returned = incoming, reading
        self.worker._lanes = handover.Sender(writing)
        self.worker._admissions = AdmissionServer(self.poller, self.state.key_uses)
        self.abandoned: list[None] = []
        nothing: Any = None
        endpoints = Endpoints(self.state, nothing)
        self.worker._application = application = RoadApplication(
            nothing, endpoints, lambda: None, lambda: self.abandoned.append(None)
        )
        self.worker._uploads = Uploads(
            self.poller, self.state, judge, self.arrived.append, application.refusal, lambda _connection: None
        )
        self.worker._turns = {work: ThreadTurns[RoadConnection](1, 1) for work in Work}
        self.worker._is_draining = self.worker._has_given_up = False
        self.worker._looked_s, self.worker._stops_at_s, self.worker._graceful_timeout_s = 0.0, inf, 30
        self.clients: list[socket.socket] = []

    def accepted(self) -> socket.socket:
        """A new connection, whose client is the last of `clients`."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.clients.append(socket.create_connection(listener.getsockname()))
            return listener.accept()[0]

    def connect(self, request: bytes) -> RoadConnection:
        """A connection on which this request has come."""
        accepted = self.accepted()
        connection = RoadConnection(Config(), accepted, ("10.0.0.1", 5), accepted.getsockname(), is_lent=True)
        self.worker._uploads.add(connection, request, 60.0)
        assert self.arrived[-1] is connection
        connection.work, connection.group, connection.queued_s = Work.REQUEST, "slow", time.monotonic()
        return connection

    def step(self) -> None:
        for key, _ in self.poller.select(60.0):
            key.data(key.fileobj)

    def close(self) -> None:
        for key in list(self.poller.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for each in (*self.clients, self.lanes, *(connection.sock for connection in self.arrived)):
            each.close()
        for each in (self.worker._incoming, self.worker._returned, self.worker._lanes, self.worker.tmp):
            each.close()
        self.poller.close()


def judge(connection: RoadConnection, head: bytes) -> Framing | None:
    found = parsed(head, connection)
    return None if found is None else Framing(found.length, 1000, found.expects_continue)


@pytest.fixture
def road() -> Iterator[Road]:
    made = Road()
    yield made
    made.close()


def test_what_no_lane_has_taken_is_served(road: Road) -> None:
    """Those that had no room on the way, too; the clients of all may be about to send."""
    for _ in range(NUM_CONNECTIONS):
        road.worker._lanes.send(road.accepted(), b"")
    assert road.worker._lanes.wants_to_write
    handover.Sender(road.lanes).send(road.accepted(), b"GET /begun ")
    road.worker._cap_keepalive(0.0)
    assert not road.worker._lanes.wants_to_write
    for client in road.clients[:-1]:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    road.clients[-1].sendall(b"HTTP/1.1\r\n\r\n")
    while len(road.arrived) < NUM_CONNECTIONS + 1:
        road.step()


def test_a_connection_is_kept_once_lanes_are_about_to_end(road: Road) -> None:
    road.state.is_draining = True
    road.worker.murder_pending()
    done: Any = SimpleNamespace(cancelled=lambda: False, exception=lambda: None, result=lambda: True)
    accepted = road.accepted()
    connection = RoadConnection(Config(), accepted, ("10.0.0.1", 5), accepted.getsockname(), is_lent=True)
    assert road.worker._turns[Work.REQUEST].begin(connection, 1) is Turn.NOW
    road.worker.finish_request(connection, done)
    assert handover.receive(road.worker._returned) is None
    road.clients[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    road.step()
    assert road.arrived == [connection]


@pytest.mark.parametrize("is_tunnel", [False, True])
def test_a_request_whose_client_has_gone_has_a_line_and_a_call_of_a_lane_none(
    road: Road, caplog: pytest.LogCaptureFixture, is_tunnel: bool
) -> None:
    """The lane logs its calls itself."""
    road.state.log_access = True
    accepted, client = socket.socketpair() if is_tunnel else (road.accepted(), road.clients[0])
    connection = RoadConnection(Config(), accepted, ("10.0.0.1", 5), accepted.getsockname(), is_lent=True)
    road.arrived.append(connection)
    connection.arrival, connection.queued_s = Arrival(lambda _head: None), time.monotonic()
    connection.arrival.head = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    if not is_tunnel:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with caplog.at_level(logging.INFO, "shoal"):
        assert road.worker.handle(connection) is False
    assert len(road.abandoned) == 1
    lines = [each.getMessage().partition(" bytes")[0] for each in caplog.records]
    assert lines == ([] if is_tunnel else ["access: POST /v2/models/m/infer by 10.0.0.1: 499, 0"])


@pytest.mark.parametrize(("work", "gives_up"), [(Work.REQUEST, False), *[(work, True) for work in Work]])
def test_a_request_that_has_waited_too_long_for_a_thread_is_refused(road: Road, work: Work, gives_up: bool) -> None:
    """Or one, of whatever kind, that waits still when the server ends."""
    turns = road.worker._turns[work]
    for number in range(3):
        connection = road.connect(POST % (b"/v2/models/slow/infer", 0))
        connection.work, connection.queued_s = work, connection.queued_s - 60.0 * (number < 2)
        assert turns.begin(connection, 1) is (Turn.LATER if number else Turn.NOW)
    road.state.gives_up = gives_up
    road.worker.murder_pending()
    road.clients[1].setblocking(False)
    late = road.clients[1].recv(1000).decode()
    assert late.startswith("HTTP/1.1 503 ")
    assert ("--exit-timeout-secs is over" if gives_up else "no answer within 60 s (--request-timeout-secs)") in late
    road.clients[2].setblocking(False)
    if gives_up:
        assert road.clients[2].recv(1000).startswith(b"HTTP/1.1 503 ")
    else:
        assert turns.end(road.arrived[0]) == road.arrived[2:]


@pytest.mark.parametrize(
    ("endpoint", "path", "form"),
    [
        ("http", b"/v2/models/slow/infer", {"error": LATE}),
        ("http", b"/v1/embeddings", {"error": {"message": LATE, "type": "server_error", "param": None, "code": None}}),
        ("torchserve", b"/predictions/slow", {"code": 503, "type": "ServiceUnavailableException", "message": LATE}),
    ],
    ids=["Triton", "OpenAI", "TorchServe"],
)
def test_the_refusal_has_the_form_of_its_paths_protocol_and_a_line(
    road: Road, caplog: pytest.LogCaptureFixture, endpoint: str, path: bytes, form: dict[str, Any]
) -> None:
    road.state.log_access = True
    connection = road.connect(POST % (path, 0))
    address, port = connection.sock.getsockname()
    road.state.endpoints = {f"{address}:{port}": endpoint}
    turns = road.worker._turns[Work.REQUEST]
    assert turns.begin(SimpleNamespace(group="slow", body_nbytes=0), 1) is Turn.NOW
    connection.queued_s -= 60.0
    assert turns.begin(connection, 1) is Turn.LATER
    with caplog.at_level(logging.INFO, "shoal"):
        road.worker.murder_pending()
    head, _, body = road.clients[0].recv(1000).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nConnection: close" in head
    assert json.loads(body) == form
    (line,) = [each.getMessage().rpartition(", ")[0] for each in caplog.records]
    assert line == f"access: POST {path.decode()} by 10.0.0.1: 503, {len(head) + 4 + len(body)} bytes"


def test_a_refused_head_gets_no_body_and_one_whose_client_has_gone_the_status_for_that(
    road: Road, caplog: pytest.LogCaptureFixture
) -> None:
    road.state.log_access = True
    turns = road.worker._turns[Work.REQUEST]
    assert turns.begin(SimpleNamespace(group="slow", body_nbytes=0), 1) is Turn.NOW
    for method in (b"HEAD", b"GET"):
        connection = road.connect(b"%b /v2/models/slow/ready HTTP/1.1\r\nHost: x\r\n\r\n" % method)
        connection.queued_s -= 60.0
        assert turns.begin(connection, 1) is Turn.LATER
    road.clients[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    road.clients[1].close()
    with caplog.at_level(logging.INFO, "shoal"):
        road.worker.murder_pending()
    head, _, body = road.clients[0].recv(1000).partition(b"\r\n\r\n")
    assert (head[:12], body) == (b"HTTP/1.1 503", b"")
    lines = [each.getMessage().rpartition(" bytes, ")[0].rpartition(" by ")[2] for each in caplog.records]
    assert lines == [f"10.0.0.1: 503, {len(head) + 4}", "10.0.0.1: 499, 0"]


def test_a_request_keeps_the_time_at_which_it_came(road: Road) -> None:
    """Its answer is due from then on, however long it waited for the thread."""
    came_s: list[float | None] = []

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return []

    def watched(_caller: object, since_s: float | None) -> Any:
        came_s.append(since_s)

    connection = road.connect(POST % (b"/v2/models/slow/infer", 0))
    connection.queued_s -= 30.0
    road.worker.log = Logger(Config())
    road.worker.wsgi = mend(application, road.state, watched)
    road.worker.handle(connection)
    assert came_s == [connection.queued_s]


def test_a_request_shares_threads_with_those_that_name_its_model_in_their_bodies(road: Road) -> None:
    assert road.worker._turns[Work.REQUEST].begin(SimpleNamespace(group="other", body_nbytes=0), 1) is Turn.NOW
    for body in (b'{"input": "\\"model\\": \\"a\\"", "model": "b"}', b'{"model": 1}', b'{"model": "b", '):
        road.worker._answer(road.connect(POST % (b"/v1/embeddings", len(body)) + body))
    assert [each.group for each in road.arrived] == ["b", "/v1/embeddings", "/v1/embeddings"]


def test_a_standstill_of_the_machine_takes_none_of_the_time_that_a_stopping_road_has(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("shoal.frontend.road.road.time", SimpleNamespace(monotonic=lambda: now_s))
    road.worker.nr_conns = 1
    road.worker._cap_keepalive(0.0)
    for passed_s in (1000.0, *[1.0] * 27):
        now_s += passed_s
        road.worker.murder_pending()
        assert road.worker.nr_conns == 1
    now_s += 1.0
    road.worker.murder_pending()
    assert road.worker.nr_conns == 0, "a pass may take two seconds, so much of the thousand counts"


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_response_of_a_draining_road_says_that_the_connection_ends(is_draining: bool) -> None:
    class Answer:
        """gunicorn's object for a response, whose method a WSGI application calls."""

        req = SimpleNamespace(head=b"")
        headers_sent = False
        is_last = False

        def force_close(self) -> None:
            self.is_last = True

        def start_response(self, _status: str, _headers: Any, _exc_info: Any = None) -> None:
            """Nothing is sent."""

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return []

    answer = Answer()
    environ = {"SERVER_PROTOCOL": "HTTP/1.1", "gunicorn.socket": None}
    mended: Any = mend(application, ServerState(is_draining=is_draining), lambda _caller, _came_s: None)  # type: ignore[arg-type,return-value]
    mended(environ, answer.start_response)
    assert answer.is_last is is_draining


def test_what_was_read_of_a_body_that_broke_off_is_dropped(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    """gunicorn's request, which has it, is one of a cycle."""
    monkeypatch.setattr(ThreadWorker, "handle_request", lambda _self, request, _connection: request.body.read())
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = road.connect(head + b"ffffff\r\n" + bytes(1_500_000))  # gunicorn reads 1 MiB at a time
    request: Any = next(connection.parser)
    with pytest.raises(NoMoreData):
        road.worker.handle_request(request, connection)
    assert (request.body.buf.getvalue(), request.body.reader.buf.getvalue()) == (b"", b"")
