"""Payloads of many MiB: models of bytes, requests of noise, and what processes have mapped of them."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.end_to_end.asking import infer
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import Server, descendants, title, wait_until

MIB = 1 << 20
SMALL_SLABS = ("--shm-client-slab-mib=8", "--shm-worker-slab-mib=4")
#: More than any one segment has but a large payload's: slabs come with their rings.
LARGE = 16 * MIB
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
#: Process, open descriptors, bytes of Shoal's memory that it has mapped.
Usage = list[tuple[str, int, int]]


def write_model(repository: Path, name: str, num_instances: int = 1, backend: str = "identity") -> None:
    add_model(
        repository,
        name,
        config_text(backend, "INPUT0 UINT8 -1", "OUTPUT0 UINT8 -1", count=num_instances, idempotent="false"),
    )


def pattern(nbytes: int, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def ask(server: Server, tensor: Bytes, model: str = "fast") -> Bytes:
    return infer(server, model, {"INPUT0": tensor})["OUTPUT0"]


def processes(server: Server) -> list[tuple[str, int]]:
    """(title, pid) of every process of the server; those that are ending are left out."""
    titles = [(title(pid), pid) for pid in [server.process.pid, *descendants(server.process.pid)]]
    return [(words.partition(" (")[0], pid) for words, pid in titles if words]


def mapped_nbytes(pid: int) -> list[int]:
    """Of each of Shoal's segments that the process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*(?:/memfd:shoal|/dev/shm/#)", maps, re.MULTILINE)
    return [int(end, 16) - int(start, 16) for start, end in ranges]


def usage(server: Server) -> Usage:
    try:
        return sorted(
            (title, len(os.listdir(f"/proc/{pid}/fd")), sum(mapped_nbytes(pid))) for title, pid in processes(server)
        )
    except FileNotFoundError:  # a process ended while it was looked at
        return []


def pid_of(server: Server, title: str) -> int:
    return next(pid for name, pid in processes(server) if name == title)


def pid_with(server: Server, title: str) -> int:
    """The process of that title that has a large payload mapped, once there is one."""
    found: list[int] = []

    def look() -> bool:
        named = [pid for name, pid in processes(server) if name == title]
        found[:] = [pid for pid in named if max(mapped_nbytes(pid), default=0) > LARGE]
        return bool(found)

    wait_until(look, lambda: usage(server))
    return found[0]
