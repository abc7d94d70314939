"""The places of a batch's outputs in its block, and the headers that name these places. Such a plan is kept for the
next batch of equal shapes.

Pure. Runs in a worker. Batches of equal shapes get equal headers, byte for byte, so packing them once is enough. For a
model `identity` with 16 floats this saves 12k of 44k instructions per request in batches of 32, and 29k of 124k for
requests that run alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgpack

from shoal.datatypes import BYTES
from shoal.errors import InternalError
from shoal.memo import Memo
from shoal.model_config.signature import Signature
from shoal.request import PLACED, PLACED_NBYTES, Parameters
from shoal.shm.layout import pack_span
from shoal.workers.requests import Share
from shoal.workers.sequences import SequenceTensors
from shoal.workers.tensors import Array, encode_strings

#: The most plans that are kept, and the most bytes that the headers of a kept plan have: those of 128 requests with one
#: output have some 5000 (ours).
MAX_PLANS = 256
MAX_PLAN_BYTES = 8192

_ALIGNMENT = 64
_NO_PARAMETERS: Final[Parameters] = {}
#: In a block, the bytes from the start of one request's place on a GPU to the start of the next request's.
PLACE_STRIDE = -(-PLACED_NBYTES // _ALIGNMENT) * _ALIGNMENT

#: One output of a batch, with the rows of all requests: name, datatype's number in records, shape, size in bytes. It is
#: a plain tuple, which is cheap, since one is made for each batch.
Column: TypeAlias = tuple[str, int, tuple[int, ...], int]
Pack: TypeAlias = Callable[[object], bytes]
_pack: Pack = msgpack.Packer(use_bin_type=True).pack


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """The layout of a batch's answers. All offsets are in bytes from the block's start. The headers lie after the
    outputs and end at `end`."""

    offsets: tuple[int, ...]  # where each column (output of the batch) begins
    headers_offset: int
    headers: bytes
    spans: tuple[int, ...]  # where each request's header lies, as a span: offset and size in one word
    end: int


class OutputLayouts:
    """A model's plans, for one thread. Plans with parameters or strings are not kept, since they differ from batch to
    batch. `states` has the model's implicit states, if it has any."""

    def __init__(self, signature: Signature, states: SequenceTensors | None = None) -> None:
        self.signature = signature
        self.states = states
        self.outputs = tuple(signature.outputs.items())
        self.has_strings = any(spec.datatype is BYTES for spec in signature.outputs.values())
        # Makes the same bytes as shoal.request.pack_response, but makes no TensorRef, and uses one packer for all.
        self._pack: Pack = msgpack.Packer(use_bin_type=True).pack
        # This field is changed by plan.
        self._plans = Memo[tuple[int, tuple[Share, ...], tuple[Column, ...]], OutputLayout]("batch_plan", MAX_PLANS)

    def of_another_thread(self) -> "OutputLayouts":
        """An empty OutputLayouts for the same model, for use by another thread."""
        return OutputLayouts(self.signature, self.states)

    def encoded(self, output: str, array: Array) -> bytes:
        """An output of strings in its wire form. Raises InternalError for text that UTF-8 cannot represent."""
        try:
            return encode_strings(array)
        except UnicodeEncodeError as error:
            raise InternalError(
                f"model '{self.signature.name}' returned output '{output}' that is no BYTES tensor: {error}"
            ) from error

    def plan(
        self,
        start: int,
        shares: tuple[Share, ...],
        columns: tuple[Column, ...],
        parameters: Parameters | None = None,
    ) -> OutputLayout:
        """The plan that `make_plan` makes for these arguments: a kept one, or else a new one."""
        if parameters or self.has_strings:
            return make_plan(start, shares, columns, parameters or _NO_PARAMETERS, self._pack)
        key = (start, shares, columns)
        plan = self._plans.entries.get(key)
        if plan is None:
            plan = make_plan(start, shares, columns, _NO_PARAMETERS, self._pack)
            if len(plan.headers) <= MAX_PLAN_BYTES:
                self._plans.keep(key, plan)
        return plan


def make_plan(
    start: int, shares: Sequence[Share], columns: Sequence[Column], parameters: Parameters, pack: Pack = _pack
) -> OutputLayout:
    """A plan in which the columns lie one after another from `start` on, each 64-byte aligned, and the requests'
    headers after them.

    A column has the rows of all requests, in the requests' order, and nothing else. A single request gets whole
    columns, whatever their shape. For a column that stays on a GPU, marked by PLACED in its datatype, the block has a
    place for each request instead, PLACE_STRIDE bytes apart.
    """
    total = sum([rows for rows, _ in shares])
    refs: list[list[tuple[str, int, tuple[int, ...], int, int]]] = [[] for _ in shares]
    offsets, end = [], start
    for name, datatype, shape, nbytes in columns:
        offset = (end + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        offsets.append(offset)
        is_placed = datatype >= PLACED
        end = offset + (len(shares) * PLACE_STRIDE if is_placed else nbytes)
        for mine, (rows, requested) in zip(refs, shares, strict=True):
            if len(shares) == 1:
                part_shape, part_nbytes = shape, nbytes
            else:
                part_shape, part_nbytes = (rows, *shape[1:]), nbytes * rows // max(1, total)
            if not requested or name in requested:
                mine.append((name, datatype, part_shape, offset, part_nbytes))
            offset += PLACE_STRIDE if is_placed else part_nbytes
    headers = [pack((mine, parameters)) for mine in refs]
    headers_offset, spans = end, []
    for header in headers:
        spans.append(pack_span(end, len(header)))
        end += len(header)
    return OutputLayout(tuple(offsets), headers_offset, b"".join(headers), tuple(spans), end)
