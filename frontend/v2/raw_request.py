"""A raw binary request: `Inference-Header-Content-Length: 0`, the whole body is the data of the model's only input.

Name, datatype and shape are deduced from the model's configuration. Pure; front-end processes.
"""

from math import prod

from shoal.datatypes import BYTES, encode_bytes_tensor
from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature, TensorSpec
from shoal.star.validation import ParsedInput, log_prefix


def parse_raw_request(signature: Signature, body: memoryview, max_input_size: int) -> ParsedInput:
    """The one input, still to be validated: a body that is no whole number of elements is found there."""
    if len(body) > max_input_size:
        raise InvalidArgumentError(
            f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    prefix = log_prefix("")  # a raw request has no id
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} "
            f"inputs in '{signature.name}' model configuration"
        )
    (spec,) = signature.inputs.values()
    if spec.dims.count(-1) > 1:
        raise InvalidArgumentError(
            f"{prefix}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    batch = (1,) if signature.max_batch_size > 0 else ()
    if spec.datatype is not BYTES:
        return ParsedInput(spec.name, spec.datatype, batch + _solved(spec, len(body)), body, -1)
    if prod(spec.dims) != 1 or -1 in spec.dims:
        raise InvalidArgumentError(
            f"{prefix}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
        )
    return ParsedInput(spec.name, spec.datatype, batch + spec.dims, memoryview(encode_bytes_tensor([bytes(body)])), 1)


def _solved(spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    """The dims with -1 replaced by what the body's size leaves for it."""
    fixed = prod(dim for dim in spec.dims if dim != -1) * spec.datatype.itemsize
    return tuple(dim if dim != -1 else nbytes // fixed for dim in spec.dims)
