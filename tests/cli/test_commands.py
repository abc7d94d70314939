"""The command `shoal` without a verb: it teaches."""

import os
import platform
import subprocess
import sys

import pytest

from shoal import __version__
from shoal.cli import main


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]], ids=str)
def test_help_names_the_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: shoal <verb> [options]\n")
    assert "\n  serve            serve the models of a repository over HTTP and gRPC\n" in printed.out
    assert "\n  scale            give a model more or fewer instances while it serves\n" in printed.out
    assert "\n  install-systemd  write the unit" in printed.out
    assert printed.err == ""


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"shoal {__version__} (CPython {platform.python_version()} with")


def test_an_unknown_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    said, usage, verbs = printed.err.splitlines()
    assert (said, usage) == ("'server' is not a verb of shoal. Did you mean 'serve'?", "Usage: shoal <verb> [options]")
    assert verbs.startswith("Verbs: serve, run, ")
    assert verbs.endswith(". 'shoal --help' explains them.")


def test_ctrl_c_ends_a_verb_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.cli.rollout.rollout", interrupted)
    assert main(["rollout", "digits", "2"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["", "serve --help", "models --help", "check --help", "key k"])
def test_a_reader_that_goes_away_is_no_error(command: str) -> None:
    program = "from shoal.cli import main; raise SystemExit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", program, *command.split()], stdout=pipe, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, "Error" in done.stderr) == (141, False), done.stderr


@pytest.mark.parametrize(
    ("command", "arguments", "code", "unwanted"),
    [
        ("main", ["models", "--url", "http://127.0.0.1:1"], 3, ["numpy", "google", "flask", "shoal.supervisor"]),
        ("tritonserver", ["--nonsense"], 1, ["numpy", "google", "flask", "shoal.supervisor"]),
        ("main", ["run", "--help"], 0, ["numpy", "google", "shoal.testing"]),
    ],
)
def test_what_needs_no_server_imports_none(command: str, arguments: list[str], code: int, unwanted: list[str]) -> None:
    script = (
        f"import sys; from shoal.cli import {command}; code = {command}({arguments});"
        f"print(code, sorted(set({unwanted}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == f"{code} []"
