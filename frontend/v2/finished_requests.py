"""GET /v2/debug/requests: the slowest and the failed requests of the last five minutes, with where their time went. An
extension that Triton does not have; runs on the road.

`?model=NAME` names one model; `?limit=N` asks for at most N requests of either kind. The batcher keeps them
(batcher/finished_requests.py).
"""

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs

from shoal.errors import InvalidArgumentError
from shoal.finished_request import FinishedRequest
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.response import Response, encodable, json_response
from shoal.star.models import ModelEntry
from shoal.timing import timing

#: Requests of either kind without `limit`, and the most there can be (ours).
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
    """A request for a reader; `entries` are the models by their ids. Times are in ns."""
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
