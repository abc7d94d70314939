"""The command `shoal` without a verb: it teaches."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from shoal import __version__
from shoal.cli import main, tritonserver


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
    monkeypatch.setattr("shoal.cli.serve.serve", interrupted)  # before the server handles signals
    assert main(["rollout", "digits", "2"]) == 130
    assert main(["serve", "models"]) == 130
    assert tritonserver(["--model-repository=models"]) == 130
    assert capsys.readouterr() == ("", "")


def run_into(stdout: IO[bytes], arguments: str, program: str = "main") -> subprocess.CompletedProcess[str]:
    """Run a command with this stdout."""
    script = f"from shoal.cli import {program}; raise SystemExit({program}())"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments.split()], stdout=stdout, stderr=subprocess.PIPE, text=True,
        timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        *[("main", each) for each in ("", "serve --help", "models --help", "check --help", "key k")],
        ("tritonserver", "--help"), ("torchserve", "--help"),
    ],
)  # fmt: skip
def test_a_reader_that_goes_away_is_no_error(program: str, arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        done = run_into(pipe, arguments, program)
    assert (done.returncode, done.stderr.count("Error")) == (141, 0), done.stderr


@pytest.mark.parametrize("arguments", ["", "completion bash", "models --help"])
def test_a_full_disk_is_said_in_a_sentence(arguments: str) -> None:
    with open("/dev/full", "wb") as full:
        done = run_into(full, arguments)
    assert (done.returncode, done.stderr) == (1, "The output cannot be written: No space left on device\n")


def test_a_locale_without_the_characters_of_a_text_gets_their_numbers() -> None:
    script = "from shoal.cli import main; raise SystemExit(main())"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", script, "infer", "--help"], env=environ, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Usage: shoal infer <model> [<input>=<value> \\u2026] [options]\n")


def test_a_command_does_its_work_though_its_standard_streams_are_closed(tmp_path: Path) -> None:
    script = "from shoal.cli import main; raise SystemExit(main())"
    command = f"exec {sys.executable} -c '{script}' init {tmp_path}/m <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=60, check=False).returncode == 0
    assert (tmp_path / "m" / "config.pbtxt").exists()


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
        f"import sys, atexit; from shoal.cli import {command};"
        f"atexit.register(lambda: print(sorted(set({unwanted}) & set(sys.modules)))); sys.exit({command}({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "[]")
