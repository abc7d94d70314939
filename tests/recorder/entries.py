"""Entries as the batcher makes them, for tests: a request to a model with an input IN and an output OUT, FP32 [1,2]."""

import struct

from shoal.datatypes import FP32
from shoal.recorder import entry
from shoal.recorder.entry import Outcome, RequestWords
from shoal.request import InferRequest, InferResponse, TensorRef, pack_request, pack_response
from shoal.shm.layout import pack_span

NO_WORDS = RequestWords(*[0] * len(RequestWords._fields))


def values(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def made(
    *, key: int = 1, model: str = "m", outcome: Outcome = Outcome.OK, sampled: bool = True, id_: str = "",
    parameters: dict[str, str | int | float | bool] | None = None, wall_offset_ns: int = 0, tensor: str = "IN",
    stays: bool = False, **words: int,
) -> bytes:  # fmt: skip
    """An entry of one request, whose input, IN or `tensor`, is 1, 2 and whose output is 3, 4 unless it has died; with
    `stays`, another output has stayed on a GPU."""
    tensors = values(1, 2)
    header = pack_request(InferRequest(id_, (TensorRef(tensor, FP32.wire, (1, 2), 0, 8),), (), parameters or {}))
    data = tensors + header
    output, span = b"", 0
    if outcome in (Outcome.OK, Outcome.PART):
        there = (TensorRef("THERE", FP32.wire | 256, (1, 99), 8, 396),) if stays else ()
        response = pack_response(InferResponse((TensorRef("OUT", FP32.wire, (1, 2), 0, 8), *there), {}))
        output, span = values(3, 4) + bytes(76) + response, pack_span(84, len(response))
    request = NO_WORDS._replace(
        key=key, outcome=outcome, rows=1, input_nbytes=len(data), input_header=pack_span(8, len(header)),
        output_header=span, **words,
    )  # fmt: skip
    parts, nbytes = entry.pack(
        entry.describe_model(model, 1, ["m_0"]), [request], [data], [output] if output else [], is_sampled=sampled,
        wall_offset_ns=wall_offset_ns,
    )  # fmt: skip
    packed = b"".join(parts)
    assert len(packed) == nbytes
    return packed
