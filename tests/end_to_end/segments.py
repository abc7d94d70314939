"""What lies in a server's shared memory, found by its bytes: each copy of it counts."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KINDS = {1: "client", 2: "link", 3: "worker", 4: "counters", 5: "oversize", 6: "batcher"}


def copies(supervisor: int, *searched: bytes) -> list[list[str]]:
    """Of each, the kinds of segments that it stands in, once for each time that it does.

    The supervisor, a child of ours, has a descriptor of every segment for as long as anybody uses it. It is stopped
    meanwhile: it also opens files of its own, and closes them.
    """
    found: list[list[str]] = [[] for _ in searched]
    seen = set()
    with _stopped(supervisor):
        for link in Path("/proc", str(supervisor), "fd").iterdir():
            # A memfd has a name, what lies in /dev/shm has none.
            if not os.readlink(link).startswith(("/memfd:shoal", "/dev/shm/")) or (inode := link.stat().st_ino) in seen:
                continue
            seen.add(inode)
            memory = link.read_bytes()
            if memory[:5] == b"SHOAL":
                for kinds, each in zip(found, searched, strict=True):
                    kinds += [_KINDS[memory[12]]] * memory.count(each)
    return found


@contextmanager
def _stopped(child: int) -> Iterator[None]:
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED)
    try:
        yield
    finally:
        os.kill(child, signal.SIGCONT)
