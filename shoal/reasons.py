"""Reasons for which the batcher refused or failed a request: a number in the reply's record, a sentence for clients.

The batcher has no text to send; the front end builds the sentence, since it knows the model and the request id. For a
worker's death, a second word says which instance has died and how; the supervisor packs that word, the batcher passes
it on unread. Pure; the sentences are Triton's where clients match on them.
"""

import signal
from collections.abc import Sequence
from enum import IntEnum
from math import ceil
from typing import Any, NamedTuple

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
    OUT_OF_MEMORY = 9
    EXECUTION_LIMIT = 10
    MODEL_FAILED = 11
    TAKEN_OVER = 12
    TOO_LATE = 13
    NOT_STARTED = 14
    NO_CORRELATION = 15
    SEQUENCE_TIMED_OUT = 16
    SEQUENCE_LOST = 17
    POISON = 18
    NOT_ALONE = 19
    NO_STEP_MEMORY = 20


#: The REASON of a reply that is an answer like any other, and no refusal: DETAIL is the number of the version that has
#: answered, since the request named none (batcher/splits.py). Not a Reason: it has no sentence.
OTHER_VERSION = 64


class ModelGoneError(errors.UnavailableError):
    """The batcher no longer has the model version: it was unloaded or replaced."""


class QueueFullError(errors.UnavailableError):
    """The model's queue has no room for the request."""


class PoisonRefusedError(errors.InvalidArgumentError):
    """Requests with the same content have ended instances; this one is not executed. Not worth another attempt before
    the time that the sentence names. Triton has no code for that."""

    http_status, grpc_status = 422, 9


class WorkerDiedError(errors.InternalError):
    """The instance that executed the request has died, or was ended because it took too long."""

    #: Whether the kernel or an operator has killed the worker (SIGKILL).
    was_killed: bool = False


class DeathDetail(NamedTuple):
    """The DETAIL word of a REPLY whose REASON is a worker's death.

    bits 42 to 63 pid | 34 to 41 instance group | 26 to 33 number in the group | 0 to 25 figure
    """

    pid: int  # below 2^22 in the kernel
    group: int  # index of the group among all names that the version's groups have had; UNNAMED_GROUP at most
    number: int  # the instance's number in its group: the last part of its name
    #: The return code in two's complement of 16 bits, and SHARED_PROCESS where that holds; for the reason
    #: EXECUTION_LIMIT the limit in ms; for OUT_OF_MEMORY two sizes: the worker's peak, and its limit.
    figure: int

    def pack(self) -> int:
        """The detail as a word."""
        return self.pid << 42 | self.group << 34 | self.number << 26 | self.figure

    @classmethod
    def unpack(cls, word: int) -> "DeathDetail":
        """The detail in a word, which may be any number."""
        return cls(word >> 42, word >> 34 & 0xFF, word >> 26 & 0xFF, word & MAX_FIGURE)

    @property
    def code(self) -> int:
        """The exit code of the worker; negative: the number of the signal that ended it."""
        code = self.figure & 0xFFFF
        return code - 0x10000 if code & 0x8000 else code

    def instance_name(self, groups: Sequence[str]) -> str:
        """Triton's name of the instance, as in `simple_0_1`; `groups` are the names of its version's groups."""
        return f"{groups[self.group] if self.group < min(len(groups), UNNAMED_GROUP) else '?'}_{self.number}"


MAX_FIGURE = (1 << 26) - 1
#: In the figure of a death: other instances of the model shared the process, and one of them may have been the cause.
SHARED_PROCESS = 1 << 16
#: The `group` of a DeathDetail for each group with this index or a higher one: the word has 8 bits for it.
UNNAMED_GROUP = (1 << 8) - 1
_MANTISSA_BITS, _EXPONENT_BITS = 9, 4
_MAX_MIB = ((1 << _MANTISSA_BITS) - 1) << ((1 << _EXPONENT_BITS) - 1)  # 16 TiB


def has_died_with_others(reason: Reason, detail: int) -> bool:
    """Whether a death has ended all instances in the worker's process, if it had several; False for a death that the
    batcher blames on one of them, or that has ended one alone."""
    if reason is Reason.INSTANCE_DIED:
        return bool(DeathDetail.unpack(detail).figure & SHARED_PROCESS)
    return reason in (Reason.OUT_OF_MEMORY, Reason.EXECUTION_LIMIT)


def pack_sizes(*sizes_mib: int) -> int:
    """Two sizes in one figure, rounded down to about three digits: for each 9 bits, and 4 that say how far to shift
    those."""
    figure = 0
    for size_mib in sizes_mib:
        mib = min(size_mib, _MAX_MIB)
        exponent = max(0, mib.bit_length() - _MANTISSA_BITS)
        figure = (figure << _MANTISSA_BITS | mib >> exponent) << _EXPONENT_BITS | exponent
    return figure


def unpack_sizes(figure: int) -> tuple[int, int]:
    """The two sizes of a figure in MiB, rounded down."""
    bits = _MANTISSA_BITS + _EXPONENT_BITS
    first, second = (
        (part >> _EXPONENT_BITS & (1 << _MANTISSA_BITS) - 1) << (part & (1 << _EXPONENT_BITS) - 1)
        for part in (figure >> bits, figure)
    )
    return first, second


def pack_poison(num_deaths: int, left_ns: int) -> int:
    """The DETAIL word of a REPLY whose REASON is POISON: 22 bits for the number of deaths, and 42 for the time in us
    for which equal requests are still refused."""
    return min(num_deaths, (1 << 22) - 1) << 42 | min(left_ns // 1000, (1 << 42) - 1)


def unpack_poison(word: int) -> tuple[int, float]:
    """The number of deaths, and the time in seconds, in a word of `pack_poison`."""
    return word >> 42, (word & (1 << 42) - 1) / 1e6


_MAX_US = (1 << 32) - 1


def pack_times(needed_ns: int, left_ns: int) -> int:
    """The DETAIL word of a REPLY whose REASON is TOO_LATE: the time that an answer needs, and the time left until the
    request's deadline, in us, of 32 bits each."""
    return min(needed_ns // 1000, _MAX_US) << 32 | min(left_ns // 1000, _MAX_US)


def unpack_times(word: int) -> tuple[float, float]:
    """The two times in a word of `pack_times`, in seconds."""
    return (word >> 32) / 1e6, (word & _MAX_US) / 1e6


#: The sentence about a version all of whose instances are FAILED. It names no request id: a front end that refuses the
#: request has not read its id yet. The batcher refuses with the same sentence.
ALL_FAILED = (
    "Model '{model}' version {version} is unavailable: all its instances died again and again. The server's log says "
    "how; they are tried again from time to time"
)
#: Triton's sentence for a request that left its queue unanswered; over the network, clients recognise that case by this
#: sentence alone.
TIMED_OUT = "Request timeout expired"
_FAILED = "[request id: {id}] Failed to process the request(s) for model '{model}': "
#: Triton's sentence, on which clients match, and the facts that it leaves out.
_DIED = (
    "[request id: {id}] Failed to process the request(s) for model instance '{instance}', message: Stub process "
    "'{instance}' is not healthy. The worker of model '{model}' (pid {pid})"
)
_SHARED = "; other instances of the model share that process, and one of them may have been the cause"
_RESTARTED = "The server's log says more; the instance is being restarted"

_SENTENCES: dict[Reason, tuple[type[ShoalError], str]] = {
    Reason.QUEUE_FULL: (QueueFullError, "[request id: {id}] Exceeds maximum queue size"),
    Reason.STOPPING: (
        errors.UnavailableError,
        "[request id: {id}] Server is stopping, scheduler for model has stopped accepting new inference requests",
    ),
    Reason.NOT_READY: (
        ModelGoneError,
        "Request for unknown model: '{model}' version {version} is not at ready state",
    ),
    Reason.CANCELLED: (errors.CancelledError, "[request id: {id}] Request was cancelled"),
    Reason.INSTANCE_DIED: (
        WorkerDiedError,
        f"{_DIED} {{end}} while executing them{{shared}}. {_RESTARTED}",
    ),
    Reason.OUT_OF_MEMORY: (
        WorkerDiedError,
        f"{_DIED} was killed by the kernel's OOM killer while executing them: its memory had peaked at {{peak}}, the "
        f"limit is {{limit}}. {_RESTARTED}",
    ),
    # Triton has no code for "too late, and do not try again"; UNAVAILABLE, for a request that expired in the queue,
    # invites clients to repeat a request that has just cost an instance. So this reason has the code of other deaths.
    Reason.EXECUTION_LIMIT: (
        WorkerDiedError,
        f"{_DIED} was ended because the execution took longer than the limit of {{limit_ms}} ms. If the model needs "
        f"it, raise the parameter 'execution_timeout_ms', or --model-execution-timeout-secs. {_RESTARTED}",
    ),
    Reason.DAMAGED: (
        errors.InternalError,
        f"{_FAILED}the model instance sent an answer that cannot be read",
    ),
    Reason.NO_MEMORY: (
        errors.UnavailableError,
        "[request id: {id}] the instances of model '{model}' have no shared memory left for results: clients read "
        "slower than it answers. Read faster, or raise --shm-worker-slab-mib",
    ),
    Reason.NO_STEP_MEMORY: (
        errors.UnavailableError,
        "[request id: {id}] no memory is left for a request to ensemble '{model}': requests to ensembles under way, "
        "and responses of ensembles that clients hold, take all that there is for them together. Try again; a client "
        "in shared memory that keeps such results should copy them",
    ),
    Reason.TOO_LATE: (
        errors.UnavailableError,
        "[request id: {id}] model '{model}' is overloaded: it needs about {needed} to answer this request, which has "
        "{left} left",
    ),
    Reason.POISON: (
        PoisonRefusedError,
        "[request id: {id}] model '{model}' version {version} does not execute this request: equal ones have ended "
        "{num_deaths} of its instances. It is refused for another {refused}. The server's log has its shapes; "
        "change the request, or mend the model and load it again",
    ),
    Reason.NOT_ALONE: (
        errors.InvalidArgumentError,
        "[request id: {id}] model '{model}' batches sequences, whose requests cannot be 'deterministic': leave that "
        "parameter out",
    ),
    Reason.TIMED_OUT: (errors.UnavailableError, TIMED_OUT),
    Reason.TAKEN_OVER: (
        errors.UnavailableError,
        "[request id: {id}] another batcher has taken the place of the one that passed on the answers of model "
        "'{model}' to this request, which may have been executed in part. Try again",
    ),
    Reason.MODEL_FAILED: (errors.UnavailableError, ALL_FAILED),
    Reason.NOT_STARTED: (
        errors.InvalidArgumentError,
        "inference request for sequence {correlation_id} to model '{model}' must specify the START flag on the first "
        "request of the sequence",
    ),
    Reason.NO_CORRELATION: (
        errors.InvalidArgumentError,
        "inference request to model '{model}' must specify a non-zero or non-empty correlation ID",
    ),
    Reason.SEQUENCE_TIMED_OUT: (errors.UnavailableError, "timeout of the corresponding sequence has been expired"),
    Reason.SEQUENCE_LOST: (
        errors.UnavailableError,
        "[request id: {id}] the sequence {correlation_id} of model '{model}' has ended with the instance that had its "
        "state. Begin it again with the START flag",
    ),
}


def without_memory(status: int) -> Reason:
    """The reason for an error without a block, by the reply's status. UnavailableError's: the worker's slab is full of
    answers that clients read slowly, and has no room for the error's sentence."""
    return Reason.NO_MEMORY if status == errors.UnavailableError.wire else Reason.DAMAGED


#: The reasons that mean a full queue, full memory or a slow queue: the client may try again in a second.
_OVERLOADED = frozenset({Reason.QUEUE_FULL, Reason.TIMED_OUT, Reason.NO_STEP_MEMORY})


def error_for(
    reason: int,
    detail: int = 0,
    *,
    model: str,
    version: int,
    request_id: str,
    groups: Sequence[str] = (),
    correlation_id: int | str = 0,
) -> ShoalError:
    """The error a client gets for a refusal; an unknown reason is an internal error that says its number.

    `detail` is the reply's DETAIL word; `groups` are the names of the model's instance groups.
    """
    kind, sentence = _SENTENCES.get(
        Reason(reason) if reason in Reason._value2member_map_ else Reason.NONE,
        (errors.InternalError, f"the batcher refused the request for a reason this front end does not know: {reason}"),
    )
    death = DeathDetail.unpack(detail)
    peak, limit = map(describe_size, unpack_sizes(death.figure))
    needed_s, left_s = unpack_times(detail)
    num_deaths, refused_s = unpack_poison(detail)
    error = kind(
        sentence.format(
            model=model,
            version=version,
            id=request_id or "<id_unknown>",
            correlation_id=correlation_id,
            instance=death.instance_name(groups),
            pid=death.pid,
            end=describe_exit(death.code),
            shared=_SHARED if death.figure & SHARED_PROCESS else "",
            limit_ms=death.figure,
            peak=peak,
            limit=limit,
            needed=describe_time(needed_s),
            left=describe_time(left_s),
            num_deaths=num_deaths,
            refused=describe_time(refused_s),
        )
    )
    if isinstance(error, WorkerDiedError):
        killed = reason == Reason.INSTANCE_DIED and death.code == -signal.SIGKILL
        error.was_killed = killed or reason == Reason.OUT_OF_MEMORY
    if reason == Reason.TOO_LATE:
        error.retry_after_s = max(1, ceil(needed_s - left_s))
    elif reason in _OVERLOADED:
        error.retry_after_s = 1
    return error


def describe_time(time_s: float) -> str:
    """A time: `0.25 ms`, `212 ms`, `7.9 s`."""
    if time_s >= 1:
        return f"{time_s:.1f} s"
    return f"{time_s * 1000:.0f} ms" if time_s >= 0.01 else f"{time_s * 1000:.2g} ms"


def describe_size(mib: int) -> str:
    """A size of memory: `212 MiB`, `7.9 GiB`."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def describe_exit(code: int) -> str:
    """A return code in words: `exited with code 1`, `was killed by signal 9 (SIGKILL)`."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({_signal_name(-code)})"


def end_fields(code: int) -> dict[str, Any]:
    """A return code in fields of the log: `exit_code`, or the `signal` by its name."""
    return {"exit_code": code} if code >= 0 else {"signal": _signal_name(-code)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
