"""Whether a path is a file or a directory, with an OSError where the system cannot tell. pathlib's methods of these
names raise it up to Python 3.13. From 3.14 on they return False: a folder that may not be entered, or that a failing
disk does not show, would count as missing.

Used in every process.
"""

import errno
import stat
from pathlib import Path

#: The errors that say that nothing is there; pathlib's.
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)


def exists(path: Path) -> bool:
    """Whether there is a file of any kind, behind links. Raises OSError."""
    return _mode(path) != 0


def is_dir(path: Path) -> bool:
    """Whether this is a directory, behind links. Raises OSError."""
    return stat.S_ISDIR(_mode(path))


def is_file(path: Path) -> bool:
    """Whether this is a regular file, behind links. Raises OSError."""
    return stat.S_ISREG(_mode(path))


def _mode(path: Path) -> int:
    """The file's mode; 0 where there is none."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
    except ValueError:  # a path with a NUL
        pass
    return 0
