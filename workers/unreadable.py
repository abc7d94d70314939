"""The reason why a framework cannot read a model's file: the server lacks permission to read it, or a pointer of Git
LFS lies in its place.

Frameworks themselves only say "system error number 13" or "Protobuf parsing failed". Runs in a worker, after a load has
failed, and in `shoal check`, before one.
"""

import errno
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from shoal.errors import ShoalError
from shoal.model_config.files import read

_POINTER = b"version https://git-lfs.github.com/spec/"
#: The most files that are checked if a model is a directory (ours).
_MOST_FILES = 256


def explained(error: ShoalError, path: str) -> ShoalError:
    """The error of a failed load, with a second sentence if the file at `path`, or one in the directory `path`, cannot
    be read."""
    found = reason(path)
    return type(error)(f"{str(error).rstrip('.')}. {found[1]}") if found else error


def reason(path: str) -> tuple[str, str] | None:
    """The first file of a model that a framework cannot read, and why; None if there is no such file."""
    for file in islice(_files(path), _MOST_FILES):
        if text := _reason(file):
            return file, text
    return None


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for directory, _, names in os.walk(path):
        yield from (os.path.join(directory, name) for name in sorted(names))


def _reason(file: str) -> str:
    try:
        is_pointer = read(Path(file), len(_POINTER)) == _POINTER
    except PermissionError as error:
        return (
            f"'{file}' cannot be read: {error.strerror}. The server runs as user {os.geteuid()}: let it read the file "
            "and search the directories above it, as by chmod -R a+rX"
        )
    except OSError as error:  # EINVAL: not a regular file, but a FIFO, at which a framework would wait, or a device
        return f"'{file}' cannot be read: {error.strerror}" if error.errno == errno.EINVAL else ""
    return (
        f"'{file}' is a pointer of Git LFS, not the file itself: run git lfs pull in its repository"
        if is_pointer
        else ""
    )
