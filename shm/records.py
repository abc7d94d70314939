"""Records as tuples of words, as shm/layout.py describes them: one function for each kind.

The kinds that every request needs are written out where they are pushed, since a call costs as much as the whole tuple:
REQUEST in shm/port.py, BATCH_ITEM in batcher/dispatch.py, DONE in workers/loop.py, REPLY in batcher/open_requests.py.
"""

from collections.abc import Iterable

from shoal.reasons import OTHER_VERSION
from shoal.shm.layout import (
    CANCEL,
    CHILD_REQUEST,
    CHILD_TRACE,
    DONE,
    EXECUTION,
    FREE,
    HAVE,
    HOLD,
    READY,
    RECALL,
    RELEASE,
    REPLY,
    RESCHEDULE,
    RESPONSE,
    RETURN,
    SEQUENCE_END,
    TRACE,
    WANT,
    P,
    Q,
    R,
    Record,
)


def child_request_record(request: Record, parent: int) -> Record:
    """CHILD_REQUEST with the words of a REQUEST, made for the request whose key is `parent`."""
    return (CHILD_REQUEST, *request[R.NUMBER : Q.PARENT], parent, *request[Q.PARENT + 1 :])


def cancel_record(number: int, *, is_sure: bool) -> Record:
    """CANCEL from a client. `is_sure`: the client does not wait any more; otherwise the client may still read the
    answer, and only a worker that has the request is notified."""
    return (CANCEL, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, int(not is_sure))


def cancel_item_record(key: int) -> Record:
    """CANCEL to a worker that has the request."""
    return (CANCEL, key)


def release_record(number: int, *others: int) -> Record:
    """RELEASE of the final replies to these requests, at most MAX_RELEASED."""
    return (RELEASE, number, 0, 0, *others)


def release_part_record(number: int, block: int) -> Record:
    """RELEASE of a reply that is not the final one and lies in this block."""
    return (RELEASE, number, 0, block)


def hold_record(number: int, block: int, *, is_first: bool, is_part: bool) -> Record:
    """HOLD of a reply's block; `is_part`: the reply is not the final one."""
    return (HOLD, number, int(is_first), block, 0, 0, 0, 0, 0, 0, 0, 0, int(is_part))


def trace_record(number: int, *, is_shown: bool = False, trace_id: tuple[int, int] = (0, 0)) -> Record:
    """TRACE of a request whose REQUEST stands before this record in the ring. `is_shown`: its EXECUTION is wanted, too;
    `trace_id`: two words."""
    return (TRACE, number, int(is_shown), *trace_id)


def execution_record(number: int, execution: Iterable[int]) -> Record:
    """EXECUTION of a request; `execution` are its words from INSTANCE on."""
    return (EXECUTION, number, *execution)


def part_record(number: int, status: int, block: int, header: int, num_pieces: int) -> Record:
    """REPLY that is not the final one to a request."""
    return (REPLY, number, status, block, header, 0, 0, 0, 0, 0, 0, 0, 1, num_pieces)


def traced_reply_record(
    number: int, status: int, block: int, header: int, times: tuple[int, int, int, int, int], num_pieces: int
) -> Record:
    """REPLY, the final one, with the times QUEUE_START_NS to COMPUTE_END_NS."""
    return (REPLY, number, status, block, header, 0, 0, *times, 0, num_pieces)


def lent_reply_record(reply: Record) -> Record:
    """The final REPLY to a request whose block the batcher goes on reading."""
    return (*reply, *(0,) * (P.IS_LENT - len(reply)), 1)


def return_record(number: int) -> Record:
    """RETURN of the block of a request; 0: of all that were lent to a dead batcher."""
    return (RETURN, number)


def of_version(reply: Record, version: int) -> Record:
    """The final REPLY, of at least five words, to a request that was answered by another version of the model than the
    one to which it was sent."""
    return (*reply[: P.REASON], OTHER_VERSION, version, *reply[P.DETAIL + 1 :])


def refusal_record(number: int, status: int, reason: int, detail: int = 0, times: tuple[int, ...] = ()) -> Record:
    """REPLY of a request that the batcher refuses: the number of the reason's sentence, the number in that sentence,
    and the times if the request is traced."""
    return (REPLY, number, status, 0, 0, reason, detail, *times)


def child_trace_record(
    number: int, key: int, parent: int, model: int, version: int, times: tuple[int, ...], end_ns: int, *, is_call: bool
) -> Record:
    """CHILD_TRACE; `times` are START_NS to COMPUTE_END_NS."""
    return (CHILD_TRACE, number, key, parent, model, version, *times, end_ns, int(is_call))


def recall_record(owners: Iterable[int], *, is_urgent: bool) -> Record:
    """RECALL of responses in the segments of at most MAX_RECALLED owners."""
    return (RECALL, int(is_urgent), *owners)


def free_record(block: int) -> Record:
    """FREE of a block that no BATCH_ITEM has in FREED."""
    return (FREE, 0, 0, block)


def sender_record(
    key: int, status: int, block: int, header: int, times: tuple[int, int, int, int], *, is_last: bool
) -> Record:
    """DONE or RESPONSE that a response sender writes; it does not name the batch that the request came with."""
    return (DONE if is_last else RESPONSE, key, 0, status, block, header, *times)


def ready_record(batch: int, times: tuple[int, ...]) -> Record:
    """READY; `times` are COMPUTE_START_NS to COMPUTE_END_NS."""
    return (READY, 0, batch, 0, 0, 0, *times)


def reschedule_record(key: int, batch: int) -> Record:
    """RESCHEDULE of a request that a worker returns to its queue."""
    return (RESCHEDULE, key, batch)


def sequence_end_record(key: int) -> Record:
    """SEQUENCE_END of the sequence that a request belongs to."""
    return (SEQUENCE_END, key)


def want_record(urgency: int) -> Record:
    """WANT with an urgency: NEWS, ROOM or ROOM_NOW."""
    return (WANT, 0, 0, urgency)


def have_record(block: int) -> Record:
    """HAVE of a block that has not been freed."""
    return (HAVE, 0, 0, 0, block)
