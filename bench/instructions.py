"""User instructions by process, as `perf stat` counts them while a load runs.

A busy machine does not change this figure: other programs take time and caches, not instructions. Instructions of the
kernel are left out. Processes are known by their titles; Shoal's have names of their own.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.errors import BenchmarkError
from bench.measure import process_tree

#: The beginning of a process's title, and its name in the tables. Processes with other titles are the rest.
ROLES = (
    ("shoal http", "lane"),
    ("shoal batcher", "batcher"),
    ("shoal worker", "worker"),
    ("shoal road", "road"),
    ("shoal grpc", "lane"),
)
REST = "rest"
ROLE_NAMES = (*dict.fromkeys(name for _, name in ROLES), REST)
EVENT = "instructions:u"


def find_perf() -> str | None:
    """The path of a perf that can count here; None where there is none, or the kernel or hypervisor forbids it."""
    perf = shutil.which("perf")
    if perf is None:
        return None
    tried = subprocess.run([perf, "stat", "-x,", "-e", EVENT, "true"], capture_output=True, text=True, check=False)
    return perf if tried.returncode == 0 and parse(tried.stderr) is not None else None


def role(title: str) -> str:
    """The name in the tables of a process with this title."""
    return next((name for beginning, name in ROLES if title.startswith(beginning)), REST)


def parse(output: str) -> int | None:
    """The count in the output of `perf stat -x,`; None where perf reports that it cannot count."""
    for line in output.splitlines():
        count, *fields = line.split(",")
        if EVENT in fields and count == "<not counted>":
            return 0  # the process slept all the time
        if EVENT in fields and count.isdigit():
            return int(count)
    return None


class Counter:
    """Counts a server's instructions while one command runs, which is called with `prefix` before its words."""

    def __init__(self, perf: str, folder: Path, root: int) -> None:
        self._folder = folder
        pids: dict[str, list[str]] = {}
        for stat in process_tree(root):
            if shown := title(stat.pid):
                pids.setdefault(role(shown), []).append(str(stat.pid))
        self._roles = list(pids)
        # A perf per role, each the command of the one before: all count before the innermost command starts.
        self.prefix = [
            word
            for name in pids
            for word in (perf, "stat", "-x,", "-e", EVENT, "-o", str(self._file(name)), "-p", ",".join(pids[name]))
        ]

    def per_request(self, num_requests: int) -> Mapping[str, float]:
        """Instructions per request, by role. Raises BenchmarkError where perf could not count."""
        counts = {name: parse(self._file(name).read_text()) for name in self._roles}
        if None in counts.values():
            raise BenchmarkError(f"perf could not count: {self._file(self._roles[0]).read_text().strip()}")
        return {name: count / num_requests for name, count in counts.items() if count is not None}

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.perf"


def title(pid: int) -> str:
    """A process's title. Empty for a process that has ended, waited for or not; perf would refuse it."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # ended since the listing
