"""The reasons for the sizes of a model's last batches: an int for each batch, in a ring. Pure; kept by batching
schedulers.

Reasons are counted only on request; forming a batch costs a single `append`, of `noted(rows, reason)`.
"""

from collections import Counter, deque
from enum import IntEnum
from typing import Any

REASON_BITS = 4
#: Batches that are remembered (ours): enough to show the usual reasons.
NUM_COUNTED = 1024
#: The last batches, which are listed one by one (ours).
NUM_LISTED = 32


class BatchReason(IntEnum):
    """Why a batch has no more rows, or why it was formed at its time and not later. Programs read the names from `shoal
    explain`."""

    INSTANCE_IDLE = 0
    FULL = 1
    PREFERRED_SIZE = 2
    DELAY_OVER = 3
    SHAPES_DIFFER = 4
    RUN_AGAIN = 5
    LATENCY_TARGET = 6
    NO_GAIN = 7
    EXPECTED_ARRIVED = 8
    EXPECTED_MISSING = 9
    ALONE = 10
    PADDING = 11


#: The reasons in words, for `shoal explain`.
MEANINGS = {
    BatchReason.INSTANCE_IDLE: "an instance was idle and took all that waited",
    BatchReason.FULL: "it was full: another request would have exceeded max_batch_size",
    BatchReason.PREFERRED_SIZE: "it had a preferred size",
    BatchReason.DELAY_OVER: "max_queue_delay_microseconds was over",
    BatchReason.SHAPES_DIFFER: "the next request had inputs of another shape, or was to run alone",
    BatchReason.RUN_AGAIN: "its instance had died, so the request ran again, alone",
    BatchReason.LATENCY_TARGET: "with more rows, answers would have missed the latency target",
    BatchReason.NO_GAIN: "more rows at once would not have been faster, or are not known to be",
    BatchReason.EXPECTED_ARRIVED: "the requests that it waited for had arrived",
    BatchReason.EXPECTED_MISSING: "the requests that it waited for had not arrived in time",
    BatchReason.ALONE: "the request was to run alone, by its parameter 'deterministic'",
    BatchReason.PADDING: "the others that waited had other lengths, for which padding was not worth it",
}


def account() -> deque[int]:
    """An empty ring for the reasons of NUM_COUNTED batches."""
    return deque(maxlen=NUM_COUNTED)


def noted(rows: int, reason: int) -> int:
    """The int to append for a batch. (Batching schedulers have this expression written out: a call costs as much as all
    else that they do for it.)"""
    return rows << REASON_BITS | reason


def summary(batches: deque[int]) -> dict[str, Any]:
    """The number of batches by reason, the most frequent reason first, and the last batches; of types that msgpack
    packs."""
    mask = (1 << REASON_BITS) - 1
    counts = Counter(BatchReason(each & mask) for each in batches)
    last = list(batches)[-NUM_LISTED:]
    return {
        "reasons": [
            {"reason": reason.name.lower(), "meaning": MEANINGS[reason], "batches": num_batches}
            for reason, num_batches in counts.most_common()
        ],
        "last_batches": [
            {"rows": each >> REASON_BITS, "reason": BatchReason(each & mask).name.lower()} for each in last
        ],
    }
