"""What a road answers without Flask is what Flask would answer; Flask is made once, when a request needs it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder, run_wsgi_app

from shoal.frontend.road.app import create_app
from shoal.frontend.road.endpoints import Endpoints
from shoal.frontend.road.road import LateApplication
from shoal.frontend.state import ServerState

METRICS = {"SERVER_NAME": "10.0.0.1", "SERVER_PORT": "8002"}
HTTP = {"SERVER_NAME": "10.0.0.1", "SERVER_PORT": "8000"}


def unmade() -> Any:
    raise AssertionError("Flask is not needed")


@pytest.fixture
def answers(state: ServerState, transport: Any) -> tuple[Any, Any]:
    """The road's application, whose Flask must not be made, and Flask."""
    transport.answers |= {"gauges": {}}
    endpoints = Endpoints(state, transport)
    return endpoints.scraped(LateApplication(unmade)), create_app(endpoints)


def environ(path: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    return {**EnvironBuilder(method=method, path=path).get_environ(), "RAW_URI": path, **METRICS, **more}


def got(application: Any, asked: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    """The status line, headers and body of an application's response."""
    chunks, status, headers = run_wsgi_app(application, dict(asked))
    return status, dict(headers), b"".join(chunks)


def test_a_scrape_is_answered_as_flask_would(answers: tuple[Any, Any]) -> None:
    for application in answers:
        status, headers, body = got(application, environ("/metrics"))
        assert headers.pop("Content-Length") == str(len(body))  # of figures that change
        assert (status, headers) == ("200 OK", {"Content-Type": "text/plain; charset=utf-8"})
        assert b"# HELP nv_inference_request_success" in body


@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/1.1"])
def test_other_paths_and_refusals_are_flask_s(answers: tuple[Any, Any], protocol: str) -> None:
    asked = environ("/other", SERVER_PROTOCOL=protocol)
    del asked["HTTP_HOST"]  # which 1.1 requires
    mine, flasks = (got(each, asked) for each in answers)
    assert mine == flasks
    assert mine[0] == ("400 BAD REQUEST" if protocol == "HTTP/1.1" else "200 OK")


def test_a_scrape_with_a_broken_body_is_refused_as_by_flask(state: ServerState, transport: Any) -> None:
    class Broken:
        def read(self, _nbytes: int) -> bytes:
            raise LookupError

    endpoints = Endpoints(state, transport, body_errors=(LookupError,))
    without_flask = endpoints.scraped(LateApplication(unmade))
    asked: dict[str, Any] = environ("/metrics") | {"CONTENT_LENGTH": "5", "wsgi.input": Broken()}
    assert got(without_flask, asked) == got(create_app(endpoints), asked)
    assert got(without_flask, asked)[0] == "400 BAD REQUEST"


@pytest.mark.parametrize(("method", "more"), [("POST", {}), ("HEAD", {}), ("GET", HTTP)])
def test_all_else_is_given_to_flask(answers: tuple[Any, Any], method: str, more: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="not needed"):
        answers[0](environ("/metrics", method, **more), None)


def test_flask_is_made_by_one_of_the_threads_that_need_it_first() -> None:
    made: list[str] = []
    both_are_here = threading.Barrier(2)

    def make() -> Callable[..., list[bytes]]:
        made.append(threading.current_thread().name)
        return lambda _environ, _start: [b"answer"]

    application, answers = LateApplication(make), list[list[bytes]]()

    def ask() -> None:
        both_are_here.wait(60)
        answers.append(application({}, lambda *_: lambda _: None))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (len(made), answers) == (1, [[b"answer"], [b"answer"]])
