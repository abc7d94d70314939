"""The fields of a worker's log about a batch whose execution has failed. Pure; runs in a worker."""

from collections.abc import Sequence

from shoal.workers.requests import Request

#: The most ids of requests in one line of the log (ours).
MAX_LOGGED_IDS = 8


def failure_fields(requests: Sequence[Request]) -> dict[str, str | int]:
    """Fields of the log about a batch whose execution has failed: its number, and the first MAX_LOGGED_IDS ids of its
    requests, if any request has an id. A batch of a warm-up, which is part of a load, has no number."""
    if requests and not requests[0].batch:
        return {"stage": "load"}
    fields: dict[str, str | int] = {"stage": "execute"}
    if requests:  # there are none if no request of the batch could be read
        fields["batch"] = requests[0].batch
    if ids := [request.id for request in requests if request.id]:
        fields["request_id"] = ", ".join(ids[:MAX_LOGGED_IDS])
    return fields
