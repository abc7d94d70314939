"""Why the batcher itself refused or failed a request: a number in the reply's record, a sentence for the client.

The batcher has no text to send; the front end writes the sentence, since it knows the model and the request id.
Pure; the sentences are Triton's where clients match on them.
"""

from enum import IntEnum

from shoal import errors
from shoal.errors import ShoalError


class Reason(IntEnum):
    """The REASON word of a REPLY record."""

    NONE = 0
    QUEUE_FULL = 1
    STOPPING = 2
    NOT_READY = 3
    CANCELLED = 4
    INSTANCE_DIED = 5
    DAMAGED = 6
    TIMED_OUT = 7
    NO_MEMORY = 8


_SENTENCES: dict[Reason, tuple[type[ShoalError], str]] = {
    Reason.QUEUE_FULL: (errors.UnavailableError, "[request id: {id}] Exceeds maximum queue size"),
    Reason.STOPPING: (
        errors.UnavailableError,
        "[request id: {id}] Server is stopping, scheduler for model has stopped accepting new inference requests",
    ),
    Reason.NOT_READY: (
        errors.UnavailableError,
        "Request for unknown model: '{model}' version {version} is not at ready state",
    ),
    Reason.CANCELLED: (errors.CancelledError, "[request id: {id}] Request was cancelled"),
    Reason.INSTANCE_DIED: (
        errors.InternalError,
        "[request id: {id}] Failed to process the request(s) for model '{model}': the model instance died while "
        "executing them. The server's log says how; the instance is being restarted",
    ),
    Reason.DAMAGED: (
        errors.InternalError,
        "[request id: {id}] Failed to process the request(s) for model '{model}': "
        "the model instance sent an answer that cannot be read",
    ),
    Reason.NO_MEMORY: (
        errors.UnavailableError,
        "[request id: {id}] the instances of model '{model}' have no shared memory left for results: clients read "
        "slower than it answers. Read faster, or raise --shm-worker-slab-mib",
    ),
    Reason.TIMED_OUT: (errors.UnavailableError, "[request id: {id}] Request timeout expired"),
}


def without_memory(status: int) -> Reason:
    """Why a reply names no block: a worker whose whole slab waits for clients to read has no room for its sentence."""
    return Reason.NO_MEMORY if status == errors.UnavailableError.wire else Reason.DAMAGED


def error_for(reason: int, *, model: str, version: int, request_id: str) -> ShoalError:
    """The error a client gets for a refusal; an unknown reason is an internal error that says its number."""
    kind, sentence = _SENTENCES.get(
        Reason(reason) if reason in Reason._value2member_map_ else Reason.NONE,
        (errors.InternalError, f"the batcher refused the request for a reason this front end does not know: {reason}"),
    )
    return kind(sentence.format(model=model, version=version, id=request_id or "<id_unknown>"))
