"""Each process's log, in Triton's two formats: INFO and verbose messages on stdout, warnings and errors on stderr.

    default   I0520 20:03:25.829575 3355 server.cc:441] "loading: simple:1"
    ISO8601   2024-05-20T20:03:25Z I 3355 server.cc:441] "loading: simple:1"

Times are UTC. With `to_file` all lines go to the end of a file. A message is one line, quoted and escaped as a JSON
string, since it may have text from a client; only tables and tracebacks have several lines. If the log is a pipe
without a reader, its lines are lost and counted: no process waits long for it. Every process calls `configure`, once
and whenever the settings change, then logs to `logger` or its children. Code on the path of a request must not log, but
for the access log. With the format "json" a line is an object:

    {"time":"2024-05-20T20:03:25.829575Z","level":"info","process":"worker","pid":3355,"model":"simple","version":"1",
     "instance":"simple_0_0","place":"server.cc:441","message":"loading: simple:1"}

with `request_id` and `trace_id` if the record has them. A record about a failure also has `stage` (load, idle, queue or
execute), `worker_pid`, `batch`, and `signal` or `exit_code`. Passwords in URLs are ***. Imports nothing of Shoal
but the writer (log_writer.py) and passwords.py.
"""

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from shoal.log_writer import PATIENCE_MS, UNREAD, writer_of
from shoal.passwords import without_passwords

if TYPE_CHECKING:
    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # generic at run time only since Python 3.11

logger = logging.getLogger("shoal")

#: The format with an object for each line; ours, the others are Triton's.
JSON = "json"
#: The beginning of each line in the JSON format.
JSON_START = b'{"time":"'

#: If set to 0, messages are printed unescaped. Triton's variable.
ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"

#: The width in characters at which the text of a table's cell is wrapped (ours): a reason may have several hundred.
_CELL_WIDTH = 80

_MOST_VERBOSE = logging.DEBUG  # levels 1 to 10 of --log-verbose are logging's 10 to 1


class LaidOutText(str):
    """A message of several lines that is printed as it is, unquoted; the first line is its heading."""

    __slots__ = ()


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, heading: str = "") -> LaidOutText:
    """A log message that is a table as Triton prints it, columns as wide as their widest cell, long ones wrapped:

    +--------+---------+--------+
    | Model  | Version | Status |
    +--------+---------+--------+
    | simple | 1       | READY  |
    +--------+---------+--------+
    """
    cells = [[_wrapped(str(cell)) for cell in row] for row in (titles, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(titles))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    header, *body = ["\n".join(_row_lines(row, widths)) for row in cells]
    return LaidOutText("\n".join([heading, rule, header, rule, *body, rule]) + "\n")


def block(heading: str, text: str) -> LaidOutText:
    """A log message that quotes the lines of another process below a heading, indented as a traceback is."""
    return LaidOutText("\n    ".join([heading, *_cell_lines(text)]))


def _cell_lines(text: str) -> list[str]:
    """The lines of a cell; characters that would move the cursor are escaped, so no cell can draw a row."""
    return [
        "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
        for line in text.splitlines()
    ] or [""]


def _wrapped(text: str) -> list[str]:
    """The lines of a cell, long ones broken between words; a path stays whole."""
    import textwrap  # only the supervisor prints tables

    return [
        piece
        for line in _cell_lines(text)
        for piece in textwrap.wrap(line, _CELL_WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    ]


def _row_lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterable[str]:
    for number in range(max(len(lines) for lines in row)):
        line = [lines[number] if number < len(lines) else "" for lines in row]
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"


def verbose(level: int) -> int:
    """The `logging` level of Triton's verbose level 1 to 10: `logger.log(verbose(2), …)`."""
    return _MOST_VERBOSE + 1 - level


class TritonFormatter(logging.Formatter):
    """Formats a record as one of Triton's two lines."""

    def __init__(self, log_format: str, *, escape: bool = True) -> None:
        super().__init__()
        self._is_iso = log_format == "ISO8601"
        self._escape = escape

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, or lines, without the last newline."""
        text = f"{self._head(record)} {self._message(record)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "".join(f"\n    {line}" for line in trace.splitlines())
        # A client may have sent half a surrogate pair, and the stream's encoding may be strict.
        return without_passwords(text).encode("utf-8", "backslashreplace").decode("utf-8")

    def _head(self, record: logging.LogRecord) -> str:
        # Triton has no letter for its verbose messages.
        letter = "E" if record.levelno >= logging.ERROR else "W" if record.levelno >= logging.WARNING else "I"
        time = datetime.fromtimestamp(record.created, timezone.utc)
        place = f"{record.process} {record.filename}:{record.lineno}]"
        if self._is_iso:
            return f"{time:%Y-%m-%dT%H:%M:%SZ} {letter} {place}"
        return f"{letter}{time:%m%d %H:%M:%S.%f} {place}"

    def _message(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, LaidOutText):
            return record.msg
        message = record.getMessage()
        return json.dumps(message, ensure_ascii=False) if self._escape else message


_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))
#: Fields that a record may have beside its message (`extra=`).
_FIELDS = (
    "stage", "model", "version", "instance", "worker_pid", "signal", "exit_code", "batch", "request_id", "trace_id",
    "method", "path", "client", "status", "bytes", "ms",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """Formats a record as one line, a JSON object. Control characters, and half pairs of surrogates, are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line without its newline."""
        level = next((name for number, name in _LEVELS if record.levelno >= number), "verbose")
        message = record.msg if isinstance(record.msg, LaidOutText) else record.getMessage()
        more = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        place = f"{record.filename}:{record.lineno}"
        line = json_line(record.created, level, {"pid": record.process, **_context, **more, "place": place}, message)
        if record.exc_info:
            line = f"{line[:-1]},{json.dumps({'exception': self.formatException(record.exc_info)})[1:]}"
        return without_passwords(line)


def json_line(time_s: float, level: str, fields: Mapping[str, Any], message: str) -> str:
    """A line of the JSON format, without its newline, of a time (wall clock, s), a level, fields and a message."""
    time = datetime.fromtimestamp(time_s, timezone.utc)
    whole = {"time": f"{time:%Y-%m-%dT%H:%M:%S.%f}Z", "level": level, **fields, "message": message}
    return json.dumps(whole, default=str, separators=(",", ":"))


#: Fields about this process in its lines in the JSON format; set by `describe`.
_context: dict[str, Any] = {}
#: The settings of the last call of `configure`.
_settings: dict[str, Any] = {}


def describe(process: str, **fields: Any) -> None:
    """Name this process for the JSON format's lines: its kind, and of a worker `model`, `version` and `instance`."""
    _context.clear()
    _context.update({"process": process, **fields})


def is_json() -> bool:
    """Whether this process's log is in the JSON format."""
    return _settings.get("log_format") == JSON


class _Switches(logging.Filter):
    """Lets a record pass if its level is switched on and belongs on this stream."""

    def __init__(
        self, *, is_stderr: bool, log_verbose: int, log_info: bool, log_warning: bool, log_error: bool
    ) -> None:
        super().__init__()
        self._is_stderr = is_stderr
        self._log_verbose = log_verbose
        self._log_info = log_info
        self._log_warning = log_warning
        self._log_error = log_error

    def filter(self, record: logging.LogRecord) -> bool:
        level = record.levelno
        if self._is_stderr is not (level >= logging.WARNING):
            return False
        if level >= logging.ERROR:
            return self._log_error
        if level >= logging.WARNING:
            return self._log_warning
        if level >= logging.INFO:
            return self._log_info
        return level >= verbose(self._log_verbose)  # independent of log_info, as in Triton


class PatientHandler(TextHandler):
    """A handler that never waits long for its stream: if the stream is not read, or the disk is full, lines are lost
    and counted."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._num_lost = 0  # changed by emit

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{self.format(record)}\n"
            if self._num_lost:
                text = f"\n{self._loss_line(record)}\n{text}"  # on a line of its own, after an unfinished one
            if put(self.stream, text, patience_ms=0 if self._num_lost else PATIENCE_MS):
                self._num_lost = 0
            else:
                self._num_lost += 1
        except Exception:  # noqa: BLE001  a record that cannot be formatted must not fail its caller
            self.handleError(record)

    def _loss_line(self, record: logging.LogRecord) -> str:
        lost, arguments = "%d messages are lost here: the log %s", (self._num_lost, problem_of(self.stream))
        return self.format(logging.LogRecord(record.name, logging.WARNING, __file__, 0, lost, arguments, None, "emit"))


class ForwardingHandler(logging.Handler):
    """A handler that gives another library's records to this log, whose switches and format apply to them."""

    def emit(self, record: logging.LogRecord) -> None:
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def print_line(line: str) -> None:
    """Print a line to stdout outside the log's format, unless that is JSON; the line is lost if stdout is a full
    pipe."""
    if is_json():
        logger.info("%s", line)
    else:
        put(sys.stdout, f"{line}\n")


def put(stream: TextIO | None, text: str | bytes, patience_ms: int = PATIENCE_MS) -> bool:
    """Write to a stream without waiting longer than `patience_ms`; False if all or the rest is lost: the stream is
    closed, it is not read, its reader has gone, or the disk is full."""
    if stream is None:  # this process was started without this stream
        return False
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # a test's stream that is not a file
        stream.write(text if isinstance(text, str) else text.decode("utf-8", "backslashreplace"))
        return True
    data = text.encode(stream.encoding or "utf-8", "backslashreplace") if isinstance(text, str) else text
    try:
        stream.flush()
    except OSError:
        return False  # what models and libraries have printed to it cannot be written
    return writer_of(fd).write(data, patience_ms)


def problem_of(stream: TextIO) -> str:
    """Why the last lines that were lost could not be written to this stream."""
    try:
        return writer_of(stream.fileno()).problem or UNREAD
    except (OSError, ValueError):
        return UNREAD


def to_file(path: str) -> None:
    """Redirect stdout and stderr of this process, and of those it will start, to a file.

    Raises OSError. The log's lines go there, and what models and frameworks print. Every write goes to the end of the
    file as it is then, so processes share it, and `copytruncate` of logrotate may empty it. A new file gets mode 0640.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log the exception that ends this process, which Python would print in its own form."""
    logger.error("the process ends: %s", error, exc_info=(kind, error, trace))


def configure(
    log_verbose: int = 0,
    log_info: bool = True,
    log_warning: bool = True,
    log_error: bool = True,
    log_format: str = "default",
) -> None:
    """Send this process's log to its stdout and stderr; a later call replaces the former's settings."""
    _settings["log_format"] = log_format
    formatter: logging.Formatter
    if log_format == JSON:
        formatter = JsonFormatter()
        sys.excepthook = _log_uncaught
    else:
        formatter = TritonFormatter(log_format, escape=os.environ.get(ESCAPE_VARIABLE) != "0")
        sys.excepthook = sys.__excepthook__
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue  # this process was started without this stream
        with suppress(OSError, ValueError):  # closed, or a test's stream that is not a file
            writer_of(stream.fileno()).follow()  # now, so that the first line takes no further descriptor
        handler = PatientHandler(stream)
        handler.setFormatter(formatter)
        handler.addFilter(
            _Switches(
                is_stderr=stream is sys.stderr,
                log_verbose=log_verbose,
                log_info=log_info,
                log_warning=log_warning,
                log_error=log_error,
            )
        )
        logger.addHandler(handler)
    logger.setLevel(max(1, min(logging.INFO, verbose(log_verbose))))
    logger.propagate = False
