"""A gate in a model's way: the model stands still there until the test opens it.

A model passes it by `open(PATH).close()`. PATH is a pipe, and opening a pipe for reading waits until it is open for
writing elsewhere: the model looks at no clock, and goes on at the moment at which the test opens the gate.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Gate:
    """A closed gate at `path`, which is made if it is not there yet."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            os.mkfifo(path)
        self.path = path
        self._fd: int | None = None

    def open(self) -> None:
        """Let pass what waits at the gate, and what comes before it is closed."""
        assert self._fd is None
        self._fd = os.open(self.path, os.O_RDWR)  # waits for no reader: this end is one, too

    def close(self) -> None:
        """What comes from now on waits."""
        assert self._fd is not None
        os.close(self._fd)
        self._fd = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The gate is open within."""
        self.open()
        try:
            yield
        finally:
            self.close()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """The gate, open before, is closed within."""
        self.close()
        try:
            yield
        finally:
            self.open()
