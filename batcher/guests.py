"""Checks of guests' requests, which any process may have written. Pure; lives in the batcher.

A front end is our own code, so its records are believed. A guest may write anything into each word: words that could
affect other clients' requests are checked here; words that affect only the guest's own answer are not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from shoal.batcher.peers import ClientPeer, OpenRequest, ScheduledModel, WorkerPeer
from shoal.model_config.ragged_batching import MAX_LENGTH
from shoal.shm.layout import SPAN_MASK, LayoutError, R, ref_owner
from shoal.shm.ring import Record

#: Most bytes of a request's header (names, shapes, parameters): unpacked it takes up to seventy times as much (ours).
MAX_HEADER_BYTES = 1 << 20
#: How long (ns) a guest may hold replies while their worker has no memory for the next result (ours).
GUEST_HOLDS_NS = 2_000_000_000
#: Greatest age (ns) that a guest may claim for a request's start, which counts in the statistics (ours).
_MAX_AGE_NS = 60_000_000_000
_MAX_INT64 = 2**63 - 1
_looked_at = itemgetter(R.NUMBER, R.BLOCK, R.HEADER, R.ROWS, R.SHAPE_KEY, R.PRIORITY, R.TIMEOUT_US, R.START_NS)


def checked(client: ClientPeer, model: ScheduledModel, record: Record, now_ns: int) -> tuple[int, int]:
    """The shape key and start time (monotonic ns) to use for a guest's REQUEST. Raises LayoutError for an invalid
    record.

    The block must be the guest's own, since other clients' blocks hold other clients' requests. The worker that reads
    the header checks whether header and record agree.
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
    if model.signature.lengths:
        return min(max(1, shape_key), MAX_LENGTH), start_ns  # a false length is harmless: the worker pads to true ones
    # A false shape key would batch tensors that do not fit together; so a guest's requests are batched with its own
    # requests only, unless the model has only one shape key.
    shape_key = 0 if model.is_fixed else hash((client.owner, shape_key)) & _MAX_INT64 or 1
    return shape_key, start_ns


def over_limit(requests: Iterable[OpenRequest], max_in_flight: int) -> list[int]:
    """Owner ids of the clients with more open requests than they may have."""
    counts = Counter([client.owner for client, *_ in requests])
    return [owner for owner, count in counts.items() if count > max_in_flight]


def must_end_guest(worker: WorkerPeer, now_ns: int, *, is_urgent: bool) -> bool:
    """Whether a guest must be ended because a worker waits for memory: only after GUEST_HOLDS_NS, and only if
    `is_urgent`, which means that the worker gets no memory elsewhere. Notes in the worker since when it has waited."""
    since_ns = worker.short_since_ns
    if since_ns and (not is_urgent or now_ns - since_ns <= GUEST_HOLDS_NS):
        return False
    worker.short_since_ns = now_ns
    return since_ns > 0


def most_holding_guest(held: Mapping[int, int], clients: Mapping[int, ClientPeer], half: float) -> int:
    """Owner id of the guest that holds most, if all guests together hold at least `half`; else 0, since ending a guest
    that holds little would help no other process. `held` has the number of blocks or bytes that each client holds, by
    owner id."""
    guests = {owner: share for owner, share in held.items() if owner in clients and clients[owner].is_guest}
    return max(guests, key=lambda owner: guests[owner]) if guests and sum(guests.values()) >= half else 0


def is_fixed(config: dict[str, Any]) -> bool:
    """Whether all requests to a model differ only in their number of rows: then each has the shape key 0."""
    return not any(
        -1 in each["dims"] or each.get("optional", False) or each.get("allow_ragged_batch", False)
        for each in config.get("input", ())
    )
