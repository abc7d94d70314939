"""Shoal's command, run against a server as a user runs it."""

import subprocess
import sys

from tests.end_to_end.server import Server


def shoal(server: Server, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", *arguments]
    done = subprocess.run(
        [*command, "--url", server.url], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr
