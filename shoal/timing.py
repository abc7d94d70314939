"""Where the time of one request went: its phases, the parts of its wait, and the batch that it was in. Pure.

The text form is that of the HTTP header Server-Timing (W3C): a metric with a duration in ms, a description, or both.

    receive;dur=0.021500, …, queue;dur=4.100000, queue-busy;dur=3.900000, …, total;dur=9.800000,
    batch;desc="3 requests, 8 rows", ahead;desc="2 requests, 2 rows";dur=3.800000, instance;desc="mlp_0_0",
    pid;desc="4711", version;desc="1", step;desc="resize";dur=1.250000
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

from shoal.reasons import DeathDetail

#: The request header by which a client asks for the times of its request; Server-Timing has them.
REQUEST_HEADER = "x-shoal-timing"
#: The phases of a request in their order: its bytes come in; it is parsed, and its batcher has it; it waits; its worker
#: collects its inputs, executes the model, writes its outputs; they are on the way to the client. `steps` is the time
#: of an ensemble's steps, in place of the worker's three.
PHASES = ("receive", "parse", "queue", "gather", "compute", "write", "steps", "send")
_COMPUTED = ("queue", "gather", "compute", "write", "send")
#: Steps of one request that are shown (ours: a header's line stays below 8 KiB).
MAX_STEPS = 32


class Cause(IntEnum):
    """Why a batch was not formed although an instance could have taken it."""

    FORMING = 0  # it might have grown, as max_queue_delay_microseconds or a latency target allow
    LIMIT = 1  # the rate limiter had not allocated the instance's resources
    SEQUENCE = 2  # an earlier request of its sequence was not done, or no slot was free


#: The parts of a wait: for an instance that was executing, or had not started; for more requests, the rate limiter or
#: the sequence; and for the worker to take the batch.
_PARTS = {Cause.FORMING: "forming", Cause.LIMIT: "limit", Cause.SEQUENCE: "sequence"}
QUEUE_PARTS = ("busy", *_PARTS.values(), "wake")


class Execution(NamedTuple):
    """The execution that a request was part of, as the batcher knows it: the words of EXECUTION (shm/layout.py) from
    INSTANCE on. Times are monotonic ns. `ahead` is the batch before on the same instance; 0: there was none."""

    instance: int  # DeathDetail (shoal/reasons.py): pid, group and number
    cause: int
    formed_ns: int  # when the batch was given to the instance
    free_ns: int  # when the instance had ended its last execution, or had come up
    rows: int
    requests: int
    ahead_rows: int
    ahead_requests: int
    ahead_start_ns: int
    ahead_end_ns: int
    is_overtaken: int  # 1: a later request of a higher priority was executed before


class Timing(NamedTuple):
    """Where the time of a request went, in ns. Facts about the batch are 0 or empty where no instance has answered."""

    phases: Mapping[str, int]  # of PHASES those that the request went through
    queue: Mapping[str, int]  # the parts of the phase `queue` (QUEUE_PARTS), as far as they are known and not 0
    total_ns: int
    batch_requests: int = 0  # in the batch, this one among them
    batch_rows: int = 0
    ahead_requests: int = 0  # in the batch that the instance executed while the request waited
    ahead_rows: int = 0
    ahead_ns: int = 0  # how long that batch's execution took
    is_overtaken: bool = False  # a later request of a higher priority was executed before
    instance: str = ""
    pid: int = 0
    version: str = ""
    steps: Sequence[tuple[str, int]] = ()  # an ensemble's steps, and calls of other models: model, time from its start


class Points(NamedTuple):
    """The times at which a request went on, monotonic ns; 0 for a point that was not reached or is not known."""

    begun_ns: int  # its first bytes had come
    start_ns: int  # its last bytes had come
    queue_ns: int
    compute_start_ns: int
    input_end_ns: int
    output_start_ns: int
    compute_end_ns: int
    end_ns: int  # its response begins to be sent


def timing(
    points: Points,
    execution: Execution | None = None,
    *,
    groups: Sequence[str] = (),
    version: str = "",
    steps: Sequence[tuple[str, int]] = (),
) -> Timing:
    """The phases between the points. Each point is raised to the latest of those before it: processes read their clocks
    at different moments of one turn of their loops. `groups` are the names of the model's instance groups."""
    begun_ns, *later = [*accumulate((points.begun_ns or points.start_ns, *points[1:]), max)]
    start_ns, queue_ns, compute_start_ns, *_, end_ns = later
    phases = {"receive": start_ns - begun_ns} if points.begun_ns else {}
    if points.queue_ns:
        phases["parse"] = queue_ns - start_ns
    if points.compute_start_ns:
        phases |= {name: after - before for name, (before, after) in zip(_COMPUTED, pairwise(later[1:]), strict=True)}
    else:
        phases["steps" if steps else "queue" if points.queue_ns else "parse"] = end_ns - queue_ns
    total_ns = end_ns - begun_ns
    if execution is None:
        return Timing(phases, {}, total_ns, version=version, steps=steps)
    instance = DeathDetail.unpack(execution.instance)
    has_ahead = execution.ahead_end_ns > queue_ns
    return Timing(
        phases,
        _wait(queue_ns, compute_start_ns, execution),
        total_ns,
        execution.requests,
        execution.rows,
        execution.ahead_requests if has_ahead else 0,
        execution.ahead_rows if has_ahead else 0,
        max(0, execution.ahead_end_ns - execution.ahead_start_ns) if has_ahead else 0,
        bool(execution.is_overtaken),
        instance.instance_name(groups),
        instance.pid,
        version,
        steps,
    )


def _wait(queue_ns: int, compute_start_ns: int, execution: Execution) -> dict[str, int]:
    formed_ns = min(max(queue_ns, execution.formed_ns), compute_start_ns)
    free_ns = min(max(queue_ns, execution.free_ns), formed_ns)
    taken_ns = min(max(formed_ns, execution.ahead_end_ns), compute_start_ns)
    cause = _PARTS.get(Cause(execution.cause) if execution.cause in Cause._value2member_map_ else Cause.FORMING, "")
    parts = {
        "busy": free_ns - queue_ns + taken_ns - formed_ns,
        cause: formed_ns - free_ns,
        "wake": compute_start_ns - taken_ns,
    }
    return {name: time_ns for name, time_ns in parts.items() if time_ns}


# ---------------------------------------------------------------------------------------------------------------
# The text form


def as_header(timing: Timing) -> str:
    """The value of the header Server-Timing: printable ASCII, without line ends."""
    metrics = [_metric(name, timing.phases[name]) for name in PHASES if name in timing.phases]
    metrics += [_metric(f"queue-{name}", timing.queue[name]) for name in QUEUE_PARTS if name in timing.queue]
    metrics.append(_metric("total", timing.total_ns))
    if timing.batch_requests:
        metrics.append(f'batch;desc="{timing.batch_requests} requests, {timing.batch_rows} rows"')
    if timing.ahead_requests:
        described = f"{timing.ahead_requests} requests, {timing.ahead_rows} rows"
        metrics.append(_metric("ahead", timing.ahead_ns, described))
    if timing.is_overtaken:
        metrics.append("overtaken")
    for name, text in (("instance", timing.instance), ("pid", str(timing.pid or "")), ("version", timing.version)):
        if text:
            metrics.append(f'{name};desc="{_quotable(text)}"')
    metrics += [_metric("step", time_ns, name) for name, time_ns in timing.steps[:MAX_STEPS]]
    return ", ".join(metrics)


def _metric(name: str, time_ns: int, description: str = "") -> str:
    described = f';desc="{_quotable(description)}"' if description else ""
    return f"{name}{described};dur={time_ns / 1e6:.6f}"


def _quotable(text: str) -> str:
    return re.sub(r"[^ !#-\[\]-~]", "?", text)


def wants_timing(headers: Mapping[str, str]) -> bool:
    """Whether a client asks for the times of its request; header names are in lower case."""
    return headers.get(REQUEST_HEADER, "0").strip().lower() not in ("", "0", "false")


def trace_id_of(headers: Mapping[str, str]) -> int:
    """The id of the client's trace, 128 bits, from its header `traceparent` (W3C); 0 if there is none."""
    parts = headers.get("traceparent", "").split("-")
    try:
        return int(parts[1], 16) if len(parts) >= 4 and len(parts[1]) == 32 else 0
    except ValueError:
        return 0


def in_words(trace_id: int) -> tuple[int, int]:
    """A trace's id as two words, the high one first."""
    return trace_id >> 64, trace_id & (1 << 64) - 1


def steps_of(children: Iterable[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """The steps of a request with their times, in the order in which they began: (model, start, end) → (model, ns)."""
    return [(name, max(0, end_ns - start_ns)) for name, start_ns, end_ns in sorted(children, key=lambda each: each[1])]
