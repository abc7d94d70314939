"""The real Triton for a benchmark in Shoal's own environment: a process of the peers' environment runs it.

    .venv-bench/bin/python -m bench.triton_beside FOLDER REPOSITORY

prints the port when Triton is ready, and stops it when standard input ends.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.errors import BenchmarkError
from bench.peers import ROOT, serve_with_triton
from bench.server import ask
from bench.workloads import READY

PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"


@contextmanager
def triton_beside(folder: Path, repository: Path) -> Iterator[int]:
    """A context with Triton; yields its HTTP port. Raises BenchmarkError where Triton is not installed."""
    if not PEERS_PYTHON.exists():
        raise BenchmarkError("Triton is not installed; scripts/bench --quick does that")
    command = [str(PEERS_PYTHON), "-m", __name__, str(folder), str(repository)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            port = keeper.stdout.readline()
            if not port:
                raise BenchmarkError("Triton cannot be started")
            yield int(port)
        finally:
            keeper.stdin.close()


def main(folder: Path, repository: Path) -> None:
    """Run Triton until standard input ends."""
    with serve_with_triton(folder, repository).running(READY, partial(ask, method="GET")) as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
