"""What every verb that operates a server does alike: where it asks, what it says when that fails, its exit codes."""

import argparse
import socket

import pytest

from shoal.cli import main
from shoal.cli.load import load
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer
from tests.cli.answering import Answering

URLS = "a server's URL is http://host:port or https://host:port"


def run(*arguments: str, **environ: str) -> int:
    """A verb that prints the URL and the time-out."""

    def work(given: argparse.Namespace, server: RemoteServer) -> str:
        return f"{server.url} {given.timeout:g}"

    return operate(OperatingParser("ask", "", "", "", timeout_s=10), arguments, environ, work)


@pytest.mark.parametrize(
    ("arguments", "environ", "printed"),
    [
        ([], {}, "http://127.0.0.1:8000 10"),
        ([], {"SHOAL_URL": "gpu-1:8080"}, "http://gpu-1:8080 10"),
        (["--url", "https://models.example.com/gpu/", "--timeout=0.5"], {"SHOAL_URL": "no"},
         "https://models.example.com/gpu 0.5"),
        (["--url=[::1]:8000"], {}, "http://[::1]:8000 10"),
    ],
)  # fmt: skip
def test_where_it_asks(
    arguments: list[str], environ: dict[str, str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, **environ) == 0
    assert capsys.readouterr() == (f"{printed}\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--url=ftp://host"], f"'ftp://host' begins with ftp://: {URLS}"),
        (["--url=localhost:99999"], f"'localhost:99999' has a port that is no number from 1 to 65535: {URLS}"),
        (["--url=http://"], f"'http://' names no host: {URLS}"),
        (["--url=host:many"], f"'host:many' has a port that is no number from 1 to 65535: {URLS}"),
        (["--timeout=0"], "argument --timeout: expected seconds, up to a day, got '0'"),
        (["--timeout=soon"], "argument --timeout: expected seconds, up to a day, got 'soon'"),
        (["--header=X"], "argument --header: expected '<name>: <value>', got 'X'"),
        (["--header=X: a\nY: b"], "argument --header: expected '<name>: <value>', got 'X: a\nY: b'"),
        (["--header=X: 魚"], "argument --header: expected '<name>: <value>', got 'X: 魚'"),
        (["more"], "Unexpected argument: more"),
        (["--tmeout=3"], "unrecognized option '--tmeout'; did you mean '--timeout'?"),
    ],
    ids=str,
)
def test_what_cannot_be_understood(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        f"{sentence}\nUsage: shoal ask \n'shoal ask --help' explains it.\n",
    )


def test_headers_are_sent(server: Answering) -> None:
    server.answer("POST /v2/repository/models/m/load")
    server.answer("POST /v2/repository/index", [])
    assert load(["m", "--url", server.url, "--header", "Admin-Key: fish", "--header=X:1"], environ={}) == 0
    assert [(request.headers["admin-key"], request.headers["x"]) for request in server.requests] == [("fish", "1")] * 2


@pytest.mark.parametrize(
    ("status", "sentence", "remedy"),
    [
        (503, "explicit model load / unload is not allowed if polling is enabled", "--model-control-mode=explicit"),
        (403, "This API is restricted, expecting header 'admin-key'", "--header '<name>: <value>'"),
        (500, "failed to load 'm', failed to poll from model repository", "'shoal models'"),
        (404, "Not Found", "an older Shoal"),
        (400, "must specify a non-zero or non-empty correlation ID", "--parameter sequence_id=1"),
        (404, "Request for unknown model: 'm' is not found", "'shoal models'"),
    ],
)
def test_a_refusal_comes_with_its_remedy(
    server: Answering, status: int, sentence: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer("POST /v2/repository/models/m/load", {"error": sentence}, status)
    assert load(["m"], environ={"SHOAL_URL": server.url}) == 2
    printed = capsys.readouterr()
    said, helps = printed.err.splitlines()
    assert (printed.out, said) == ("", sentence)
    assert remedy in helps


def test_without_a_server_the_command_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as deaf:  # and nobody else gets the port meanwhile
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        assert main(["models", "--url", url]) == 3
    assert capsys.readouterr() == (
        "",
        f"No server answers at {url}: Connection refused.\n"
        "A server accepts connections once its models have loaded. To start one, or to ask another:\n"
        "  shoal serve --model-repository <directory>\n"
        "  shoal models --url http://<host>:<port>    or export SHOAL_URL=http://<host>:<port>\n",
    )
