"""Logger: lines of a model in the server's log, with the model's own file and line number."""

import sys
from typing import Final

from triton_python_backend_utils import runtime
from triton_python_backend_utils.arguments import text
from triton_python_backend_utils.enumeration import TritonEnum


class LogLevel(TritonEnum):
    """The levels of a Logger's lines."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Triton's log. Without a server, lines go to stderr. Methods raise TypeError for a message that is no text, or
    an unknown level."""

    LogLevel = LogLevel
    INFO: Final = LogLevel.INFO
    WARNING: Final = LogLevel.WARNING
    ERROR: Final = LogLevel.ERROR
    VERBOSE: Final = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: TritonEnum = INFO) -> None:
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


def _write(level: TritonEnum, message: str | bytes) -> None:
    if not isinstance(level, LogLevel):
        raise TypeError(f"the level must be one of Logger's, found {level!r}")
    message = text("the message", message)
    frame = sys._getframe(2)  # the stack frame of the model's code that has called a method of Logger
    file, line = frame.f_code.co_filename, frame.f_lineno
    if runtime.current is not None:
        runtime.current.log(level.name, message, file, line)
    elif level != Logger.VERBOSE:
        print(f"{level.name[0]} {file}:{line}] {message}", file=sys.stderr)  # noqa: T201 - what a plain interpreter has
