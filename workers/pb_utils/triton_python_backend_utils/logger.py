"""Logger: lines of a model in the server's log, with the model's own file and line number."""

import sys
from typing import Final

from triton_python_backend_utils import runtime
from triton_python_backend_utils.arguments import text

_LEVELS = frozenset({"INFO", "WARNING", "ERROR", "VERBOSE"})


class Logger:
    """Triton's log. Without a server, lines go to stderr. Methods raise TypeError for a message that is no text, or
    an unknown level."""

    INFO: Final = "INFO"
    WARNING: Final = "WARNING"
    ERROR: Final = "ERROR"
    VERBOSE: Final = "VERBOSE"

    @staticmethod
    def log(message: str | bytes, level: str = INFO) -> None:
        _write(level, message)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        _write(Logger.INFO, message)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        _write(Logger.WARNING, message)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        _write(Logger.ERROR, message)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        """Write a line if --log-verbose is 1 or more."""
        _write(Logger.VERBOSE, message)


def _write(level: str, message: str | bytes) -> None:
    if level not in _LEVELS:
        raise TypeError(f"the level must be one of Logger's, found {level!r}")
    message = text("the message", message)
    frame = sys._getframe(2)  # the frame of the model that called a method of Logger
    file, line = frame.f_code.co_filename, frame.f_lineno
    if runtime.current is not None:
        runtime.current.log(level, message, file, line)
    elif level != Logger.VERBOSE:
        print(f"{level[0]} {file}:{line}] {message}", file=sys.stderr)  # noqa: T201 - what a plain interpreter has
