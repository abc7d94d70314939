"""The validation of Triton's core, which every request must pass before it is queued, whatever its protocol.

Names, number of inputs, batch dimension, datatypes, shapes, byte sizes, in Triton's order and words; then `reshape`.
Pure: a parsed request and a Signature in, the inputs as the backend sees them out. Runs in every client.
"""

import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple, cast

from shoal.datatypes import BYTES, Datatype, format_shape
from shoal.errors import InvalidArgumentError
from shoal.model_config.ragged_batching import ALL
from shoal.model_config.signature import SequenceSpec, Signature, TensorSpec, reshaped
from shoal.shm.client_regions import RegionSlice
from shoal.shm.cuda_regions import CudaSlice

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_LENGTH = struct.Struct("<I")
_MAX_INT64 = 2**63 - 1
#: The most names of inputs in an error; a request may have a million (ours).
_MAX_NAMES = 100


class ParsedInput(NamedTuple):
    """An input as in the request. `datatype` is None if the request names a datatype that Triton does not know."""

    name: str
    datatype: Datatype | None
    shape: tuple[int, ...]
    data: memoryview | RegionSlice | CudaSlice  # BYTES are copied out of regions, since their lengths are checked
    num_strings: int  # elements of a BYTES tensor from JSON; -1: not counted yet


class PreparedInput(NamedTuple):
    """An input for the backend: `shape` includes the batch dimension, and is the one after `reshape`."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: memoryview | RegionSlice | CudaSlice


class Validated(NamedTuple):
    """A valid request. `rows` is the request's size in batches and statistics; requests of one `shape_key` may share a
    batch."""

    inputs: tuple[PreparedInput, ...]
    rows: int
    shape_key: int


def log_prefix(request_id: str) -> str:
    """The beginning of most errors of Triton's core."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def validate(
    signature: Signature,
    request_id: str,
    inputs: Sequence[ParsedInput],
    outputs: Iterable[str],
    correlation_id: int | str = 0,
) -> Validated:
    """Validate a request against a model; the names of `inputs` are distinct. Raises InvalidArgumentError.

    The shape key is 0 if every input is present and of fixed size. Else it is a hash, equal in every process, of which
    inputs are present and of the shapes of inputs that are of variable size and not ragged. If the signature has
    `lengths`, the shape key is the request's length, at least 1.
    """
    model = signature.name
    for name in outputs:
        if name not in signature.outputs:
            raise InvalidArgumentError(f"unexpected inference output '{name}' for model '{model}'")
    if len(inputs) != len(signature.inputs):
        _check_input_count(signature, request_id, inputs)
    specs = [_spec(signature, each.name) for each in inputs]
    has_batch = signature.max_batch_size > 0
    rows = _batch_size(signature, request_id, inputs) if has_batch else 1
    prepared = []
    variable: dict[str, tuple[int, ...]] = {}
    for each, spec in zip(inputs, specs, strict=True):
        shape = each.shape[1:] if has_batch else each.shape
        if each.datatype is not spec.datatype:
            came = "<invalid>" if each.datatype is None else each.datatype.name
            raise InvalidArgumentError(
                f"{log_prefix(request_id)}inference input '{each.name}' data-type is '{came}', "
                f"but model '{model}' expects '{spec.datatype.name}'"
            )
        if shape != spec.dims or -1 in shape:
            _check_shape(signature, request_id, each, shape, spec)
            if not spec.ragged:
                variable[each.name] = shape
        _check_nbytes(model, request_id, each, spec.datatype, has_batch=has_batch)
        seen = each.shape if spec.reshape is None else each.shape[:has_batch] + reshaped(shape, spec.dims, spec.reshape)
        prepared.append(PreparedInput(each.name, spec.datatype, seen, each.data))
    if signature.sequences is not None:
        check_sequence(signature.sequences, model, request_id, rows, correlation_id)
    if signature.lengths:
        return Validated(tuple(prepared), max(1, rows), _length(signature, request_id, inputs))
    return Validated(tuple(prepared), max(1, rows), _shape_key(signature, inputs, variable))


def check_sequence(spec: SequenceSpec, model: str, request_id: str, rows: int, correlation_id: int | str) -> None:
    """Check a request as a sequence batcher requires; only the batcher knows whether the sequence has begun.
    Raises InvalidArgumentError."""
    is_string = isinstance(correlation_id, str)
    if correlation_id and spec.correlation is not None and is_string != (spec.correlation is BYTES):
        raise InvalidArgumentError(
            f"{log_prefix(request_id)}sequence batching control '{spec.control}' data-type is "
            f"'{'BYTES' if is_string else 'UINT64'}', but model '{model}' expects '{spec.correlation.name}'"
        )
    if rows != 1:  # 0 rows are refused, too: the rows behind them in a batch would be taken for another sequence's
        raise InvalidArgumentError(
            f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
        )
    if not (correlation_id or spec.is_iterative):
        raise InvalidArgumentError(
            f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
        )


def _spec(signature: Signature, name: str) -> TensorSpec:
    spec = signature.inputs.get(name)
    if spec is None:
        raise InvalidArgumentError(f"unexpected inference input '{name}' for model '{signature.name}'")
    return spec


def _check_input_count(signature: Signature, request_id: str, inputs: Sequence[ParsedInput]) -> None:
    got = [each.name for each in inputs]
    required = [spec.name for spec in signature.inputs.values() if not spec.optional]
    given = set(got)
    missing = [name for name in required if name not in given]
    if len(got) < len(signature.inputs) and not missing:
        return
    num_all, has_optional = len(signature.inputs), len(required) < len(signature.inputs)
    expected = f"number of inputs between {len(required)} and {num_all}" if has_optional else f"{num_all} inputs"
    raise InvalidArgumentError(
        f"{log_prefix(request_id)}expected {expected} but got {len(got)} inputs for model '{signature.name}'. "
        f"Got input(s) {_names(got)}, but missing required input(s) {_names(missing)}. "
        "Please provide all required input(s)."
    )


def _names(names: Sequence[str]) -> str:
    more = ",…" if len(names) > _MAX_NAMES else ""
    return "[" + ",".join(f"'{name}'" for name in names[:_MAX_NAMES]) + more + "]"


def _batch_size(signature: Signature, request_id: str, inputs: Sequence[ParsedInput]) -> int:
    """The batch size, which must be equal in all inputs, and at most max_batch_size. 0 is accepted here, as in
    Triton; `_check_nbytes` refuses 0 rows unless a row has no elements. Raises InvalidArgumentError."""
    batch = 0
    for each in inputs:
        if not each.shape:
            raise InvalidArgumentError(
                f"{log_prefix(request_id)}input '{each.name}' has no shape but model requires batch dimension "
                f"for '{signature.name}'"
            )
        if each is inputs[0]:
            batch = each.shape[0]
        elif each.shape[0] != batch:
            raise InvalidArgumentError(
                f"{log_prefix(request_id)}input '{each.name}' batch size does not match other inputs "
                f"for '{signature.name}'"
            )
    if not 0 <= batch <= signature.max_batch_size:  # one below 0 is a very large one to Triton
        raise InvalidArgumentError(
            f"{log_prefix(request_id)}inference request batch-size must be <= {signature.max_batch_size} "
            f"for '{signature.name}'"
        )
    return batch


def _check_shape(
    signature: Signature, request_id: str, each: ParsedInput, shape: tuple[int, ...], spec: TensorSpec
) -> None:
    prefix = log_prefix(request_id)
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(
            f"{prefix}All input dimensions should be specified for input '{each.name}' for model '{signature.name}', "
            f"got {format_shape(each.shape)}"
        )
    if len(shape) == len(spec.dims) and all(want in (-1, dim) for dim, want in zip(shape, spec.dims, strict=True)):
        return
    has_batch = signature.max_batch_size > 0
    full_dims = (-1, *spec.dims) if has_batch else spec.dims
    raise InvalidArgumentError(
        f"{prefix}unexpected shape for input '{each.name}' for model '{signature.name}'. "
        f"Expected {format_shape(full_dims)}, got {format_shape(each.shape)}. {_BATCH_NOTE if has_batch else ''}"
    )


def _check_nbytes(model: str, request_id: str, each: ParsedInput, datatype: Datatype, *, has_batch: bool) -> None:
    num_elements = prod(each.shape)
    if not num_elements and has_batch and not each.shape[0] and not len(each.data):
        num_elements = prod(each.shape[1:])  # Triton expects the data of one row if there are no rows
    if datatype is not BYTES:
        if num_elements * datatype.itemsize != len(each.data):
            raise InvalidArgumentError(
                f"{log_prefix(request_id)}input byte size mismatch for input '{each.name}' for model '{model}'. "
                f"Expected {num_elements * datatype.itemsize}, got {len(each.data)}"
            )
    elif each.num_strings != num_elements and not isinstance(each.data, CudaSlice):
        # Strings from JSON have been counted: they come here for the error's sentence only. The worker checks strings
        # on a GPU. Of a tensor between an ensemble's steps only the size is known; it comes here only as an empty
        # batch.
        problem = check_bytes_elements(cast("memoryview", each.data), num_elements, each.name, model)
        if problem is not None:
            raise InvalidArgumentError(log_prefix(request_id) + problem)


def _shape_key(signature: Signature, inputs: Sequence[ParsedInput], variable: dict[str, tuple[int, ...]]) -> int:
    if not variable and len(inputs) == len(signature.inputs):
        return 0
    present = {each.name for each in inputs}
    # In the order of the configuration, not of the request. Only integers: the hash of a string differs between
    # processes.
    words: list[int] = []
    for name in signature.inputs:
        shape = variable.get(name, ())
        words += (int(name in present), len(shape), *shape)
    return hash(tuple(words)) & _MAX_INT64 or 1


def _length(signature: Signature, request_id: str, inputs: Sequence[ParsedInput]) -> int:
    """The length of a request, which must be equal in all its inputs with a length; for packed inputs, the number of
    elements of the largest. Raises InvalidArgumentError."""
    axes = signature.lengths
    packed = [prod(each.shape) for each in inputs if axes.get(each.name) == ALL]
    if packed:
        return max(1, *packed)
    found = {each.name: each.shape[1 + axes[each.name]] for each in inputs if each.name in axes}
    length = max(found.values())
    for name, other in found.items():
        if other != length:
            raise InvalidArgumentError(
                f"{log_prefix(request_id)}inputs of model '{signature.name}' are padded together and must have one "
                f"length, but input '{name}' has {other}, and another one has {length}"
            )
    return max(1, length)


def check_bytes_elements(data: memoryview, expected: int, name: str, model: str) -> str | None:
    """The error in a BYTES tensor that must have `expected` elements, in Triton's words; None if it is valid.

    The check stops at the first element beyond those, so its time is bounded by the shape in the request.
    """
    where = f"for inference input '{name}' for model '{model}'"
    offset, end, count = 0, len(data), 0
    unpack_from = _LENGTH.unpack_from
    while offset < end:
        if count == expected:
            return f"unexpected number of string elements {count + 1} {where}, expecting {expected}"
        if end - offset < 4:
            return (
                f"incomplete string length indicator {where}, expecting 4 bytes but only {end - offset} bytes "
                "available. Please make sure the string length indicator is in one buffer."
            )
        (length,) = unpack_from(data, offset)
        offset += 4
        if end - offset < length:
            return (
                f"incomplete string data {where}, expecting string of length {length} "
                f"but only {end - offset} bytes available."
            )
        offset += length
        count += 1
    if count != expected:
        return f"expected {expected} string elements {where}, got {count}"
    return None
