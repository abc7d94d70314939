"""Reading files that others have written, as those of a model repository, in bounded time and memory.

Used in every process that reads such files. Callers word the sentences about a file that cannot be used.
"""

import errno
import os
import stat
from pathlib import Path

from shoal.errors import InvalidArgumentError

#: The file in a model's directory that has its configuration.
CONFIG_FILENAME = "config.pbtxt"


def read(path: Path, max_nbytes: int) -> bytes:
    """The first `max_nbytes` bytes of a regular file, or all its bytes.

    Raises OSError for any other file: a FIFO would block the process for good, and a link to a device never end.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(max_nbytes)


def inside(directory: Path, filename: str, sentence: str) -> Path:
    """The real path of a file in a directory. Raises InvalidArgumentError with this sentence for a file outside,
    even if a link in the directory leads there."""
    root = Path(os.path.realpath(directory))
    path = Path(os.path.realpath(root / filename))
    if root not in path.parents:
        raise InvalidArgumentError(sentence)
    return path


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
