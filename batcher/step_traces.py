"""What a trace says of an ensemble's steps: noted as each ends, and written behind the answer of the whole.

A step is a list: its model's name and version; when it was asked, queued and computed (four points) and when it had
ended, in monotonic ns, 0 for a point that was not reached; and its own steps, where it is an ensemble. The tracer
makes traces of them (shoal/tracing/trace.py). Lives in the batcher.
"""

from operator import itemgetter
from typing import Any, cast

import msgpack

from shoal.batcher.blocks import Blocks
from shoal.batcher.ensemble import Progress
from shoal.batcher.peers import Model
from shoal.batcher.statistics import time_points
from shoal.shm.layout import P, unpack_span
from shoal.shm.ring import Record
from shoal.shm.slab import Slab

#: All that a trace says of steps (ours: some 3000 of them). Further ones are left out: a stream may have any number,
#: and what is said of them lies in the batcher's memory until its end.
MAX_NBYTES = 256 * 1024

_PACKER = msgpack.Packer()


def note(progress: Progress, model: Model, asked_ns: int, reply: Record, now_ns: int, blocks: Blocks) -> None:
    """A step of a traced request has ended with this reply."""
    queue_ns, *compute = reply[P.QUEUE_START_NS : P.COMPUTE_END_NS + 1]
    start_ns, input_ns, infer_ns, output_ns = compute
    points = time_points((start_ns, input_ns, infer_ns, output_ns)) if start_ns else (0, 0, 0, 0)
    name = "" if model.signature is None else model.signature.name
    times = asked_ns, queue_ns, *points, max(asked_ns, now_ns)
    step = cast("bytes", msgpack.packb([name, model.version, *times, _steps_in(reply, blocks)]))
    if progress.steps_nbytes + len(step) <= MAX_NBYTES:
        progress.steps_nbytes += len(step)
        progress.steps.append((asked_ns, step))


def packed(progress: Progress) -> bytes:
    """All steps of a request that is traced; nothing of others."""
    if not progress.is_traced:
        return b""
    head: bytes = _PACKER.pack_array_header(len(progress.steps))
    return head + b"".join([step for _, step in sorted(progress.steps, key=itemgetter(0))])


def ended(progress: Progress, own: Slab) -> tuple[int, int, int, int]:
    """The last response of a request that has one; of a stream whose end comes alone, a block with its trace alone."""
    steps = packed(progress) if not progress.answer[0] else b""
    block = own.allocate(len(steps)) if steps else None
    if block is None:
        return progress.answer
    block.memory[: len(steps)] = steps
    return block.ref, 0, 0, len(steps)


def _steps_in(reply: Record, blocks: Blocks) -> list[Any]:
    """Those of an ensemble that is a step itself."""
    nbytes = reply[P.STEPS] if len(reply) > P.STEPS else 0
    block = blocks.open(reply[P.BLOCK]) if nbytes else None
    if block is None:
        return []
    offset, header_nbytes = unpack_span(reply[P.HEADER])
    start = offset + header_nbytes
    return msgpack.unpackb(block[start : start + nbytes])  # type: ignore[no-any-return]
