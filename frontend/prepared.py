"""Infer requests of any protocol, once parsed and validated: the prepared request, its submission through shared
memory, and the outputs of its response.

What HTTP and gRPC have in common: the rules for requests beyond those of Triton's core, a request's block, and which of
a model's outputs the client gets. Pure. Front-end processes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, cast

from shoal.datatypes import BY_WIRE, BYTES, Datatype
from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.frontend.header_forwarding import Forwarded, check_forwarded
from shoal.frontend.v2.classification import classify
from shoal.request import (
    CudaTarget,
    CudaTensorRef,
    InferRequest,
    InferResponse,
    Parameters,
    RecordedHeaders,
    TensorRef,
    pack_request,
)
from shoal.sequences import STICKY_SHIFT
from shoal.shared_settings import SLAB_PARTS
from shoal.shm.client_regions import RegionSlice
from shoal.shm.cuda_regions import PLACE_NBYTES, CudaSlice
from shoal.shm.layout import NO_DIGEST, pack_span
from shoal.shm.port import Port
from shoal.shm.slab import Block
from shoal.star import outgoing
from shoal.star.models import ModelEntry, client_shape
from shoal.star.request_digest import request_digest
from shoal.star.validation import ParsedInput, PreparedInput, log_prefix, validate

_MAX_ID_LENGTH = 1024  # ours: every error text and log line about the request contains it
SEQUENCE_START, SEQUENCE_END = 1, 2  # Triton's request flags
#: The most bytes that a tensor on a GPU takes in a packed header beside its name: its place, two numbers, and
#: the bytes by which msgpack marks them.
_CUDA_NBYTES = PLACE_NBYTES + 32
#: In a packed header, the most bytes that a recorded header takes beside its name and value.
_RECORDED_NBYTES = 16


class RequestedOutput(NamedTuple):
    """One entry of the request's `outputs`."""

    name: str
    binary: bool  # whether the client wants binary data, over HTTP; gRPC's outputs are always binary
    classification: int  # how many classes are wanted in place of the values; 0 = the values
    #: The place where the client wants the values, which the response then leaves out; None: in the response.
    region: RegionSlice | CudaSlice | None = None


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A validated request. Where `outputs` is empty, the client wants all outputs, in the form that
    `binary_data_output` says."""

    entry: ModelEntry
    id: str
    inputs: tuple[PreparedInput, ...]
    outputs: tuple[RequestedOutput, ...]
    binary_data_output: bool
    parameters: Parameters
    rows: int
    shape_key: int
    priority: int
    timeout_us: int
    correlation_id: int | str = 0  # 0 and "" = no sequence
    flags: int = 0  # SEQUENCE_START | SEQUENCE_END
    wants_empty_final: bool = False  # whether an empty response ends a stream whose last one is not marked
    deadline_ns: int = 0  # when the client stops waiting, monotonic; 0 = unknown; unused on lanes
    sticky_key: int = 0  # 32 bits: while a rollout splits requests, equal keys go to one version; 0 = none
    headers: RecordedHeaders = ()  # of the request, for recordings

    @property
    def has_regions(self) -> bool:
        """Whether some tensors lie in the client's shared memory: then the templates that are kept of the request must
        be forgotten when the regions change (regions.py)."""
        return any(isinstance(each.data, (RegionSlice, CudaSlice)) for each in self.inputs) or any(
            output.region is not None for output in self.outputs
        )

    @property
    def uses_cuda(self) -> bool:
        """Whether some tensors lie in a client's memory on a GPU: such a request is not cached, since its answer
        depends on memory that no front end reads, or is written where no cache can write."""
        return any(isinstance(each.data, CudaSlice) for each in self.inputs) or any(
            isinstance(output.region, CudaSlice) for output in self.outputs
        )

    def pack_header(self, inputs: Iterable[TensorRef]) -> bytes:
        """The packed header of the request's block; `inputs` says where in the block the tensors lie. Raises
        InvalidArgumentError for an ensemble's output in CUDA shared memory."""
        requested = tuple([output.name for output in self.outputs])
        sequence = self.correlation_id or 0, self.flags
        targets = [
            CudaTarget(output.name, output.region.place, output.region.offset, output.region.nbytes)
            for output in self.outputs
            if isinstance(output.region, CudaSlice)
        ]
        if targets:
            _refuse_ensembles(self.entry, f"output '{targets[0].name}'")
        return pack_request(
            InferRequest(self.id, tuple(inputs), requested, self.parameters, sequence, tuple(targets), self.headers)
        )


def _refuse_ensembles(entry: ModelEntry, tensor: str) -> None:
    """Raise InvalidArgumentError for a tensor in CUDA shared memory if the model is an ensemble, whose steps share
    host memory alone."""
    if "ensemble_scheduling" in entry.config:
        raise InvalidArgumentError(
            f"{tensor} of ensemble '{entry.name}' cannot lie in CUDA shared memory: this server passes an ensemble's "
            "tensors on in host memory; use system shared memory, or request the steps' models"
        )


class RoadOnlyError(UnavailableError):
    """Raised on a lane for a request that must be handed to the road: the road may wait, has larger blocks, and counts
    the requests of API keys with limits."""


class RequestSettings(NamedTuple):
    """The values in a request's `parameters`; values that only the model reads are in the attribute `parameters`."""

    parameters: Parameters
    binary_data_output: bool = False
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0
    wants_empty_final: bool = False


def checked_id(id_: str) -> str:
    """The id, unchanged. Raises InvalidArgumentError for an id that is too long."""
    if len(id_) > _MAX_ID_LENGTH:
        raise InvalidArgumentError(
            f"the request's 'id' has {len(id_)} characters, more than the maximum of {_MAX_ID_LENGTH}; "
            "send what is longer as a request parameter"
        )
    return id_


def named_twice(id_: str, kind: str, name: str) -> InvalidArgumentError:
    """The error for a request in which two inputs, or two outputs, have the same name; `kind` is "input" or
    "output"."""
    return InvalidArgumentError(f"{log_prefix(id_)}{kind} '{name}' already exists in request")


def validated(
    entry: ModelEntry,
    id_: str,
    inputs: Sequence[ParsedInput],
    outputs: tuple[RequestedOutput, ...],
    settings: RequestSettings,
    forwarded: Forwarded,
) -> PreparedRequest:
    """The validated request. Raises InvalidArgumentError with Triton's sentences."""
    check_forwarded(forwarded)
    own, bdo, priority, timeout_us, correlation_id, flags, empty_final = settings
    names = [output.name for output in outputs]
    valid, rows, shape_key = validate(entry.signature, id_, inputs, names, correlation_id)
    return PreparedRequest(
        entry, id_, valid, outputs, bdo, {**own, **forwarded}, rows, shape_key, priority, timeout_us, correlation_id,
        flags, empty_final,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# Shared memory


def block_nbytes(prepared: PreparedRequest) -> int:
    """Upper bound of the bytes that `write_block` uses of a block, a few hundred too many at most."""
    tensors = [
        (name, len(shape), _CUDA_NBYTES if isinstance(data, CudaSlice) else len(data))
        for name, _, shape, data in prepared.inputs
    ]
    outputs = [output.name for output in prepared.outputs]
    nbytes = outgoing.block_nbytes(prepared.id, prepared.correlation_id, tensors, outputs, prepared.parameters)
    for output in prepared.outputs:
        if isinstance(output.region, CudaSlice):
            nbytes += _CUDA_NBYTES + 4 * len(output.name)
    for name, value in prepared.headers:
        nbytes += _RECORDED_NBYTES + 4 * (len(name) + len(value))
    return nbytes


def write_block(prepared: PreparedRequest, memory: memoryview) -> int:
    """Write the tensors and, after them, the header into `memory`; returns the header's span, a word with its offset
    and size.

    Raises InvalidArgumentError if a client's region has been truncated, or if it is on a GPU and the model is an
    ensemble.
    """
    offset = 0
    refs: list[TensorRef | CudaTensorRef] = []
    for name, datatype, shape, data in prepared.inputs:
        nbytes = len(data)
        if isinstance(data, RegionSlice):
            data.read_into(memory[offset : offset + nbytes])
        elif isinstance(data, CudaSlice):
            _refuse_ensembles(prepared.entry, f"input '{name}'")
            refs.append(CudaTensorRef(name, datatype.wire, shape, data.offset, nbytes, data.place))
            continue
        else:
            memory[offset : offset + nbytes] = data
        refs.append(TensorRef(name, datatype.wire, shape, offset, nbytes))
        offset += outgoing.aligned(nbytes)
    header = prepared.pack_header(cast("list[TensorRef]", refs))
    memory[offset : offset + len(header)] = header
    return pack_span(offset, len(header))


def submit_block(
    port: Port, prepared: PreparedRequest, block: Block, span: int, start_ns: int, deadline_ns: int = 0,
    wishes: RequestSettings | None = None,
) -> int:  # fmt: skip
    """Submit a filled block, whose header is at `span`, to the batcher; `wishes`, unless None, take the place of the
    request's own settings. Returns the request's number."""
    is_cached = prepared.entry.is_cached and not prepared.uses_cuda
    digest = request_digest(block.memory, span) if is_cached else NO_DIGEST
    return port.submit(prepared, wishes or prepared, block, span, start_ns, digest, deadline_ns)


def submit_copy(port: Port, prepared: PreparedRequest, start_ns: int, deadline_ns: int = 0) -> int:
    """Copy a request into a block of its own and submit that to the batcher. Returns the request's number.

    Raises ShoalError, after freeing the block; RoadOnlyError if the road must allocate the block.
    """
    nbytes = block_nbytes(prepared)
    if nbytes > port.slab.largest_nbytes // SLAB_PARTS and prepared.has_regions:
        raise RoadOnlyError(
            f"a streamed request of {nbytes} bytes finds no room in the shared memory of this front end: send it with "
            "ModelInfer, or raise --shm-client-slab-mib"
        )
    block = port.allocate(nbytes, prepared.entry.model_id)
    try:
        span = write_block(prepared, block.memory)
    except BaseException:
        port.slab.free(block.ref)
        raise
    return submit_block(port, prepared, block, span, start_ns, deadline_ns, wishes_of(prepared))


def wishes_of(prepared: PreparedRequest) -> RequestSettings | None:
    """The settings of a request, with its sticky key, for `submit_block`; None if the request has no such key."""
    if not prepared.sticky_key:
        return None
    flags = prepared.flags | prepared.sticky_key << STICKY_SHIFT
    return RequestSettings({}, False, prepared.priority, prepared.timeout_us, prepared.correlation_id, flags)


# ---------------------------------------------------------------------------------------------------------------
# The response


class AnsweredOutput(NamedTuple):
    """An output that the client requested, in the form that the client asked for."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    #: The output's wire form in the worker's block, or the classes' strings; None if the output is in the client's
    #: region.
    data: memoryview | None
    binary: bool


def answered(prepared: PreparedRequest, response: InferResponse, block: memoryview) -> Iterator[AnsweredOutput]:
    """The outputs that the client requested, in the model's order; an output that the client wants in a region is
    written there.

    Raises InternalError for an output whose size does not fit its shape or its region, and what `classify` raises.
    """
    requested = {output.name: output for output in prepared.outputs}
    for ref in response.outputs:
        name = ref.name
        binary, num_classes, region = prepared.binary_data_output, 0, None
        if requested:
            if name not in requested:
                continue
            _, binary, num_classes, region = requested[name]
        datatype = BY_WIRE[ref.datatype]
        shape = client_shape(prepared.entry, ref)
        view = block[ref.offset : ref.offset + ref.nbytes]
        if num_classes:
            has_batch = prepared.entry.signature.max_batch_size > 0
            labels = prepared.entry.labels.get(name, ())
            shape, data = classify(name, datatype, shape, view, num_classes, labels, has_batch=has_batch)
            datatype, view = BYTES, memoryview(data)
        elif binary and datatype is not BYTES and prod(shape) * datatype.itemsize != len(view):
            raise InternalError(f"output tensor shape does not match size of output for '{name}'")
        if region is not None:
            write_output(name, view, region)
        yield AnsweredOutput(name, datatype, shape, view if region is None else None, binary)


def write_output(name: str, data: memoryview, region: RegionSlice | CudaSlice) -> None:
    """Copy an output's bytes into its place in the client's region; into a region on a GPU the worker has copied them.
    Raises InternalError if the bytes do not fit, InvalidArgumentError if the region has been truncated."""
    if len(data) > region.nbytes:
        raise InternalError(
            f"shared memory size specified with the request for output '{name}' ({region.nbytes} bytes) should be at "
            f"least {len(data)} bytes to hold the results"
        )
    if isinstance(region, RegionSlice):
        region.write(data)
