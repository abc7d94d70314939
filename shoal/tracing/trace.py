"""A trace: when a request was where, and with which tensors; and what it is in Triton's trace file. Pure.

Front ends make traces, the tracer adds those of ensembles' steps and writes them down. All times are monotonic
nanoseconds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from shoal.datatypes import BF16, BOOL, BY_NAME, BYTES, FP16, FP32, FP64, TruncatedBytesError, decode_bytes_tensor
from shoal.tracing.settings import TIMESTAMPS

#: The time points of a trace in their order, by Triton's names; those of the batcher and the worker lie together.
STAMPS = (
    "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START",
    "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
    "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END",
)  # fmt: skip
RECV_START, RECV_END, REQUEST_START, QUEUE_START = range(4)
COMPUTE_START, COMPUTE_END, REQUEST_END, SEND_START, SEND_END = 4, 7, 8, 9, 10

QUEUE_INPUT, BACKEND_OUTPUT = "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"


class Tensor(NamedTuple):
    """A tensor on its way to the model's queue, or from its backend."""

    activity: str  # QUEUE_INPUT or BACKEND_OUTPUT
    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes


class Trace(NamedTuple):
    """What one request left behind."""

    revision: int  # of the setting under which it was sampled
    is_counted: bool  # not where only its context had it traced
    model: str
    version: int
    request_id: str
    stamps: Sequence[int]  # as STAMPS; 0 for a point that was not reached
    tensors: Sequence[Tensor]
    context: dict[str, str]  # the headers that name the span it belongs to
    steps: Sequence["Trace"] = ()  # of an ensemble's, what those left behind; they are counted with it


def steps(whole: Trace, said: Sequence[Sequence[Any]]) -> list[Trace]:
    """The traces of an ensemble's steps, of what the batcher says of them (batcher/step_traces.py).

    Each lies within the trace it is a step of: the batcher's look at the clock may be older than the request that it
    finds, and than the end of a step's computation.
    """
    found = []
    for model, version, asked_ns, *times, beneath in said:
        stamps = [0] * len(STAMPS)
        stamps[REQUEST_START : REQUEST_END + 1] = max(asked_ns, whole.stamps[REQUEST_START]), *times
        step = whole._replace(model=model, version=version, stamps=in_order(stamps), tensors=(), context={}, steps=())
        if beneath:
            inner = steps(step, beneath)
            stamps[COMPUTE_START:REQUEST_END] = [0] * (REQUEST_END - COMPUTE_START)
            stamps[REQUEST_END] = max([stamps[REQUEST_END], *[each.stamps[REQUEST_END] for each in inner]])
            step = step._replace(stamps=in_order(stamps), steps=inner)
        found.append(step)
    return found


#: A trace's number, that of the trace it is a step of, or 0, and itself.
Numbered = tuple[int, int, Trace]


def in_order(stamps: Sequence[int]) -> list[int]:
    """The stamps, each at least as late as those before it.

    A batcher's look at the clock serves all requests that it finds at its rings, also one that came in that moment;
    and a worker could write anything.
    """
    latest, ordered = 0, []
    for stamp in stamps:
        latest = max(latest, stamp)
        ordered.append(latest if stamp else 0)
    return ordered


def to_json(number: int, trace: Trace, level: int, parent: int = 0) -> bytes:
    """What Triton writes down at this level: JSON objects with the trace's number, joined by commas. `parent` is the
    number of the ensemble's trace that a step belongs to."""
    head: dict[str, object] = {"id": number, "model_name": trace.model, "model_version": trace.version}
    if trace.request_id:
        head["request_id"] = trace.request_id
    if parent:
        head["parent_id"] = parent
    objects = [head]
    for name, stamp in zip(STAMPS, trace.stamps, strict=True):
        if stamp and level & TIMESTAMPS:
            objects.append({"id": number, "timestamps": [{"name": name, "ns": stamp}]})
    for tensor in trace.tensors:
        described = {
            "name": tensor.name,
            "data": _text(tensor),
            "shape": ",".join(map(str, tensor.shape)),
            "dtype": tensor.datatype,
        }
        objects.append({"id": number, "activity": tensor.activity, "tensor": described})
    return orjson.dumps(objects)[1:-1]


def _text(tensor: Tensor) -> str:
    """The elements as Triton prints them: %g for floats, quoted strings, and nothing for the 16-bit floats."""
    datatype = BY_NAME[tensor.datatype]
    if datatype is BYTES:
        try:
            elements = decode_bytes_tensor(memoryview(tensor.data))
        except TruncatedBytesError:
            return ""
        return ",".join([f'"{element.decode("utf-8", "backslashreplace")}"' for element in elements])
    if datatype in (FP16, BF16) or len(tensor.data) % datatype.itemsize:
        return ""
    numbers = np.frombuffer(tensor.data, datatype.dtype)
    if datatype is BOOL:
        numbers = numbers.view(np.uint8)
    return ",".join([("%g" if datatype in (FP32, FP64) else "%d") % number for number in numbers.tolist()])
