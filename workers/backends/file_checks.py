"""Does a model's file fit its configuration? Pure; Triton's sentences. Runs in a worker, while it loads.

For every backend whose files declare their inputs and outputs.
"""

from collections.abc import Collection, Sequence

from shoal.datatypes import format_shape
from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature, TensorSpec


def check(signature: Signature, model_io: ModelIO, initializers: Sequence[IOTensor] = ()) -> None:
    """Raises InvalidArgumentError where model and configuration disagree.

    `initializers` are inputs that have a default in the file; they may be configured where there is no batch dimension.
    """
    name, batching = signature.name, signature.max_batch_size > 0
    optional = {} if batching else {tensor.name: tensor for tensor in initializers}
    required = {tensor.name: tensor for tensor in model_io.inputs}
    num_expected = sum(input_ not in optional for input_ in signature.inputs)
    if num_expected != len(required):
        raise InvalidArgumentError(
            f"unable to load model '{name}', configuration expects {num_expected} inputs, "
            f"model provides {len(required)}"
        )
    inputs = optional | required
    outputs = {tensor.name: tensor for tensor in model_io.outputs}
    for spec in signature.inputs.values():
        _check_tensor(name, "input", spec, _find(spec.name, "input", inputs), batching)
    for spec in signature.outputs.values():
        _check_tensor(name, "output", spec, _find(spec.name, "output", outputs), batching)


def refuse_optional(signature: Signature, framework: str) -> None:
    """Raises UnsupportedError where a request may leave an input out and the framework would not do without it."""
    for spec in signature.inputs.values():
        if spec.optional:
            raise UnsupportedError(
                f"model '{signature.name}', input '{spec.name}': 'optional' is not supported, {framework} needs every "
                "input of a model"
            )


def _find(name: str, role: str, tensors: dict[str, IOTensor]) -> IOTensor:
    if name not in tensors:
        raise InvalidArgumentError(
            f"unexpected inference {role} '{name}', allowed {role}s are: {', '.join(sorted(tensors))}"
        )
    return tensors[name]


def _check_tensor(model: str, role: str, spec: TensorSpec, tensor: IOTensor, batching: bool) -> None:
    configured = spec.datatype.config_name
    if tensor.data_type != configured:
        raise InvalidArgumentError(
            f"unable to load model '{model}', configuration expects datatype {configured} for {role} '{spec.name}', "
            f"model provides {tensor.data_type}"
        )
    dims = spec.model_dims
    if not batching:
        # A tensor of rank 0 is configured as [1], since dims must not be empty.
        if not _fits(tensor.dims, dims) and not (tensor.dims == () and dims == (1,)):
            raise InvalidArgumentError(
                f"{_expects(model, spec.name, tensor.dims)} specifies {len(dims)} dimensions "
                f"(shape {format_shape(dims)})"
            )
        return
    if tensor.dims[:1] != (-1,):
        raise InvalidArgumentError(
            f"model '{model}', tensor '{spec.name}': for the model to support batching the shape should have at least "
            f"1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{format_shape(tensor.dims)}"
        )
    if not _fits(tensor.dims[1:], dims):
        raise InvalidArgumentError(
            f"{_expects(model, spec.name, tensor.dims)} specifies {len(dims) + 1} dimensions (an initial batch "
            f"dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            f"{format_shape((-1, *dims))})"
        )


def _expects(model: str, tensor: str, dims: Collection[int]) -> str:
    return (
        f"model '{model}', tensor '{tensor}': the model expects {len(dims)} dimensions (shape "
        f"{format_shape(tuple(dims))}) but the model configuration"
    )


def _fits(model_dims: Sequence[int], config_dims: Sequence[int]) -> bool:
    return len(model_dims) == len(config_dims) and all(
        model_dim in (-1, config_dim) for model_dim, config_dim in zip(model_dims, config_dims, strict=True)
    )
