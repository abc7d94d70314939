"""Why a model's last batches had their size: an int for each, in a ring. Pure; kept by schedulers that choose a size.

Nothing is counted until somebody asks: on the way of a request stands one `append`, of `noted(rows, reason)`.
"""

from collections import Counter, deque
from enum import IntEnum
from typing import Any

REASON_BITS = 4
#: Batches that are remembered (ours): enough to tell what is usual.
NUM_COUNTED = 1024
#: Of those, the ones that are told one by one (ours).
NUM_TOLD = 32


class BatchReason(IntEnum):
    """What kept a batch from having more rows, or had it go."""

    INSTANCE_IDLE = 0
    FULL = 1
    PREFERRED_SIZE = 2
    DELAY_OVER = 3
    SHAPES_DIFFER = 4
    RUN_AGAIN = 5
    LATENCY_TARGET = 6
    NO_GAIN = 7
    COMPANY_CAME = 8
    COMPANY_FAILED = 9


#: In words, for whoever asks.
MEANINGS = {
    BatchReason.INSTANCE_IDLE: "an instance was idle and took all that waited",
    BatchReason.FULL: "it was full: another request would have exceeded max_batch_size",
    BatchReason.PREFERRED_SIZE: "it had a preferred size",
    BatchReason.DELAY_OVER: "max_queue_delay_microseconds was over",
    BatchReason.SHAPES_DIFFER: "the next request had inputs of another shape",
    BatchReason.RUN_AGAIN: "its instance had died, so the request ran again, alone",
    BatchReason.LATENCY_TARGET: "with more rows, answers would have missed the latency target",
    BatchReason.NO_GAIN: "more rows at once would not have been faster, or are not known to be",
    BatchReason.COMPANY_CAME: "the requests that were worth waiting for had come",
    BatchReason.COMPANY_FAILED: "the requests that were worth waiting for had not come in time",
}


def account() -> deque[int]:
    """An empty one."""
    return deque(maxlen=NUM_COUNTED)


def noted(rows: int, reason: int) -> int:
    """What is appended for a batch. (On the way of a request it is written out: a call costs as much as the rest.)"""
    return rows << REASON_BITS | reason


def told(batches: deque[int]) -> dict[str, Any]:
    """As msgpack can carry it: how many batches each reason had, the most frequent first, and the last ones."""
    mask = (1 << REASON_BITS) - 1
    counts = Counter(BatchReason(each & mask) for each in batches)
    last = list(batches)[-NUM_TOLD:]
    return {
        "reasons": [
            {"reason": reason.name.lower(), "meaning": MEANINGS[reason], "batches": num_batches}
            for reason, num_batches in counts.most_common()
        ],
        "last_batches": [
            {"rows": each >> REASON_BITS, "reason": BatchReason(each & mask).name.lower()} for each in last
        ],
    }
