"""A request as a backend sees it: its tensors as arrays over the client's block.

Pure. Runs in a worker. The front end has checked the request against the model. Another process can write to the
request's memory, so this file checks again, but only for errors that would make the worker fail or mix up rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, TypeAlias, cast

import numpy as np

from shoal.datatypes import BYTES, format_shape
from shoal.errors import InternalError, InvalidArgumentError
from shoal.memo import Memo
from shoal.model_config.gpu_tensors import NO_GPU
from shoal.model_config.signature import Signature, TensorSpec
from shoal.request import (
    NO_OPTIONS,
    PLACED,
    CudaTarget,
    InferOptions,
    Parameters,
    Stay,
    split_header,
    unpack_layout,
    unpack_options,
    unpack_placed,
    unpack_targets,
)
from shoal.shm.cuda_regions import place_in_pool, unpack_place
from shoal.shm.layout import NO_BLOCK, B, ref_owner
from shoal.star.validation import check_bytes_elements
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.tensors import Array, open_strings, open_tensor

#: The most parsed headers that are kept, and the longest in bytes: one of four inputs has some 150 (ours). Fewer are
#: kept of headers with lent tensors, which rarely come again: lent blocks differ from request to request.
MAX_PARSED, MAX_LENT_PARSED = 512, 64
MAX_PARSED_BYTES = 1024
_NO_RECORD = (0,) * 16

#: The share of one request in its batch's outputs: its rows (1 if the model has no batch dimension) and the outputs
#: that it wants (empty = all). It is a plain tuple, since kept plans are looked up by it.
Share: TypeAlias = tuple[int, tuple[str, ...]]
#: A function from the reference of a block, and the reference of the block of the request that names the former, to the
#: former's memory; None if its reference is stale.
OpenBlock: TypeAlias = Callable[[int, int], memoryview | None]
#: A function from an input's name and size in bytes to the memory in which the input is gathered.
Stage: TypeAlias = Callable[[str, int], memoryview]
#: A function from a block's reference to its memory, for one request; None if the reference is stale.
OpenLent: TypeAlias = Callable[[int], memoryview | None]
NO_BLOCKS: OpenBlock = lambda _ref, _borrower: None  # noqa: E731
#: A function from an input's spec, shape, place on a GPU, offset and size in bytes to the tensor: a copy in host memory
#: or, for a backend that takes GpuTensors, a GpuTensor.
ReadGpu: TypeAlias = Callable[[TensorSpec, tuple[int, ...], bytes, int, int], Array | memoryview]
#: A value in `ParsedRequest.on_gpu`: the input lies in a worker's pool on a GPU, and its place stands in a block.
PLACED_IN_BLOCK = b""
_NO_GUESTS = "shoal.Client has no CUDA shared memory: send tensors, or ask over HTTP or gRPC"
#: An input in a block: its spec, shape, offset and size in bytes.
InputPlace: TypeAlias = tuple[TensorSpec, tuple[int, ...], int, int]
WITHOUT_OPTIONS: Final = InferOptions()


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The contents of a request's layout, checked against the model and one block.

    The contents of a plain request (`is_plain`) hold for every block that reaches to `end`. Contents with strings hold
    for one block only, since strings in other blocks have other lengths.
    """

    inputs: dict[str, InputPlace]
    views: tuple[tuple[str, tuple[int, ...], np.dtype[Any], int], ...]  # name, shape, dtype, offset; only if plain
    end: int
    rows: int
    share: Share
    is_plain: bool
    lent: Mapping[str, int]  # input that does not lie in the header's block → its block; NO_BLOCK: in none
    # Input on a GPU → its place: in a client's memory or, as PLACED_IN_BLOCK, in a worker's pool.
    on_gpu: Mapping[str, bytes] = field(default_factory=dict)
    targets: tuple[CudaTarget, ...] = ()  # places on a GPU where the client wants outputs
    stays: Mapping[str, int] = field(default_factory=dict)  # output that may stay on a GPU → the GPU's number

    def wants(self, output: str) -> bool:
        """Whether the client asked for this output."""
        requested = self.share[1]
        return not requested or output in requested

    def open(self, block: memoryview) -> dict[str, Array | memoryview]:
        """The inputs of a plain request, as read-only arrays over a block that reaches at least to `end`."""
        inputs: dict[str, Array | memoryview] = {}
        for name, shape, dtype, offset in self.views:
            inputs[name] = np.ndarray(shape, dtype, block, offset)
        return inputs

    def open_lent(
        self, block: memoryview, open_lent: OpenLent, read_gpu: ReadGpu, own_ref: int = NO_BLOCK
    ) -> dict[str, Array | memoryview]:
        """The inputs of any request: from `block`, whose reference is `own_ref`, from the blocks that the layout names,
        and from GPUs. Raises InternalError if a block is gone or too small, and what `read_gpu` raises."""
        tensors = {}
        for name, (spec, shape, offset, nbytes) in self.inputs.items():
            place, ref = self.on_gpu.get(name), self.lent.get(name)
            if place is not None:
                if place == PLACED_IN_BLOCK:
                    place, offset = _placed(name, ref or own_ref, offset, block if not ref else None, open_lent)
                tensors[name] = read_gpu(spec, shape, place, offset, nbytes)
                continue
            lies_in = block if ref is None else _open_lent(name, ref, open_lent)
            tensors[name] = open_tensor(spec, shape, offset, nbytes, lies_in)
        return tensors

    def open_here(self, block: memoryview) -> dict[str, Array | memoryview]:
        """The inputs of a request all of whose tensors lie in its own block. Raises InternalError if the block is too
        small."""
        return self.open_lent(block, lambda _ref: None, _never_read)


def _never_read(*_input: object) -> memoryview:
    raise InternalError("an input of a request that lies in one block was to be read from a GPU")


class Request:
    """One request of a batch."""

    __slots__ = ("_inputs", "_is_key_cancelled", "_tensors", "block", "options", "parsed", "position", "record")

    def __init__(
        self,
        position: int,
        parsed: ParsedRequest,
        block: memoryview,
        tensors: Mapping[str, Array | memoryview] | None,
        record: Sequence[int],
        is_key_cancelled: Callable[[int], bool],
        options: InferOptions = WITHOUT_OPTIONS,
    ) -> None:
        self.position = position  # the request's number in its batch
        self.parsed = parsed
        self.options = options
        self.block = block
        self.record = record  # the request's BATCH_ITEM
        self._is_key_cancelled = is_key_cancelled
        # Made by their first use: a batch of several requests is gathered without an array for each tensor.
        self._tensors = tensors
        self._inputs: dict[str, Array] | None = None

    @property
    def id(self) -> str:
        """The client's id of the request; "" = none."""
        return self.options.id

    @property
    def tensors(self) -> Mapping[str, Array | memoryview]:
        """The request's tensors by name, as read-only arrays over shared memory, valid until the request's answer is
        published; strings in wire form."""
        tensors = self._tensors
        if tensors is None:
            tensors = self._tensors = self.parsed.open(self.block)
        return tensors

    @property
    def inputs(self) -> dict[str, Array]:
        """Inputs by name, with strings as object arrays of bytes. Raises InternalError for damaged strings."""
        if self.parsed.is_plain:
            return self.tensors  # type: ignore[return-value]  # a plain request has no strings
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = {
                name: open_strings(name, self.parsed.inputs[name][1], tensor)
                if isinstance(tensor, memoryview)
                else tensor
                for name, tensor in self.tensors.items()
            }
        return inputs

    @property
    def parameters(self) -> Parameters:
        """A copy of the client's parameters."""
        return dict(self.options.parameters)

    @property
    def key(self) -> int:
        """The request's key, its name in all processes."""
        return self.record[B.KEY]

    @property
    def refs(self) -> tuple[int, ...]:
        """References to the blocks in which the request's tensors lie, the request's own block first."""
        return (self.record[B.BLOCK], *self.parsed.lent.values())

    @property
    def batch(self) -> int:
        """The number of the request's batch."""
        return self.record[B.BATCH]

    @property
    def correlation_id(self) -> int | str:
        """The id of the sequence that the request belongs to; 0 or "" = none."""
        return self.options.sequence[0]

    @property
    def flags(self) -> int:
        """Triton's sequence flags: 1 starts a sequence, 2 ends it."""
        return self.options.sequence[1]

    @property
    def priority(self) -> int:
        """The priority that the client gave; 0 = the model's default."""
        return self.record[B.PRIORITY]

    @property
    def timeout_us(self) -> int:
        """The timeout that the client gave, in µs; 0 = none."""
        return self.record[B.TIMEOUT_US]

    @property
    def accepted_ns(self) -> int:
        """When the server accepted the request, in monotonic ns."""
        return self.record[B.ACCEPTED_NS]

    @property
    def answer_by_ns(self) -> int:
        """The monotonic time in ns after which the client does not wait for the answer; 0 = never."""
        return self.record[B.DEADLINE_NS]

    @property
    def deadline_ns(self) -> int:
        """The monotonic time in ns after which the answer comes too late, by `answer_by_ns` or the client's timeout,
        whichever is sooner; 0 = never."""
        timeout_us, answer_by_ns = self.record[B.TIMEOUT_US], self.answer_by_ns
        if not timeout_us:
            return answer_by_ns
        expiry_ns = self.record[B.ACCEPTED_NS] + timeout_us * 1000
        return min(expiry_ns, answer_by_ns or expiry_ns)

    def complete(
        self, parsed: ParsedRequest, tensors: Mapping[str, Array | memoryview], sequence: tuple[int | str, int]
    ) -> None:
        """Set the request's tensors, to which those that its sequence adds now belong, and its sequence's id and flags
        (sequences.py)."""
        self.parsed = parsed
        self._tensors = tensors
        self.options = self.options._replace(sequence=sequence)

    def is_cancelled(self) -> bool:
        """Whether the client does not wait any more, as far as this worker knows now."""
        return self._is_key_cancelled(self.key)


class RequestReader:
    """Reads the requests to one model. Parsed layouts are kept by their bytes, since clients repeat them.

    Keeping them saves 29k of 124k instructions for a request that runs alone, 40k of 72k for one in a batch of 32. A
    header consists of a layout and options; options are read each time. A header without options is looked up whole.
    """

    def __init__(
        self,
        signature: Signature,
        is_key_cancelled: Callable[[int], bool] = lambda _key: False,
        open_block: OpenBlock = NO_BLOCKS,
        cuda_regions: Callable[[], CudaRegions] = CudaRegions,
        kept_gpu: int = NO_GPU,
        is_guests: Callable[[int], bool] = lambda _ref: False,
    ) -> None:
        """Inputs on the GPU `kept_gpu` (the server's number of it) are not copied: they become GpuTensors. `is_guests`
        says whether a block is a guest's, for which no front end has checked that regions are registered."""
        self._signature = signature
        self._kept_gpu = kept_gpu
        self._cuda_regions = cuda_regions
        self._is_guests = is_guests
        self._is_key_cancelled = is_key_cancelled
        self._open_block = open_block
        # These fields are changed by open.
        self._parsed = Memo[bytes, ParsedRequest]("parsed_request", MAX_PARSED)
        self._layouts = Memo[bytes, ParsedRequest]("request_layout", MAX_PARSED)
        #: The layout that was found last, with which the next header is compared first. A layout begins with its size,
        #: so no layout begins with another one, and the initial value, a size that no layout has, matches no header.
        self._last: tuple[bytes, ParsedRequest | None] = b"\xff" * 4, None
        self._lent_layouts = Memo[bytes, ParsedRequest]("lent_request_layout", MAX_LENT_PARSED)

    def open(self, position: int, block: memoryview, header: bytes, record: Sequence[int] = _NO_RECORD) -> Request:
        """The request with this header, whose tensors lie in `block`. Raises InternalError if the header is damaged or
        not for this model."""
        parsed = self._parsed.entries.get(header)
        if parsed is not None and parsed.end <= len(block):
            return Request(position, parsed, block, None, record, self._is_key_cancelled)
        layout, parsed = self._last
        if header.startswith(layout):
            packed = header[len(layout) :]
        else:
            layout, packed = split_header(header)
            parsed = self._layouts.entries.get(layout)
            if parsed is not None:
                self._last = layout, parsed
        options = WITHOUT_OPTIONS if packed == NO_OPTIONS else unpack_options(packed)
        tensors: dict[str, Array | memoryview] | None = None
        if parsed is None or parsed.end > len(block):
            open_lent: OpenLent = lambda ref: self._open_block(ref, record[B.BLOCK])  # noqa: E731
            read_gpu: ReadGpu = self._refuse_gpu if self._is_guests(record[B.BLOCK]) else self._read_gpu
            parsed = self._lent_layouts.entries.get(layout)
            if parsed is not None:
                tensors = parsed.open_lent(block, open_lent, read_gpu, record[B.BLOCK])
            else:
                own_ref = record[B.BLOCK]
                parsed, tensors = parse_request(layout, block, self._signature, open_lent, read_gpu, own_ref)
                if len(layout) <= MAX_PARSED_BYTES and (parsed.is_plain or parsed.lent):
                    (self._lent_layouts if parsed.lent else self._layouts).keep(layout, parsed)
        if parsed.targets or parsed.stays:
            self._check_targets(parsed.targets, record[B.BLOCK])
        elif options is WITHOUT_OPTIONS and self._layouts.entries.get(layout) is parsed:
            self._parsed.keep(header, parsed)
        return Request(position, parsed, block, tensors, record, self._is_key_cancelled, options)

    def _check_targets(self, targets: Sequence[CudaTarget], block: int) -> None:
        """Open the regions of a request's outputs. Raises InternalError for any request of a guest, which must not be
        told where memory on a GPU is, and what CudaRegions.check raises."""
        if self._is_guests(block):
            raise InternalError(_NO_GUESTS)
        if targets:
            self._cuda_regions().check(targets)

    @staticmethod
    def _refuse_gpu(*_input: object) -> memoryview:
        raise InternalError(_NO_GUESTS)

    def _read_gpu(
        self, spec: TensorSpec, shape: tuple[int, ...], place: bytes, offset: int, nbytes: int
    ) -> Array | memoryview:
        """An input in a client's memory on a GPU: a copy, or a GpuTensor if the backend takes those. Raises
        InvalidArgumentError for strings that do not fit the shape (no front end reads a GPU's memory), InternalError
        for a shape that does not fit the size, and what CudaRegions.read raises."""
        regions, datatype = self._cuda_regions(), spec.datatype
        if datatype is not BYTES and self._kept_gpu != NO_GPU and not offset % datatype.itemsize:
            is_whole = prod(shape) * datatype.itemsize == nbytes > 0
            if is_whole and unpack_place(place).device_id == self._kept_gpu:
                return cast("memoryview", regions.keep(place, offset, nbytes))
        data = regions.read(place, offset, nbytes)
        if datatype is BYTES:
            problem = check_bytes_elements(data, prod(shape), spec.name, self._signature.name)
            if problem is not None:
                raise InvalidArgumentError(problem)
        return open_tensor(spec, shape, 0, nbytes, data)


def parse_request(
    layout: bytes, block: memoryview, signature: Signature, open_lent: OpenLent, read_gpu: ReadGpu, own_ref: int
) -> tuple[ParsedRequest, dict[str, Array | memoryview]]:
    """The parsed layout, and the tensors: views of blocks, or what `read_gpu` returns. `own_ref` is the reference of
    `block`.

    Raises InternalError if the header is damaged or not for this model, and what `read_gpu` raises.
    """
    specs, batching = signature.inputs, signature.max_batch_size > 0
    places: dict[str, InputPlace] = {}
    lent: dict[str, int] = {}
    on_gpu: dict[str, bytes] = {}
    rows = -1
    refs, outputs = unpack_layout(layout)
    try:
        for name, wire, shape, offset, nbytes, *lender in refs:
            spec = specs.get(name)
            if spec is None or wire not in (spec.datatype.wire, spec.datatype.wire | PLACED):
                raise InternalError(f"model '{signature.name}' has no input '{name}' of datatype number {wire}")
            _check_dims(shape, spec, batching=batching)
            if wire != spec.datatype.wire:
                lent[name], on_gpu[name] = lender[0] if lender else NO_BLOCK, PLACED_IN_BLOCK
            elif lender and type(lender[0]) is bytes:
                (on_gpu[name],), lent[name] = lender, NO_BLOCK
            elif lender:
                (lent[name],) = lender
            places[name] = (spec, shape, offset, nbytes)
            if batching:
                _check_rows(name, shape, rows, signature)
                rows = shape[0]
        rows = 1 if rows < 0 else rows
        missing = [spec.name for spec in specs.values() if spec.name not in places and not spec.optional]
        if missing:
            raise ValueError(f"it has no input '{missing[0]}'")
        end, is_plain = 0, not lent
        for spec, _, offset, nbytes in places.values():
            end = max(end, offset + nbytes)
            is_plain = is_plain and spec.datatype is not BYTES and offset % spec.datatype.itemsize == 0
        views: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
        if is_plain:
            views = [(name, shape, spec.datatype.dtype, offset) for name, (spec, shape, offset, _) in places.items()]
        wanted = unpack_targets(layout)
        targets = tuple([each for each in wanted if type(each) is CudaTarget])
        stays = {each.name: each.gpu for each in wanted if type(each) is Stay}
        share = (rows, outputs)
        parsed = ParsedRequest(places, tuple(views), end, rows, share, is_plain, lent, on_gpu, targets, stays)
        return parsed, parsed.open_lent(block, open_lent, read_gpu, own_ref)
    except (TypeError, ValueError) as error:
        raise InternalError(f"a request header in shared memory is damaged: {error}") from error


def _check_rows(name: str, shape: Any, rows: int, signature: Signature) -> None:
    """Raise InternalError if an input has not `rows` rows, as the inputs before it have; `rows` is -1 for the first
    input."""
    if not (shape and rows in (-1, shape[0])):
        raise InternalError(
            f"input '{name}' of model '{signature.name}' has shape {format_shape(shape)}, expected a "
            f"first dimension of {'the batch' if rows < 0 else rows}"
        )


def _check_dims(shape: Any, spec: TensorSpec, *, batching: bool) -> None:
    """Check a shape against the configuration: requests are batched by the dimensions that it leaves open, so the
    others must be as configured. Raises ValueError if they are not."""
    dims = spec.model_dims
    seen = shape[1:] if batching else shape
    if type(shape) is not tuple or len(seen) != len(dims):
        raise ValueError(f"input '{spec.name}' has the shape {shape}")
    for size, dim in zip(seen, dims, strict=True):
        if type(size) is not int or dim not in (-1, size):
            raise ValueError(f"input '{spec.name}' has the shape {shape}")


def _placed(name: str, ref: int, offset: int, block: memoryview | None, open_lent: OpenLent) -> tuple[bytes, int]:
    """The place and offset on a GPU of an input that another worker, or the caller, has left there. Place and offset
    stand at `offset` in the block `ref`; `block` is that block's memory, or None if it is yet to be opened."""
    placed = unpack_placed(_open_lent(name, ref, open_lent) if block is None else block, offset)
    return place_in_pool(placed, ref_owner(ref)), placed.offset


def _open_lent(name: str, ref: int, open_lent: OpenLent) -> memoryview:
    if type(ref) is not int:
        raise TypeError(f"input '{name}' is passed on in a block without a number")
    block = open_lent(ref)
    if block is None:
        raise InternalError(f"input '{name}' is gone: the block of shared memory that it was passed on in was freed")
    return block


def gather(requests: Sequence[Request], stage: Stage | None = None) -> dict[str, Array]:
    """The inputs of a batch: the requests' tensors, concatenated along the first dimension; a single request's tensors
    are not copied.

    `why_not_joined` must be "" for all requests. With `stage`, all tensors except strings, even those of a single
    request, are copied into the memory that `stage` returns.
    """
    first = requests[0]
    is_alone = len(requests) == 1
    if is_alone and stage is None:
        return first.inputs
    rows = sum([request.parsed.rows for request in requests])
    gathered = {}
    for name, (spec, shape, _, _) in first.parsed.inputs.items():
        if spec.datatype is BYTES:
            gathered[name] = np.concatenate([request.inputs[name] for request in requests])
            continue
        # Bytes are joined, so no request needs an array: for 32 tensors of 2 KiB, 6k instructions a request less than
        # with numpy's concatenate.
        parts = []
        for request in requests:
            parsed = request.parsed
            _, _, offset, nbytes = parsed.inputs[name]
            parts.append(request.inputs[name].data if name in parsed.lent else request.block[offset : offset + nbytes])
        data = b"".join(parts) if stage is None else _put(stage, name, parts)
        joined: Array = np.ndarray(shape if is_alone else (rows, *shape[1:]), spec.datatype.dtype, data)
        gathered[name] = joined
    return gathered


def _put(stage: Stage, name: str, parts: Sequence[memoryview]) -> memoryview:
    memory, end = stage(name, sum([part.nbytes for part in parts])), 0
    for part in parts:
        start, end = end, end + part.nbytes
        memory[start:end] = part.cast("B") if part.nbytes else b""  # an empty tensor cannot be cast
    return memory


def why_not_joined(first: ParsedRequest, other: ParsedRequest, ragged: Collection[str] = ()) -> str:
    """Why a request cannot share a batch with the first one; "" if it can. In `ragged` inputs shapes may differ."""
    if first.inputs.keys() != other.inputs.keys():
        return f"inputs {', '.join(other.inputs)} cannot be batched with inputs {', '.join(first.inputs)}"
    for name, (_, shape, _, _) in first.inputs.items():
        other_shape = other.inputs[name][1]
        if shape[1:] != other_shape[1:] and name not in ragged:
            shapes = f"shape {format_shape(other_shape)} cannot be batched with shape {format_shape(shape)}"
            return f"input '{name}' of {shapes}"
    return ""


def is_wanted(output: str, requests: Sequence[Request]) -> bool:
    """Whether any of these requests wants this output; the first usually does."""
    return requests[0].parsed.wants(output) or any(request.parsed.wants(output) for request in requests)
