"""`shoal logs`: the last lines of the server's log file, what comes, and what cannot be read."""

import json
from itertools import islice
from pathlib import Path

import pytest

from shoal.cli.logs import coming, logs
from tests.cli.answering import Answering

SETTINGS = "GET /v2/logging"


def test_the_last_lines_are_printed(server: Answering, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text("".join(f"line {number}\n" for number in range(50)))
    server.answer(SETTINGS, {"log_file": str(file)})
    assert logs([f"--url={server.url}"], environ={}) == 0
    assert capsys.readouterr().out.splitlines() == [f"line {number}" for number in range(30, 50)]
    assert logs([f"--url={server.url}", "--lines=2", "--json"], environ={}) == 0
    assert json.loads(capsys.readouterr().out) == {"log_file": str(file), "lines": ["line 48", "line 49"]}


def test_it_follows_until_ctrl_c(server: Answering, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text("old\n")
    server.answer(SETTINGS, {"log_file": str(file)})
    writes = iter(["new\nha", "lf\n"])

    def sleep(_seconds: float) -> None:
        text = next(writes, None)
        if text is None:
            raise KeyboardInterrupt
        with file.open("a") as log:
            log.write(text)

    assert logs([f"--url={server.url}", "-f"], environ={}, sleep=sleep) == 0
    assert capsys.readouterr().out == "old\nnew\nhalf\n"


def test_a_file_that_is_cut_short_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("a long line before\n")

    def rotate(_seconds: float) -> None:
        file.write_text("after\n")

    with file.open("rb") as opened:
        assert list(islice(coming(opened, rotate), 2)) == [b"a long line before\n", b"after\n"]


def test_a_server_elsewhere_is_asked_for_its_lines(
    server: Answering, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.cli.logs._HERE", ())
    first = {"log_file": "/var/log/shoal", "lines": ["one", "two"], "position": 8, "is_cut": True}
    server.answer("GET /v2/debug/log?lines=20&after=0", first)
    with monkeypatch.context() as here:  # a container's, whose file is not here
        here.setattr("shoal.cli.logs._HERE", ("127.0.0.1",))
        server.answer(SETTINGS, {"log_file": "/var/log/shoal/of/a/container"})
        assert logs([f"--url={server.url}"], environ={}) == 0
        assert capsys.readouterr().out == "one\ntwo\n"
    assert logs([f"--url={server.url}"], environ={}) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert logs([f"--url={server.url}", "--json"], environ={}) == 0
    assert json.loads(capsys.readouterr().out) == {"log_file": "/var/log/shoal", "lines": ["one", "two"]}

    server.answer("GET /v2/debug/log?lines=1000&after=8", {**first, "lines": ["three"], "position": 14})
    server.answer("GET /v2/debug/log?lines=1000&after=14", {**first, "lines": [], "position": 14})
    sleeps = iter([None, None])

    def sleep(_seconds: float) -> None:
        if next(sleeps, "over") == "over":
            raise KeyboardInterrupt

    assert logs([f"--url={server.url}", "--follow"], environ={}, sleep=sleep) == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    server.answer("GET /v2/debug/log?lines=3&after=0", {"log_file": "", "lines": [], "note": "there is no file"})
    assert logs([f"--url={server.url}", "--lines=3"], environ={}) == 2
    assert "there is no file." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("log_file", "code", "sentence"),
    [
        ("", 2, "writes no log file: start it with --log-file=<path>"),
        ("/nowhere/log", 1, "The server logs to /nowhere/"),
        ("/dev/zero", 1, "The server logs to /dev/zero, which cannot be read here: there is no such file"),
        ("/a\0b", 1, r"The server logs to /a\x00b, which cannot be read here: there is no such file"),
    ],
)
def test_there_is_nothing_to_read(
    server: Answering, log_file: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer(SETTINGS, {"log_file": log_file})
    assert logs([f"--url={server.url}"], environ={}) == code
    assert sentence in capsys.readouterr().err
