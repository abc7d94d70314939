"""Where the outputs of a batch lie in its block, and the headers that say so; remembered for the next such batch.

Pure. Runs in a worker. Batches of the same shapes get the same headers, byte for byte, so packing them once is enough:
44k → 32k instructions a request in batches of 32, 124k → 95k for requests that run alone (identity, 16 floats).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgpack

from shoal.datatypes import BYTES
from shoal.errors import InternalError
from shoal.memo import Memo
from shoal.model_config.signature import Signature
from shoal.request import Parameters
from shoal.shm.layout import pack_span
from shoal.workers.requests import Share
from shoal.workers.sequences import SequenceTensors
from shoal.workers.tensors import Array, encode_strings

#: Plans that are kept, and the most bytes of headers in one of them (ours: 128 requests of one output have some 5000).
MAX_PLANS = 256
MAX_PLAN_BYTES = 8192

_ALIGNMENT = 64
_NO_PARAMETERS: Parameters = {}

#: One output, the rows of all requests of a batch: name, datatype (wire number), shape, bytes. A tuple and nothing more
#: because one is made for each batch.
Column: TypeAlias = tuple[str, int, tuple[int, ...], int]
Pack: TypeAlias = Callable[[object], bytes]
_pack: Pack = msgpack.Packer(use_bin_type=True).pack


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """All offsets are in bytes from the block's start. The headers lie behind the outputs and end at `end`."""

    offsets: tuple[int, ...]  # of the columns
    headers_offset: int
    headers: bytes
    spans: tuple[int, ...]  # of each request's header
    end: int


class OutputLayouts:
    """A model's plans, for one thread. Those of parameters and of strings, which differ each time, are not kept.

    `states` has the model's implicit states, where it has any.
    """

    def __init__(self, signature: Signature, states: SequenceTensors | None = None) -> None:
        self.signature = signature
        self.states = states
        self.outputs = tuple(signature.outputs.items())
        self.has_strings = any(spec.datatype is BYTES for spec in signature.outputs.values())
        # A TensorRef and the layout of shoal.request.pack_response, made without its tuples and with one packer.
        self._pack: Pack = msgpack.Packer(use_bin_type=True).pack
        # Changed by plan.
        self._plans = Memo[tuple[int, tuple[Share, ...], tuple[Column, ...]], OutputLayout]("batch_plan", MAX_PLANS)

    def of_another_thread(self) -> "OutputLayouts":
        """Plans for the same model."""
        return OutputLayouts(self.signature, self.states)

    def encoded(self, output: str, array: Array) -> bytes:
        """An output of strings in its wire form. Raises InternalError for text that UTF-8 cannot tell."""
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
        """What `make_plan` says."""
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
    """The columns one behind the other from `start` on, each 64-byte aligned, then the requests' headers.

    The rows of the requests stand in their order, and are all that a column has. One request has all of a column,
    whatever its shape.
    """
    total = sum([rows for rows, _ in shares])
    refs: list[list[tuple[str, int, tuple[int, ...], int, int]]] = [[] for _ in shares]
    offsets, end = [], start
    for name, datatype, shape, nbytes in columns:
        offset = (end + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        offsets.append(offset)
        end = offset + nbytes
        for mine, (rows, requested) in zip(refs, shares, strict=True):
            if len(shares) == 1:
                part_shape, part_nbytes = shape, nbytes
            else:
                part_shape, part_nbytes = (rows, *shape[1:]), nbytes * rows // max(1, total)
            if not requested or name in requested:
                mine.append((name, datatype, part_shape, offset, part_nbytes))
            offset += part_nbytes
    headers = [pack((mine, parameters)) for mine in refs]
    headers_offset, spans = end, []
    for header in headers:
        spans.append(pack_span(end, len(header)))
        end += len(header)
    return OutputLayout(tuple(offsets), headers_offset, b"".join(headers), tuple(spans), end)
