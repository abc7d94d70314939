"""A row of a check as a process of its own: its output, its time limit, and the end of all that it has started.

Imports nothing beyond the standard library.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run(
    command: Sequence[str], log: Path, limit_s: float, variables: Mapping[str, str] | None = None
) -> tuple[int | None, list[str]]:
    """The exit code of a process (None: it ran longer than the limit) and the lines that it printed, which `log` keeps.

    The process has a session of its own, of which nothing is left afterwards.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(process.pid)
        process.wait()
    return code, log.read_text(errors="replace").splitlines()


def end_session(session: int) -> None:
    """Kill every process of a session."""
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.getsid(int(entry)) == session:
                os.kill(int(entry), 9)
        except ProcessLookupError:  # the process has ended meanwhile
            continue
