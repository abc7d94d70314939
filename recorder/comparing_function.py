"""A model's own comparison of two answers: the function `compare` in compare.py of the model's directory.

    def compare(primary, shadow, inputs):      # each: arrays by the tensor's name
        return None                            # or True: the answers agree; False or a sentence: they do not

The function is the user's code and runs in the comparator, for which no request waits. A call that takes longer than
LIMIT_S is interrupted. A call that is stuck in native code ends the process after HARD_LIMIT_S, and the supervisor
starts another comparator, which goes on after that pair.
"""

import faulthandler
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from shoal.distances import Array
from shoal.model_config.files import read
from shoal.shadow import COMPARE_FILENAME

#: The most bytes of the file (ours).
MAX_NBYTES = 1 << 20
#: Seconds that a call may take, and after which the process ends (ours).
LIMIT_S, HARD_LIMIT_S = 1.0, 5.0

Arrays = Mapping[str, Array]


class _TooLongError(BaseException):
    """A call takes longer than LIMIT_S; not an Exception, which users' code may catch."""


class ComparingFunction:
    """The function in one file, which is read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Changed by `difference`: the file's time of change and size when it was read, and its function.
        self._seen = (-1, -1)
        self._compare: Any = None

    def difference(self, primary: Arrays, shadow: Arrays, inputs: Arrays) -> str:
        """The function's sentence about the difference; empty if the answers agree. If the function is missing, fails,
        takes too long or returns something else, the sentence is about that."""
        try:
            with _limited():
                self._read()
                said = self._compare(primary, shadow, inputs)
        except _TooLongError:
            return f"{COMPARE_FILENAME} took longer than {LIMIT_S:g} s"
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises
            return f"{COMPARE_FILENAME} failed: {type(error).__name__}: {error}"
        if said is None or (isinstance(said, (bool, np.bool_)) and said) or said == "":
            return ""
        if isinstance(said, str):
            return f"{COMPARE_FILENAME}: {said}"
        if isinstance(said, (bool, np.bool_)):
            return f"{COMPARE_FILENAME} says that the answers differ"
        return f"{COMPARE_FILENAME} returned {type(said).__name__}, expected None, a bool or a sentence"

    def _read(self) -> None:
        status = self._path.stat()
        seen = status.st_mtime_ns, status.st_size
        if seen == self._seen:
            return
        source = read(self._path, MAX_NBYTES + 1)
        if len(source) > MAX_NBYTES:
            raise ValueError(f"it has more than {MAX_NBYTES} bytes")
        module = ModuleType("shoal_compare")
        module.__file__ = str(self._path)
        exec(compile(source, str(self._path), "exec"), module.__dict__)
        self._compare = module.compare
        self._seen = seen


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise _TooLongError


@contextmanager
def _limited() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _too_long)
    faulthandler.dump_traceback_later(HARD_LIMIT_S, exit=True)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the alarm may still come just before this call
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)
