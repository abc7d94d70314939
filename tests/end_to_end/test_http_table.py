"""The table: good and bad requests as bytes on kept connections, and the whole answer each must get."""

import http.client
from collections.abc import Iterator

import pytest

from tests.end_to_end.http_cases.case import Case
from tests.end_to_end.http_cases.table import CASES
from tests.end_to_end.server import DEADLINE_S, Server


@pytest.fixture(scope="module")
def connection(every_kind: Server) -> Iterator[http.client.HTTPConnection]:
    """One connection for all cases; it is opened anew only after a case that ends it."""
    opened = http.client.HTTPConnection("127.0.0.1", every_kind.http_port, timeout=DEADLINE_S)
    yield opened
    opened.close()


def send(
    connection: http.client.HTTPConnection, case: Case, more: tuple[tuple[str, str], ...] = ()
) -> http.client.HTTPResponse:
    # Not `request`: it adds headers of its own.
    connection.putrequest(case.method, case.path, skip_accept_encoding=True)
    for name, value in (*case.headers.items(), *more):
        connection.putheader(name, value)
    if case.body or case.method == "POST":
        connection.putheader("Content-Length", str(len(case.body)))
    connection.endheaders(case.body)
    return connection.getresponse()


def test_the_table_has_three_hundred_cases() -> None:
    assert len(CASES) >= 300
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answer(connection: http.client.HTTPConnection, case: Case) -> None:
    if connection.sock is None:
        connection.connect()
    socket = connection.sock
    response = send(connection, case)
    body = response.read()
    assert (response.status, body) == (case.answer.status, case.answer.body)
    if case.answer.headers.get("Content-Type", "").startswith("text/event-stream"):
        assert response.getheader("Transfer-Encoding") == "chunked"
    else:
        assert response.getheader("Content-Length") == str(len(body))
    for name in ("Content-Type", "Inference-Header-Content-Length", "Allow", "Accept-Encoding", "Content-Encoding"):
        assert response.getheader(name) == case.answer.headers.get(name), name
    assert response.will_close == case.closes
    assert connection.sock is (None if case.closes else socket)


GENERATE = [case for case in CASES if case.path.endswith(("/generate", "/generate_stream")) and case.method == "POST"]


@pytest.mark.parametrize("case", GENERATE, ids=lambda case: case.id)
def test_the_road_generates_the_same_answer(connection: http.client.HTTPConnection, case: Case) -> None:
    """What makes a lane hand a request over is a field that it does not interpret."""
    response = send(connection, case, (("TE", "trailers"),))
    body = response.read()
    assert response.getheader("Server") == "gunicorn"
    assert (response.status, body) == (case.answer.status, case.answer.body)
    assert response.getheader("Content-Type") == case.answer.headers.get("Content-Type")
