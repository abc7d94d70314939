"""What one executed batch answers, on its way into one block of the worker's slab.

    0        outputs, each 64-byte aligned: the rows of all requests of the batch, one array per output;
             strings and outputs of unbatched backends per request
    …        per request: its packed InferResponse, whose tensors point at its rows, or the sentence of its error

A backend adds outputs; the loop writes the block and publishes. Runs in a worker; every array is copied once at most.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgpack
import numpy as np

from shoal.datatypes import BYTES
from shoal.errors import InternalError, ShoalError, UnavailableError, UnsupportedError
from shoal.model_config.signature import Signature, TensorSpec
from shoal.request import Parameters
from shoal.shm.layout import NO_BLOCK, pack_span
from shoal.shm.slab import Block
from shoal.workers.memory import Memory
from shoal.workers.requests import Request, log_prefix
from shoal.workers.tensors import Array, encode_strings

#: Longest sentence of an error, in bytes: one fits into the smallest block.
MAX_SENTENCE_BYTES = 4096
_NO_PARAMETERS: Parameters = {}
# A TensorRef and the form of shoal.request.pack_response, made without its tuples and with one packer: 2 us less
# per request. A worker has one thread, which the packer needs.
_Ref: TypeAlias = tuple[str, int, tuple[int, ...], int, int]
_pack: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True).pack

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
_ALIGNMENT = 64
#: Up to here copying twice, through bytes, is faster than making an array of the block: 0.3 us against 1.0 at 64 bytes.
_SMALL_NBYTES = 4096


class Answers:
    """The answers to the requests of one batch, success until `fail` says otherwise."""

    def __init__(self, num_requests: int, signature: Signature, instance: str, memory: Memory) -> None:
        self._signature = signature
        self._instance = instance
        self._memory = memory
        # Changed by the backend, the times directly; `statuses` and `spans` are filled by `write`.
        self.input_end_ns = 0
        self.output_start_ns = 0
        self.statuses: list[int] = []
        self.spans: list[int] = []
        self._refs: list[list[_Ref]] = [[] for _ in range(num_requests)]
        self._parameters: dict[int, Parameters] = {}
        self._errors: dict[int, ShoalError] = {}
        self._pieces: list[tuple[int, Array | bytes]] = []
        self._nbytes = 0
        self._block: Block | None = None

    def fail(self, position: int, error: ShoalError) -> None:
        """This request fails, the others do not."""
        self._errors[position] = error

    def fail_all(self, error: ShoalError) -> None:
        """Every request that has not failed by itself fails; what was added is dropped."""
        for position in range(len(self._refs)):
            self._errors.setdefault(position, error)
        self._pieces.clear()
        self._nbytes = 0

    def add(self, request: Request, outputs: Mapping[str, Array], parameters: Parameters | None = None) -> None:
        """The whole outputs of one request. Raises InternalError for one of another datatype than configured."""
        if parameters:
            self._parameters[request.position] = parameters
        refs = self._refs[request.position]
        for name, spec in self._signature.outputs.items():
            array = outputs.get(name)
            if array is None or not request.wants(name):
                continue
            if spec.datatype is BYTES:
                refs.append(self._add_strings(spec, array))
            else:
                offset = self._add_array(spec, array)
                refs.append((name, spec.datatype.wire, array.shape, offset, array.nbytes))

    def add_batch(self, requests: Sequence[Request], outputs: Mapping[str, Array]) -> None:
        """The outputs of all `requests` together, in their order one below the other.

        A request whose rows an output does not have fails, as Triton has it. Raises InternalError like `add`.
        """
        if self._signature.max_batch_size == 0:
            self.add(requests[0], outputs)
            return
        total = requests[0].rows if len(requests) == 1 else sum([request.rows for request in requests])
        for name, spec in self._signature.outputs.items():
            array = outputs.get(name)
            if array is None or not _is_wanted(name, requests):
                continue
            if spec.datatype is not BYTES:
                # More rows than asked for are cut off; fewer are noticed per request.
                if array.ndim and len(array) > total:
                    array = array[:total]
                self._add_rows(spec, requests, array.shape, self._add_array(spec, array))
                continue
            got, start = len(array) if array.ndim else 0, 0
            for request in requests:
                end = start + request.rows
                if end > got:
                    self._lacks_rows(request, spec, end, got)
                elif request.wants(name):
                    self._refs[request.position].append(self._add_strings(spec, array[start:end]))
                start = end

    def place(self, requests: Sequence[Request], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Room in the block for whole outputs of the batch, to be filled before `write`: arrays of undefined contents.

        `shapes` are those of batched, non-BYTES outputs with all rows. May wait for a block; raises like `write`.
        """
        offsets = {}
        for name, shape in shapes.items():
            spec = self._signature.outputs[name]
            nbytes = math.prod(shape) * spec.datatype.itemsize
            offsets[name] = self._reserve(nbytes)
            self._add_rows(spec, requests, shape, offsets[name])
        self._block = block = self._allocate(self._nbytes + len(self._finish()))
        specs = self._signature.outputs
        return {
            name: np.ndarray(shape, specs[name].datatype.dtype, block.memory, offsets[name])
            for name, shape in shapes.items()
        }

    def write(self) -> int:
        """Fill a block and complete `statuses` and `spans`. Returns the block's reference.

        Raises UnavailableError where there is no memory for too long, InternalError where there can never be enough.
        """
        tail = self._finish()
        block = self._block
        if block is None or len(block.memory) < self._nbytes + len(tail):
            self._give_back()
            block = self._allocate(self._nbytes + len(tail))
        return self._write(block, tail)

    def write_errors(self) -> int:
        """Like `write` after `fail_all`, but never waits and never fails: without memory there is no sentence."""
        self._give_back()
        tail = self._finish()
        self._errors.clear()  # their tracebacks lead back here, and a cycle would keep the requests' memory mapped
        block = self._memory.allocate_for_errors(len(tail))
        if block is not None:
            return self._write(block, tail)
        self.spans = [0] * len(self.spans)
        return NO_BLOCK

    # -- the block --------------------------------------------------------------------------------------------------

    def _finish(self) -> bytes:
        """What lies behind the outputs: per request its header or its sentence. Completes `statuses` and `spans`."""
        offset, parts = self._nbytes, []
        self.statuses = statuses = [0] * len(self._refs)
        self.spans = spans = []
        parameters, errors = self._parameters, self._errors
        sentences: dict[ShoalError, int] = {}  # told once each, however many requests share it
        for position, refs in enumerate(self._refs):
            if position not in errors:
                part = _pack((refs, parameters.get(position, _NO_PARAMETERS)))
            else:
                error = errors[position]
                statuses[position] = error.wire
                if error in sentences:
                    spans.append(sentences[error])
                    continue
                part = sentence_bytes(error)
                sentences[error] = pack_span(offset, len(part))
            spans.append(pack_span(offset, len(part)))
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _write(self, block: Block, tail: bytes) -> int:
        memory = block.memory
        for offset, piece in self._pieces:
            if isinstance(piece, bytes):
                memory[offset : offset + len(piece)] = piece
            elif piece.nbytes <= _SMALL_NBYTES:
                memory[offset : offset + piece.nbytes] = piece.tobytes()
            else:
                np.copyto(np.ndarray(piece.shape, piece.dtype, memory, offset), piece)
        memory[self._nbytes : self._nbytes + len(tail)] = tail
        self._block = None
        return block.ref

    def _allocate(self, nbytes: int) -> Block:
        block = self._memory.slab.allocate(nbytes)
        if block is not None:
            return block
        if nbytes > self._memory.slab.largest_nbytes:
            return self._allocate_oversize(nbytes)
        block = self._memory.wait_for_block(nbytes)
        if block is None:
            raise UnavailableError(
                f"model '{self._signature.name}', instance '{self._instance}': no shared memory for a result of "
                f"{nbytes} bytes, clients still hold the earlier ones. Raise --shm-worker-slab-mib"
            )
        return block

    def _allocate_oversize(self, nbytes: int) -> Block:
        try:
            return self._memory.oversize.allocate(nbytes)
        except ShoalError as refusal:
            name, output_nbytes = self._largest_output()
            # That a model's results are too large for the server is not a client's fault.
            kind = UnavailableError if isinstance(refusal, UnavailableError) else InternalError
            raise kind(
                f"output '{name}' of model '{self._signature.name}' is {output_nbytes} bytes, the results of one batch "
                f"do not fit into memory: {refusal}"
            ) from refusal

    def _largest_output(self) -> tuple[str, int]:
        sizes: dict[str, int] = {}
        for refs in self._refs:
            for ref in refs:
                name, nbytes = ref[0], ref[4]
                sizes[name] = sizes.get(name, 0) + nbytes
        return max(sizes.items(), key=lambda item: item[1], default=("", 0))

    def _give_back(self) -> None:
        # Nobody has been told of this block yet, so it is still ours alone to free.
        if self._block is not None:
            self._memory.free(self._block.ref)
            self._block = None

    # -- adding -----------------------------------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> int:
        offset = (self._nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._nbytes = offset + nbytes
        return offset

    def _add_array(self, spec: TensorSpec, array: Array) -> int:
        dtype = spec.datatype.dtype
        if array.dtype is not dtype and array.dtype != dtype:
            raise InternalError(
                f"model '{self._signature.name}' returned output '{spec.name}' as {array.dtype}, expected "
                f"{spec.datatype.name}"
            )
        offset = self._reserve(array.nbytes)
        self._pieces.append((offset, array))
        return offset

    def _add_strings(self, spec: TensorSpec, array: Array) -> _Ref:
        try:
            data = encode_strings(array)
        except (TypeError, UnicodeEncodeError) as error:
            raise InternalError(
                f"model '{self._signature.name}' returned output '{spec.name}' that is no BYTES tensor: {error}"
            ) from error
        offset = self._reserve(len(data))
        self._pieces.append((offset, data))
        return spec.name, spec.datatype.wire, array.shape, offset, len(data)

    def _add_rows(self, spec: TensorSpec, requests: Sequence[Request], shape: tuple[int, ...], offset: int) -> None:
        """Point each request at its rows of a dense output that lies, or will lie, at `offset`."""
        name, wire, row_nbytes = spec.name, spec.datatype.wire, spec.datatype.itemsize
        tail = shape[1:]
        for dim in tail:
            row_nbytes *= dim
        total = shape[0] if shape else 0
        start = 0
        for request in requests:
            rows = request.rows
            end = start + rows
            if end > total:
                self._lacks_rows(request, spec, end, total)
            elif not request.requested_outputs or name in request.requested_outputs:
                ref = (name, wire, (rows, *tail), offset + start * row_nbytes, rows * row_nbytes)
                self._refs[request.position].append(ref)
            start = end

    def _lacks_rows(self, request: Request, spec: TensorSpec, needed: int, got: int) -> None:
        error = UnsupportedError(
            f"{log_prefix(request.id)}failed to split the output tensor '{spec.name}' in responses: expected batch "
            f"size of at least {needed} in model output, got {got}"
        )
        self._errors.setdefault(request.position, error)


def _is_wanted(output: str, requests: Sequence[Request]) -> bool:
    return not requests[0].requested_outputs or any(request.wants(output) for request in requests)


def sentence_bytes(error: ShoalError) -> bytes:
    """An error's sentence as it lies in a block: one line of UTF-8, cut at MAX_SENTENCE_BYTES."""
    escape: Callable[[re.Match[str]], str] = lambda match: repr(match[0])[1:-1]  # noqa: E731
    data = _CONTROL_CHARACTERS.sub(escape, str(error)).encode(errors="replace")
    return data if len(data) <= MAX_SENTENCE_BYTES else data[:MAX_SENTENCE_BYTES].decode(errors="ignore").encode()
