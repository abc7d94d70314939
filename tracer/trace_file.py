"""Triton's trace files: a JSON array in one file, or in files with numbers after the name. Runs in the tracer.

The one file is valid JSON after every write, so collected traces survive the tracer; Triton keeps them in memory until
it ends. A new file is its owner's alone, since traces may have clients' tensors.
"""

import logging
import os
import re
from pathlib import Path

_log = logging.getLogger(__name__)


class TraceFile:
    """The trace file or files that `--trace-config triton,file=` names.

    A file written since `since_s` (wall clock) is an earlier tracer's of this server, and is continued; an older one is
    overwritten, as Triton does.
    """

    def __init__(self, name: str, since_s: float) -> None:
        self._path = Path(name)
        # Changed by each write: whether the one file is continued; the number of the next numbered file.
        self._is_begun = _is_newer(self._path, since_s)
        self._index = _next_index(self._path, since_s)

    def append(self, traces: list[bytes]) -> None:
        """Append traces, as JSON texts, to the one file."""
        text = b",".join(traces)
        try:
            # A tracer that is killed between making its file and writing into it leaves an empty file.
            if self._is_begun and self._path.stat().st_size:
                with self._path.open("r+b") as file:
                    file.seek(-1, 2)  # the closing bracket
                    file.write(b"," + text + b"]")
            else:
                _write(self._path, b"[" + text + b"]")
                self._is_begun = True
        except OSError as error:
            _log.error("failed creating trace file: %s", error)

    def write_indexed(self, traces: list[bytes]) -> None:
        """Write traces, as JSON texts, to a file of their own, with the next number."""
        path = self._path.with_name(f"{self._path.name}.{self._index}")
        self._index += 1
        try:
            _write(path, b"[" + b",".join(traces) + b"]")
        except OSError as error:
            _log.error("failed creating trace file: %s", error)


def _write(path: Path, text: bytes) -> None:
    """Write a whole file; a new one gets mode 0600, an existing one keeps its mode. Raises OSError."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def _next_index(path: Path, since_s: float) -> int:
    pattern = re.compile(re.escape(path.name) + r"\.([0-9]+)")
    try:
        found = [pattern.fullmatch(each.name) for each in path.parent.iterdir() if _is_newer(each, since_s)]
    except OSError:
        return 0
    return max([int(match[1]) + 1 for match in found if match is not None], default=0)


def _is_newer(path: Path, since_s: float) -> bool:
    try:
        return path.stat().st_mtime >= since_s
    except OSError:
        return False
