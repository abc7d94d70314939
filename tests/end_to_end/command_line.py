"""Shoal's command, run against a server as a user runs it."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from shoal.cli import main
from tests.end_to_end.server import Server

#: A process of its own, for a command that may end in another way than by its exit code.
SHOAL = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())"]


def shoal_in(folder: Path) -> dict[str, str]:
    """An environment whose PATH begins with a folder in which `shoal` is the command of this tree."""
    script = folder / "shoal"
    folder.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from shoal.cli import main; exit(main())" "$@"\n')
    script.chmod(0o755)
    root = Path(__file__).parents[2]
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(root)}


def shoal(server: Server, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = run_here(*arguments, "--url", server.url)
    return done.returncode, done.stdout, done.stderr


def run_here(*arguments: object, folder: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    """What a command does in this folder, with these variables besides; in this process, since most of a command is
    Python's start."""
    words, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(folder or Path.cwd())
        try:
            code = main(words)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
