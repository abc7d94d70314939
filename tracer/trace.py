"""A trace: the times at which a request passed each stage, and its tensors; and its form in Triton's trace file. Pure.

Front ends make traces; the tracer adds those of children and writes them. All times are monotonic nanoseconds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import orjson

from shoal.datatypes import BF16, BOOL, BY_NAME, BYTES, FP16, FP32, FP64, TruncatedBytesError, decode_bytes_tensor
from shoal.shm.layout import T
from shoal.tracer.settings import TIMESTAMPS

#: The time points of a trace in order, by Triton's names; those of the batcher and the worker are adjacent.
STAMPS = (
    "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START",
    "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
    "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END",
)  # fmt: skip
RECV_START, RECV_END, REQUEST_START, QUEUE_START = range(4)
COMPUTE_START, COMPUTE_END, REQUEST_END, SEND_START, SEND_END = 4, 7, 8, 9, 10

#: The depth to which children may be nested; deeper ones are left out (ours: the tracer writes them by recursion).
MAX_DEPTH = 32

QUEUE_INPUT, BACKEND_OUTPUT = "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"


class TracedTensor(NamedTuple):
    """A tensor on its way to the model's queue, or from its backend."""

    activity: str  # QUEUE_INPUT or BACKEND_OUTPUT
    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes


class Trace(NamedTuple):
    """The trace of one request."""

    revision: int  # that of the setting under which the request was sampled
    is_counted: bool  # False where the request was traced only for its context
    model: str
    version: int
    request_id: str
    stamps: Sequence[int]  # in the order of STAMPS; 0 for a point that was not reached
    tensors: Sequence[TracedTensor]
    context: dict[str, str]  # the headers that name the parent span
    children: Sequence["Trace"] = ()  # of an ensemble's steps or a model's calls; not counted by themselves


#: The words of a child's record as front ends pass them on: KEY to IS_CALL (layout.T).
ChildWords = Sequence[int]
_KEY, _PARENT, _MODEL, _VERSION, _START_NS, _QUEUE_START_NS, _END_NS, _IS_CALL = [
    word - T.KEY for word in (T.KEY, T.PARENT, T.MODEL, T.VERSION, T.START_NS, T.QUEUE_START_NS, T.END_NS, T.IS_CALL)
]


def children(root: Trace, records: Sequence[ChildWords], names: Mapping[int, str]) -> list[Trace]:
    """The traces of an ensemble's steps and of models' calls that belong to a request, with `names` by models' ids.

    Each child begins no earlier than its parent, and an ensemble ends no earlier than its steps: the time that the
    batcher reads at the beginning of a step may be older than a request that it then finds, or than the end of a
    computation. A child whose parent's record is missing becomes one of the request itself. The id of a call's request
    is not known.
    """
    keys = {record[_KEY] for record in records}
    by_parent = defaultdict[int, list[ChildWords]](list)
    for record in sorted(records, key=lambda record: record[_START_NS]):
        by_parent[record[_PARENT] if record[_PARENT] in keys else 0].append(record)

    def children_of(key: int, start_ns: int, request_id: str, depth: int) -> list[Trace]:
        below = by_parent.pop(key, ()) if depth < MAX_DEPTH else ()  # popped: a child has one parent
        return [child(record, start_ns, request_id, depth) for record in below]

    def child(record: ChildWords, parent_start_ns: int, parent_id: str, depth: int) -> Trace:
        stamps = [0] * len(STAMPS)
        stamps[REQUEST_START] = start_ns = max(record[_START_NS], parent_start_ns)
        stamps[QUEUE_START : REQUEST_END + 1] = record[_QUEUE_START_NS : _END_NS + 1]
        request_id = "" if record[_IS_CALL] else parent_id
        inner = children_of(record[_KEY], start_ns, request_id, depth + 1)
        if inner and not stamps[COMPUTE_START]:  # an ensemble ends with the last of its steps
            stamps[REQUEST_END] = max(stamps[REQUEST_END], *[each.stamps[REQUEST_END] for each in inner])
        return Trace(
            root.revision,
            root.is_counted,
            names.get(record[_MODEL], ""),
            record[_VERSION],
            request_id,
            in_order(stamps),
            (),
            {},
            inner,
        )

    return children_of(0, root.stamps[REQUEST_START], root.request_id, 0)


#: A trace's number, its parent's number (0: none), and the trace.
Numbered = tuple[int, int, Trace]


def in_order(stamps: Sequence[int]) -> list[int]:
    """The stamps, each raised to the latest of those before it.

    The batcher reads the clock once for all requests that it finds in its rings, even one that has just arrived; and a
    worker could write anything.
    """
    latest, ordered = 0, []
    for stamp in stamps:
        latest = max(latest, stamp)
        ordered.append(latest if stamp else 0)
    return ordered


def to_json(number: int, trace: Trace, level: int, parent: int = 0) -> bytes:
    """The lines of Triton's trace file for a trace at this level: JSON objects with the trace's number, joined by
    commas. `parent` is the number of the trace of the ensemble or the calling model; 0: none."""
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


def _text(tensor: TracedTensor) -> str:
    """A tensor's elements as Triton prints them: %g for floats, quoted strings, nothing for 16-bit floats."""
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
