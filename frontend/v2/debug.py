"""Extensions for finding faults, which Triton does not have; they run on the road.

GET /v2/debug/requests: the slowest and the failed requests of the last five minutes, with where their time went.
`?model=NAME` names one model; `?limit=N` asks for at most N requests of either kind. The batcher keeps these requests
(batcher/finished_requests.py).

GET /v2/debug/log: the last lines of the server's log file, for readers on other machines. `?lines=N` asks for at most N
lines, `?after=POSITION` for those behind the `position` of an earlier answer. A server without --log-file writes to a
terminal, a pipe or the journal, from which the server cannot read.
"""

import os
import stat
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.finished_request import FinishedRequest
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.response import Response, encodable, json_response
from shoal.star.models import ModelEntry
from shoal.timing import timing

#: Requests of either kind in an answer: without `limit` in the query, and at most (ours).
DEFAULT_LIMIT, MAX_LIMIT = 50, 1000


@blocking
def finished_requests(call: HandlerCall) -> Response:
    """The slowest requests, the slowest first, and the failed ones, the last first. Raises InvalidArgumentError."""
    asked = parse_qs(call.query, keep_blank_values=True)
    limit = _limit(asked.get("limit", [str(DEFAULT_LIMIT)])[-1])
    found = call.ask("finished_requests", {"model": asked.get("model", [""])[-1], "limit": limit})
    entries = {entry.model_id: entry for entry in call.state.models.entries()}
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()

    def described(values: list[Any]) -> dict[str, Any]:
        request = FinishedRequest.from_message(values)
        finished_ns = wall_ns - (now_ns - request.points.end_ns)
        return {"finished": _date(finished_ns), **describe(request, entries)}

    return json_response(
        200,
        {
            "slowest": [described(each) for each in found["slowest"]],
            "failed": [described(each) for each in found["failed"]],
            "num_others_failed": found["num_others_failed"],
        },
    )


def describe(request: FinishedRequest, entries: Mapping[int, ModelEntry]) -> dict[str, Any]:
    """A finished request as JSON; `entries` are the models by their ids. Times are in ns."""
    entry = entries.get(request.model_id)
    name, version, groups = ("", 0, ()) if entry is None else (entry.name, entry.version, entry.groups)
    times = timing(request.points, request.execution, groups=groups, version=str(version))
    error = request.error(name, version, groups)
    return {
        "model": encodable(name),
        "id": request.id,
        "trace_id": request.trace_id,
        "asker": request.asker,
        "rows": request.rows,
        "error": None if error is None else str(error),
        "code": None if error is None else type(error).__name__.removesuffix("Error"),
        **times._asdict(),
    }


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 6 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidArgumentError(f"'limit' is a number from 1 to {MAX_LIMIT}, got: '{text[:40]}'")
    return int(text)


def _date(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds")


#: Lines in an answer: without `lines` in the query, and at most (ours).
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
    is_cut: bool  # whether lines between the position that was asked for and these were left out


@blocking
def log_lines(call: HandlerCall) -> Response:
    """The response with the last lines. Raises InvalidArgumentError, or UnavailableError if the file cannot be read."""
    asked = parse_qs(call.query, keep_blank_values=True)
    count = _number("lines", asked, DEFAULT_LINES, MAX_LINES)
    after = _number("after", asked, 0, 1 << 62, least=0)
    path = call.state.log_file
    if not path:
        return _log_response("", LogLines([], 0, is_cut=False), note=_NO_FILE)
    try:
        found = read_last(path, count, after)
    except OSError as error:
        raise UnavailableError(f"the log file '{path}' cannot be read: {error.strerror}") from None
    return _log_response(path, found)


def read_last(path: str, count: int, after: int) -> LogLines:
    """At most `count` whole lines at the end of a file, behind the position `after`; if that is 0, or beyond the
    end of the file (which has then been replaced), the last lines. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # never waits for a pipe
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return LogLines([], 0, is_cut=False)
        after = after if after <= about.st_size else 0
        start = max(after, about.st_size - MAX_READ_BYTES)
        data = os.pread(fd, about.st_size - start, start)
    finally:
        os.close(fd)
    end = data.rfind(b"\n") + 1  # an unfinished line is left for a later answer
    pieces = data[:end].split(b"\n")[:-1]
    if start > after and len(pieces) > 1:
        del pieces[0]  # the beginning of this line was not read
    is_cut = start > after or len(pieces) > count
    return LogLines([_text(each) for each in pieces[-count:]], start + end, is_cut)


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"


def _log_response(path: str, found: LogLines, **more: Any) -> Response:
    named = os.fsencode(path).decode("utf-8", "backslashreplace")
    return json_response(200, {"log_file": named, **found._asdict(), **more})


def _number(name: str, asked: dict[str, list[str]], default: int, most: int, least: int = 1) -> int:
    text = asked.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise InvalidArgumentError(f"'{name}' is a number from {least} to {most}, got: '{text[:40]}'")
    return int(text)
