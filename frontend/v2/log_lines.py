"""GET /v2/debug/log: the last lines of the server's log file, for readers who are not on its machine. An extension that
Triton does not have; runs on the road.

`?lines=N` asks for at most N lines, `?after=POSITION` for those behind the `position` of an earlier answer. A server
without --log-file writes to a terminal, a pipe or the journal, which it cannot read back.
"""

import os
import stat
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.response import Response, json_response

#: Lines without `lines`, and the most there can be (ours).
DEFAULT_LINES, MAX_LINES = 200, 1000
#: The most bytes at the end of the file that are read, and the most characters of a line that are sent (ours).
MAX_READ_BYTES, MAX_CHARACTERS = 1 << 20, 4096
_NO_FILE = (
    "this server writes no log file: start it with --log-file=<path>. Under systemd, journalctl -u shoal has its log"
)


class LogLines(NamedTuple):
    """Lines of a log file, and the position in bytes behind the last one."""

    lines: list[str]
    position: int
    is_cut: bool  # lines before these, but behind the position that was asked for, are left out


@blocking
def log_lines(call: HandlerCall) -> Response:
    """The response with the last lines. Raises InvalidArgumentError, or UnavailableError if the file cannot be read."""
    asked = parse_qs(call.query, keep_blank_values=True)
    count = _number("lines", asked, DEFAULT_LINES, MAX_LINES)
    after = _number("after", asked, 0, 1 << 62, least=0)
    path = call.state.log_file
    if not path:
        return _response("", LogLines([], 0, is_cut=False), note=_NO_FILE)
    try:
        found = read_last(path, count, after)
    except OSError as error:
        raise UnavailableError(f"the log file '{path}' cannot be read: {error.strerror}") from None
    return _response(path, found)


def read_last(path: str, count: int, after: int) -> LogLines:
    """At most `count` whole lines at the end of a file, behind the position `after`; 0, or a position that the file
    does not have any more, asks for the last ones. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not be waited for
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return LogLines([], 0, is_cut=False)
        after = after if after <= about.st_size else 0
        start = max(after, about.st_size - MAX_READ_BYTES)
        data = os.pread(fd, about.st_size - start, start)
    finally:
        os.close(fd)
    end = data.rfind(b"\n") + 1  # a line that is being written comes with a later answer
    pieces = data[:end].split(b"\n")[:-1]
    if start > after and len(pieces) > 1:
        del pieces[0]  # its beginning is not there
    is_cut = start > after or len(pieces) > count
    return LogLines([_text(each) for each in pieces[-count:]], start + end, is_cut)


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"


def _response(path: str, found: LogLines, **more: Any) -> Response:
    named = os.fsencode(path).decode("utf-8", "backslashreplace")
    return json_response(200, {"log_file": named, **found._asdict(), **more})


def _number(name: str, asked: dict[str, list[str]], default: int, most: int, least: int = 1) -> int:
    text = asked.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise InvalidArgumentError(f"'{name}' is a number from {least} to {most}, got: '{text[:40]}'")
    return int(text)
