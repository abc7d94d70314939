"""Requests on their way into shared memory: tensors are copied into a block, or named where they lie. Pure.

    0        tensors that are copied, each 64-byte aligned, then the packed InferRequest

A tensor that is named lies in another block, of this or another process, which must stay until the request has been
answered. Of a tensor on a GPU, the place (shoal/request.py) is copied or named instead of the tensor.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, cast

from shoal.datatypes import Datatype
from shoal.errors import InvalidArgumentError
from shoal.request import (
    PLACED,
    InferRequest,
    InferResponse,
    LentTensorRef,
    Parameters,
    Stay,
    TensorRef,
    pack_request,
    unpack_placed_response,
    unpack_response,
)
from shoal.shm.layout import NO_BLOCK, pack_span
from shoal.star.models import ModelEntry
from shoal.star.validation import ParsedInput, log_prefix, validate

#: Tensors start at multiples of a cache line, in bytes.
ALIGNMENT = 64


class Input(NamedTuple):
    """A tensor to send. `ref` and `offset` (bytes) say where it lies; if `ref` is NO_BLOCK, `data` is copied."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: memoryview
    ref: int = NO_BLOCK
    offset: int = 0


class RawRequest(NamedTuple):
    """A request before validation. `outputs` is empty if all are wanted."""

    id: str
    inputs: Sequence[Input]
    outputs: tuple[str, ...]
    parameters: Parameters
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0
    answer_by_ns: int = 0  # monotonic ns; 0: no limit


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A validated request. `shapes` are the inputs' shapes for the backend, by position."""

    entry: ModelEntry
    ask: RawRequest
    shapes: Sequence[tuple[int, ...]]
    rows: int
    shape_key: int
    #: Of the inputs on a GPU, by name: the packed place in the sender's pool, or b"" if the named block has the place.
    places: Mapping[str, bytes] = field(default_factory=dict)
    stays: tuple[Stay, ...] = ()  # outputs that may stay on a GPU

    @property
    def is_on_gpu(self) -> bool:
        """Whether tensors of the request or its response lie on a GPU: then the block of the response has the tensors'
        places, and must be held instead of copied."""
        return bool(self.places or self.stays)

    @property
    def refs(self) -> frozenset[int]:
        """The blocks that must stay until the request has been answered."""
        return frozenset([each.ref for each in self.ask.inputs if each.ref != NO_BLOCK])

    @property
    def nbytes(self) -> int:
        """An upper bound of the bytes that `write` needs: too high by a few hundred bytes, and by three for each
        character of names and texts."""
        ask, places = self.ask, self.places
        tensors = [
            (each.name, len(shape), 0 if each.ref != NO_BLOCK else len(places.get(each.name) or each.data))
            for each, shape in zip(ask.inputs, self.shapes, strict=True)
        ]
        stays = sum([16 + 4 * len(each.name) for each in self.stays])
        return block_nbytes(ask.id, ask.correlation_id, tensors, ask.outputs, ask.parameters) + stays

    def write(self, memory: memoryview) -> int:
        """Write tensors and header into a block of at least `nbytes` bytes. Returns the header's span."""
        ask, offset = self.ask, 0
        refs: list[TensorRef | LentTensorRef] = []
        for (name, datatype, _, data, ref, elsewhere), shape in zip(ask.inputs, self.shapes, strict=True):
            nbytes, place = len(data), self.places.get(name)  # for a tensor on a GPU, `data` has only its size
            wire = datatype.wire if place is None else datatype.wire | PLACED
            if ref != NO_BLOCK:
                refs.append(LentTensorRef(name, wire, shape, elsewhere, nbytes, ref))
                continue
            written = place or data
            memory[offset : offset + len(written)] = written
            refs.append(TensorRef(name, wire, shape, offset, nbytes))
            offset += aligned(len(written))
        sequence = ask.correlation_id, ask.flags
        inputs = cast("tuple[TensorRef, ...]", tuple(refs))
        header = pack_request(InferRequest(ask.id, inputs, ask.outputs, ask.parameters, sequence, self.stays))
        memory[offset : offset + len(header)] = header
        return pack_span(offset, len(header))

    def unpack(self, header: bytes, block_nbytes: int) -> InferResponse:
        """A response to the request, checked. Raises InternalError if it is malformed."""
        return (unpack_placed_response if self.is_on_gpu else unpack_response)(header, block_nbytes)


def check(entry: ModelEntry, ask: RawRequest) -> OutgoingRequest:
    """Validate a request for this version of a model. Raises InvalidArgumentError with Triton's sentences."""
    names: set[str] = set()
    parsed = []
    for name, datatype, shape, data, _, _ in ask.inputs:
        if name in names:
            raise InvalidArgumentError(f"{log_prefix(ask.id)}input '{name}' already exists in request")
        names.add(name)
        # BYTES tensors count as checked: their strings were counted when they were encoded.
        parsed.append(ParsedInput(name, datatype, shape, data, prod(shape)))
    valid, rows, shape_key = validate(entry.signature, ask.id, parsed, ask.outputs, ask.correlation_id)
    return OutgoingRequest(entry, ask, [each.shape for each in valid], rows, shape_key)


def block_nbytes(
    request_id: str,
    correlation_id: int | str,
    tensors: Iterable[tuple[str, int, int]],
    outputs: Iterable[str],
    parameters: Parameters,
) -> int:
    """An upper bound of the bytes of a request. `tensors` has each tensor's name, number of dimensions, and bytes to
    copy."""
    # In msgpack a string takes its UTF-8 bytes (at most 4 per character) plus 5, a number 9 bytes, a tuple 5.
    nbytes = 96 + 4 * len(request_id)
    if isinstance(correlation_id, str):
        nbytes += 4 * len(correlation_id)
    for name, num_dims, num_copied in tensors:
        nbytes += 48 + 4 * len(name) + 9 * num_dims + aligned(num_copied)
    for output in outputs:
        nbytes += 5 + 4 * len(output)
    for key, value in parameters.items():
        nbytes += 14 + 4 * len(key) + (4 * len(value) if isinstance(value, str) else 0)
    return nbytes


def aligned(nbytes: int) -> int:
    """The next offset at which a tensor may begin."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT
