"""Shoal's command, run against a server as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.server import Server

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
    command = [*SHOAL, *arguments, "--url", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
