"""What is looked at in a guest's requests, because any process may have written them. Pure; lives in the batcher.

A front end is our own code, so its words are taken as they are. A guest may lie in each: what could reach beyond its
own requests is checked here, and what only its own answer depends on is not.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from operator import itemgetter
from typing import Any

from shoal.batcher.holders import Holders
from shoal.batcher.open_requests import OpenRequest
from shoal.batcher.peers import Client, Model, Worker
from shoal.shm.layout import SPAN_MASK, LayoutError, R, ref_owner
from shoal.shm.ring import Record

#: The header of a request: names, shapes, parameters. Unpacked it takes up to seventy times as much in a worker (ours).
MAX_HEADER_BYTES = 1 << 20
#: How long a guest may keep answers while the worker that they are of has no memory for the next (ours).
GUEST_HOLDS_NS = 2_000_000_000
#: How long ago a request may have begun, by its own account, for the statistics (ours).
_MAX_AGE_NS = 60_000_000_000
_MAX_INT64 = 2**63 - 1
_looked_at = itemgetter(R.NUMBER, R.BLOCK, R.HEADER, R.ROWS, R.SHAPE_KEY, R.PRIORITY, R.TIMEOUT_US, R.START_NS)


def checked(client: Client, model: Model, record: Record, now_ns: int) -> tuple[int, int]:
    """Of a guest's REQUEST, the shape key and the start that are believed. Raises LayoutError for what no client says.

    Its block is its own: in others' memory lie others' requests. Whether its header says what this says is for the
    worker to see, which reads it.
    """
    number, block, header, rows, shape_key, priority, timeout_us, start_ns = _looked_at(record)
    if ref_owner(block) != client.owner:
        raise LayoutError(f"guest {client.owner} names the block {block:#x}")
    if header & SPAN_MASK > MAX_HEADER_BYTES:
        raise LayoutError(f"guest {client.owner} has a header of {header & SPAN_MASK} bytes")
    if not 0 < rows <= model.max_rows:
        raise LayoutError(f"guest {client.owner} has a request of {rows} rows in number {number}")
    if priority > _MAX_INT64 or timeout_us > _MAX_INT64:
        raise LayoutError(f"guest {client.owner} has the priority {priority}, the timeout {timeout_us}")
    if not now_ns - _MAX_AGE_NS < start_ns <= now_ns:
        start_ns = now_ns
    # A false one would put tensors below others that they do not fit; so a guest's are batched with its own only, but
    # where there is only one key.
    shape_key = 0 if model.is_fixed else hash((client.owner, shape_key)) & _MAX_INT64 or 1
    return shape_key, start_ns


def greedy(requests: Iterable[OpenRequest], max_in_flight: int) -> list[int]:
    """The clients that have more open requests than they may."""
    counts = Counter([client.owner for client, *_ in requests])
    return [owner for owner, count in counts.items() if count > max_in_flight]


def is_starved(worker: Worker, now_ns: int, *, is_urgent: bool) -> bool:
    """A worker waits for memory: whether a guest must go for it. Not before it has waited for a while, and only where
    it is urgent: there is no memory elsewhere."""
    since_ns = worker.short_since_ns
    if since_ns and (not is_urgent or now_ns - since_ns <= GUEST_HOLDS_NS):
        return False
    worker.short_since_ns = now_ns
    return since_ns > 0


def most_holding_guest(holders: Holders, clients: Mapping[int, Client], segments: Container[int]) -> int:
    """The guest that holds most of the answers in these segments; 0 where none holds any."""
    for owner, _ in holders.num_held_of(segments).most_common():
        if owner in clients and clients[owner].is_guest:
            return owner
    return 0


def is_fixed(config: dict[str, Any]) -> bool:
    """Whether all requests to a model look alike, but for their rows: then each has the shape key 0."""
    return not any(
        -1 in each["dims"] or each.get("optional", False) or each.get("allow_ragged_batch", False)
        for each in config.get("input", ())
    )
