"""The end of processes that a model's code forks: they end when they return from that code, and so do not go on as
second workers.

Such a process has the worker's memory and rings: it would answer the worker's requests a second time, in the same
blocks.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.workers.backends.python.raised import raise_as_exception

#: The number of forks between the process that imported this module and this process.
depth = 0


def _descend() -> None:
    global depth
    depth += 1


os.register_at_fork(after_in_child=_descend)


@contextmanager
def end_here() -> Iterator[None]:
    """A context for running a model's code: a process that the code forks ends when it leaves the context, with the
    exit status and output of a Python program that ends there. What the code raises is raised as an Exception."""
    before = depth
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - it is raised again
        end_if_forked(before, error)
        raise_as_exception(error)
    end_if_forked(before)


def end_if_forked(before: int, error: BaseException | None = None) -> None:
    """End this process if it has been forked since `depth` was `before`; `error` is the exception that ended the
    model's code, if one did."""
    if depth == before:
        return
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if status and status is not error.code:
            print(error.code, file=sys.stderr)  # noqa: T201 - sys.exit of a text
    elif error is not None:
        status = 1
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)
