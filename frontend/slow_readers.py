"""Limits for clients that read responses slowly: how long one may hold a worker's block, and when its connection is
closed.

A response is sent straight from the worker's block. If the client has not read it after HOLD_S, or still reads when the
worker lacks memory, the rest is copied, within what a front end may keep (kept_memory.py). Where there is no room for
the copy, the block stays in use until the worker can get memory nowhere else: then the slowest clients' connections are
closed.
"""

from shoal.frontend.counted_warning import CountedWarning

#: How long a reader may hold a worker's block before its unread rest is copied, or before it is given up for a
#: worker that lacks memory; and how long it may take nothing at all before its connection ends (ours).
HOLD_S, SEND_S = 1.0, 30.0


def slow_reader_log(what: str) -> CountedWarning:
    """The warning about clients whose responses, calls or connections a front end has given up."""
    return CountedWarning(
        f"a model lacks memory for its results: ended %d {what} of clients that read too slowly, longest first "
        "(they held results in shared memory; --shm-worker-slab-mib, --shm-oversize-mib)"
    )
