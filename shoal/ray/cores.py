"""Cores of a node that one replica has for itself.

Ray counts cores and assigns none. Replicas of one node agree by locks on files, one file per core: a replica holds the
locks of its cores for as long as it lives, so those of one that was killed are free at once.
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path


class ClaimedCores:
    """Cores that this process has claimed. `close` gives them back, as the process's end does."""

    def __init__(self, cores: tuple[int, ...], fds: tuple[int, ...]) -> None:
        self.cores = cores
        self._fds = fds

    def close(self) -> None:
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)


def claim_cores(number: int, folder: Path, allowed: Iterable[int]) -> ClaimedCores | None:
    """Claim `number` of the `allowed` cores, the lowest that are free; None, and nothing is claimed, if fewer are.

    `folder` is created; all replicas of a node must name the same one. Raises OSError if it cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cores, fds = list[int](), list[int]()
    for core in sorted(allowed):
        if len(cores) == number:
            break
        fd = os.open(folder / str(core), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        else:
            cores.append(core)
            fds.append(fd)
    claimed = ClaimedCores(tuple(cores), tuple(fds))
    if len(cores) == number:
        return claimed
    claimed.close()
    return None
