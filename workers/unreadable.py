"""Why a model's file cannot be what its framework expects: it may not be read, or Git LFS has left a pointer for it.

Frameworks say "system error number 13" or "Protobuf parsing failed". Runs in a worker, after a load has failed.
"""

import os
from collections.abc import Iterator
from itertools import islice

from shoal.errors import ShoalError

_POINTER = b"version https://git-lfs.github.com/spec/"
#: How many files of a model that is a directory are looked at (ours).
_MOST_FILES = 256


def explained(error: ShoalError, path: str) -> ShoalError:
    """The failed load of a model from this file, or directory of files; with a second sentence where one of them is the
    cause."""
    for file in islice(_files(path), _MOST_FILES):
        if reason := _reason(file):
            return type(error)(f"{str(error).rstrip('.')}. {reason}")
    return error


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for directory, _, names in os.walk(path):
        yield from (os.path.join(directory, name) for name in sorted(names))


def _reason(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            is_pointer = opened.read(len(_POINTER)) == _POINTER
    except PermissionError as error:
        return (
            f"'{file}' cannot be read: {error.strerror}. The server runs as user {os.geteuid()}: let it read the file "
            "and search the directories above it, as by chmod -R a+rX"
        )
    except OSError:
        return ""
    return (
        f"'{file}' is a pointer of Git LFS, not the file itself: run git lfs pull in its repository"
        if is_pointer
        else ""
    )
