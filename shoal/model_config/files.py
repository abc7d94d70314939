"""Reading files of a model repository: whatever lies there, it costs a bounded time and a bounded memory.

Used in the supervisor and in workers. Sentences about a file that cannot be read are the callers'.
"""

import errno
import os
import stat
from pathlib import Path


def read(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a regular file, or all that it has.

    Raises OSError for everything else: a FIFO would block the process for good, and a link to a device never end.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(limit)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
