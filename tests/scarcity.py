"""Limits of a process that are lowered for a while: what is scarce is refused, and nothing is used up."""

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def limited(what: int, most: int, pid: int = 0) -> Iterator[None]:
    """A process, this one unless another is named, has no more than that."""
    soft, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, what, (soft, hard))


def no_descriptors_left() -> AbstractContextManager[None]:
    """This process can open nothing."""
    return limited(resource.RLIMIT_NOFILE, 3)


def files_of_at_most_a_page() -> AbstractContextManager[None]:
    """The kernel refuses this process larger files, memory files too, as on a machine without memory.

    For the call alone: pytest's own output may go to a larger file.
    """
    return limited(resource.RLIMIT_FSIZE, 4096)
