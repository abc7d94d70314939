"""The end of processes that a model forks, where one leaves the model's code: else it would go on as a second worker.

With the memory and the rings of the first one it would answer the same requests again, in the same places.
"""

import os
import sys
from types import TracebackType

#: Forks that led to this process, since this module was imported.
depth = 0


def _descend() -> None:
    global depth
    depth += 1


os.register_at_fork(after_in_child=_descend)


class ModelCode:
    """A context that a model's code runs in, made in the process that the model belongs to."""

    def __init__(self) -> None:
        self.depth = depth

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave(error)

    def leave(self, error: BaseException | None = None) -> None:
        """Returns in the model's process; ends one that the model has forked, as Python would."""
        if self.depth != depth:
            _end(error)


def _end(error: BaseException | None) -> None:
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
