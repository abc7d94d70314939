"""A running server seen from outside: its connection, deadlines, and answers that are none."""

import argparse
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from shoal.cli import main
from shoal.cli.remote import NoResponseError, RefusedError, RemoteServer, UnreachableError
from shoal.cli.verb import VerbParser, run_verb
from shoal.errors import TimedOutError
from shoal.recorder.segment_file import file_head, pack_frame
from tests.cli.answering import Answering
from tests.recorder.entries import made


@contextmanager
def saying(answer: bytes, *, again: bool = False) -> Iterator[str]:
    """The URL of a server that reads one request, says these bytes and hangs up; where there are none, it is silent.
    `again`: it says them until its client hangs up."""
    done = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
            with suppress(OSError):
                while again:
                    connection.sendall(answer)
            if not answer:
                done.wait()
            with suppress(OSError):  # a hang-up with a part of the request unread would take the answer back
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


@contextmanager
def remote(url: str, timeout_s: float = 10.0) -> Iterator[RemoteServer]:
    with closing(RemoteServer(url, timeout_s=timeout_s, headers={})) as server:
        yield server


def test_one_connection_serves_all_requests(server: Answering) -> None:
    server.answer("POST /v2/repository/index", [])
    with remote(server.url) as asking:
        assert asking.index() == asking.index() == []
    first, second = server.requests
    assert first.port == second.port


def test_a_server_that_closes_is_asked_anew() -> None:
    with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]") as url:
        asking = RemoteServer(url, timeout_s=10, headers={})
        assert asking.index() == []
    with pytest.raises(UnreachableError, match="Connection refused"):
        asking.index()


def test_the_path_of_the_url_comes_first(server: Answering) -> None:
    server.answer("POST /gpu/v2/repository/index", [])
    with remote(f"{server.url}/gpu/") as asking:
        assert asking.index() == []


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_silence_and_an_answer_without_end_end_at_the_deadline(answer: bytes) -> None:
    with (
        saying(answer, again=bool(answer)) as url,
        remote(url, timeout_s=0.05) as asking,
        pytest.raises(NoResponseError) as error,
    ):
        asking.load("m")
    assert str(error.value) == f"No answer from {url} within 0.05 s (--timeout). What was asked may still be done."


def test_a_clients_time_that_is_over_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """TimedOutError is an OSError, as which it would count as one of a file."""

    def work(_: argparse.Namespace) -> int:
        raise TimedOutError("no answer within 1 s")

    assert run_verb(VerbParser("infer", "", ""), [], work) == 3
    assert capsys.readouterr().err == "no answer within 1 s\n"


@pytest.mark.parametrize("verb", ["infer", "bench"])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_every_request_of_a_verb_has_its_timeout(verb: str, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one asks for the configuration."""
    with saying(b"") as url:
        assert main([verb, "m", "--timeout=0.1", f"--url={url.replace('http', scheme)}"]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert "o answer from" in said
    assert "within 0.1 s" in said


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_replay_waits_for_a_silent_server_until_its_timeout(
    scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    with saying(b"") as url:
        assert main(["replay", str(tmp_path), "--timeout=0.1", f"--against={url.replace('http', scheme)}"]) == 3
    said = capsys.readouterr().err
    assert "no answer from" in said
    assert "within 0.1 s" in said


def test_a_timeout_is_of_the_whole_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"HTTP/1.1 200 OK\r\n\r\n ", again=True) as url:
        assert main(["infer", "m", "--timeout=0.1", f"--url={url}"]) == 3
    address = url.partition("://")[2]
    assert capsys.readouterr().err == f"Request timeout expired: no answer from {address} within 0.1 s\n"


def test_interim_responses_without_end_end() -> None:
    """At the deadline, or after a hundred, where the standard library counts them: the newest patches of Python do."""
    answer = b"HTTP/1.1 100 Continue\r\n\r\n"
    with (
        saying(answer, again=True) as url,
        remote(url, timeout_s=0.05) as asking,
        pytest.raises((NoResponseError, UnreachableError)) as error,
    ):
        asking.load("m")
    late = f"No answer from {url} within 0.05 s (--timeout). What was asked may still be done."
    assert str(error.value) in (late, f"What answers at {url} is not a model server.")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",  # an index is a list
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]",  # … of objects
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n[]",
    ],
)
def test_what_is_no_model_server(answer: bytes) -> None:
    with saying(answer) as url, remote(url) as asking, pytest.raises(UnreachableError, match="is not a model server"):
        asking.index()


def test_json_of_another_server_or_version(server: Answering) -> None:
    server.answer("GET /v2/repository/models/m/batches", {"message": "no model server, which speaks JSON, too"})
    with remote(server.url) as asking, pytest.raises(UnreachableError) as error:
        asking.explanation("m")["versions"]
    sentence = f"What answers at {server.url} is no Shoal server of this version: it says no 'versions'."
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("verb", "request_", "answer", "member"),
    [
        ("models", "POST /v2/repository/index", [{"name": 5}], "name"),
        ("models m", "GET /v2/repository/models/m/instances", {"versions": [{"instances": 3}]}, "instances"),
        ("scale m=2", "POST /v2/repository/models/m/instances", {"versions": 3}, "versions"),
        ("top --count 1", "GET /v2/models/stats", {"model_stats": [{"name": "m", "version": 1}]}, "version"),
        ("top --count 1", "GET /v2/models/stats", {"model_stats": [7]}, "model_stats"),
        ("explain m", "GET /v2/repository/models/m/batches", {"versions": [{"scheduler": "new"}]}, "scheduler"),
        ("explain m", "GET /v2/repository/models/m/batches", {"versions": [{"measured": [{"rows": 0}]}]}, "rows"),
        ("logs", "GET /v2/logging", {"log_file": 1}, "log_file"),
        ("rollout m", "GET /v2/models/m/rollout", {"weights": {"1": "all"}}, "1"),
        ("shadow", "GET /v2/shadow", {"shadows": [{"drops": []}]}, "drops"),
        ("record", "GET /v2/recording", {"folder": "f", "max_bytes": "2GiB"}, "max_bytes"),
        ("bench m", "GET /v2/models/m/config", {"name": "m", "max_batch_size": "8"}, "max_batch_size"),
        ("infer m", "GET /v2/models/m/config", {"name": "m", "input": [{"data_type": "FLOAT"}]}, "data_type"),
    ],
)
def test_a_member_of_another_type_is_named(
    server: Answering, capsys: pytest.CaptureFixture[str], verb: str, request_: str, answer: object, member: str
) -> None:
    server.answer(request_, answer)
    assert main([*verb.split(), "--url", server.url]) == 3
    sentence = f"What answers at {server.url} is no Shoal server of this version: it says something else by '{member}'."
    assert capsys.readouterr().err.splitlines()[0] == sentence


@pytest.mark.parametrize("answer", [5, None])
def test_json_that_is_no_object_is_not_of_a_model_server(
    server: Answering, capsys: pytest.CaptureFixture[str], answer: object
) -> None:
    server.answer("GET /v2/models/m/config", answer)
    assert main(["infer", "m", "--url", server.url]) == 3
    assert "is not a model server" in capsys.readouterr().err


def test_json_of_another_server_is_no_configuration(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("GET /v2/models/m/config", {"message": "no model server, which speaks JSON, too"})
    assert main(["infer", "m", "--url", server.url]) == 3
    assert "is no Shoal server of this version: it says no 'name'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"404 No\x1b[2J\x9b3m\r\nContent-Length: 2\r\n\r\n{}", 2),
        (b"404 No\r\nContent-Length: 5\r\n\r\n\x1b[2J\x00", 3),
    ],
)
def test_a_terminal_obeys_no_refusal(answer: bytes, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"HTTP/1.1 " + answer) as url:
        assert main(["load", "m", "--url", url]) == code
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.isprintable()
    assert r"\x1b[2J" in first


@pytest.mark.parametrize(
    "verb", ["load", "unload", "explain", "models", "rollout", "shadow", "top --requests --count=1"]
)
def test_a_name_that_is_no_utf_8_is_asked_for(verb: str, server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "\udcff", "--url", server.url]) == 2
    assert capsys.readouterr().err.startswith("Not Found\n")


def test_a_name_that_is_no_utf_8_and_cannot_be_sent(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("GET /v2/models/m/config", {"name": "m", "max_batch_size": 8, "input": [], "output": []})
    assert main(["infer", "m", "--output", "\udcff", "--url", server.url]) == 2
    assert capsys.readouterr().err.startswith("Invalid argument: 'outputs' has no UTF-8: ")


def test_the_port_of_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b'HTTP/1.1 405 No\r\nContent-Length: 30\r\n\r\n{"error":"Method Not Allowed"} ') as url:
        assert main(["models", "--url", url]) == 2
    said, advice = capsys.readouterr().err.splitlines()
    assert said == "Method Not Allowed"
    assert advice.startswith("Does that port have another purpose, as that of the metrics?")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"\0\0\x12\4\0\0\0\0\0\0\4\0\x3f\xff\xff", "what answers at {} is not a model server"),  # HTTP/2's SETTINGS
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what answers at {} is not a model server"),
        (b"HTTP/1.1 200 OK\r\nContent-Len", "{} hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "{} hung up"),
    ],
)
def test_an_answer_that_is_no_http_is_not_shown(answer: bytes, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with saying(answer) as url:
        assert main(["infer", "m", "--url", url]) == 3
    said, *advice = capsys.readouterr().err.splitlines()
    assert said == what.format(url.partition("://")[2])
    assert "  shoal serve --model-repository <directory>" in advice


def test_a_server_of_another_service_of_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert main(["infer", "m", "--url", f"grpc://127.0.0.1:{port}"]) == 3
    finally:
        server.stop(None).wait()
    assert capsys.readouterr().err.startswith(f"what answers at 127.0.0.1:{port} is not a model server\nA server")


@pytest.mark.parametrize("verb", ["models", "load m", "top", "bench m", "infer m"])
@pytest.mark.parametrize("title", ["404 Not Found", "502 Bad Gateway"])
def test_the_page_of_a_web_server_is_not_shown(verb: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = b"\r\nContent-Length: 21\r\n\r\n<!DOCTYPE html>\n<p>no"
    with saying(b"HTTP/1.1 " + title.encode() + page) as url:
        assert main([*verb.split(), "--url", url]) == 3
    said, *_ = capsys.readouterr().err.splitlines()
    address = url.partition("://")[2] if verb == "infer m" else url
    more = "" if verb == "infer m" else f": status {title}."
    assert said.lower() == f"what answers at {address} is not a model server{more}".lower()


@pytest.mark.parametrize("verb", ["models", "load m", "bench m", "infer m"])
def test_a_redirection_is_not_of_a_model_server(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"HTTP/1.1 301 Moved\r\nLocation: https://x/\r\nContent-Length: 0\r\n\r\n") as url:
        assert main([*verb.split(), "--url", url]) == 3
    assert " is not a model server: status 301" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize("verb", ["models", "load m", "bench m", "infer m"])
def test_the_words_of_another_server_are_shown(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of the port of gRPC, or of a proxy that has no server."""
    with saying(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 27\r\n\r\nThis port speaks gRPC. Go.\n") as url:
        assert main([*verb.split(), "--url", url]) == 3
    said, *_ = capsys.readouterr().err.splitlines()
    address = url.partition("://")[2] if verb == "infer m" else url
    sentence = f"what answers at {address} is not a model server: this port speaks grpc. go"
    assert said.lower().removesuffix(".") == sentence


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "status 502 Bad Gateway"),
        (b"400 Bad Request\r\nContent-Length: 2\r\n\r\n[]", "status 400 Bad Request: []"),
        (b'400 Bad Request\r\nContent-Length: 13\r\n\r\n{"error":"x"}', "x"),
    ],
)
def test_a_refusal_is_told_whatever_its_body(answer: bytes, sentence: str) -> None:
    with saying(b"HTTP/1.1 " + answer) as url, remote(url) as asking, pytest.raises(RefusedError) as error:
        asking.load("m")
    assert (str(error.value), error.value.status) == (sentence, int(answer[:3]))
