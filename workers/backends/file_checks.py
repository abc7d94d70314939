"""Checks that a model's file fits its configuration. Pure; Triton's sentences. Runs in a worker, while it loads.

For every backend whose files declare their inputs and outputs.
"""

from collections.abc import Collection, Mapping, Sequence

from shoal.datatypes import Datatype, format_shape
from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature, TensorSpec

_NONE: Mapping[str, Datatype] = {}


def check(
    signature: Signature,
    model_io: ModelIO,
    initializers: Sequence[IOTensor] = (),
    made: Mapping[str, Datatype] = _NONE,
    scattered: Collection[str] = (),
) -> None:
    """Check the inputs and outputs of a file against the configuration. Raises InvalidArgumentError if they disagree.

    `initializers` are inputs that have a default in the file; they may be configured if there is no batch dimension.
    `made` are inputs that no client sends, `scattered` are outputs that have another shape for clients.
    """
    name, batching = signature.name, signature.max_batch_size > 0
    optional = {} if batching else {tensor.name: tensor for tensor in initializers}
    required = {tensor.name: tensor for tensor in model_io.inputs}
    num_expected = sum(input_ not in optional for input_ in signature.inputs) + len(made)
    if num_expected != len(required):
        raise InvalidArgumentError(
            f"unable to load model '{name}', configuration expects {num_expected} inputs, "
            f"model provides {len(required)}"
        )
    inputs = optional | required
    outputs = {tensor.name: tensor for tensor in model_io.outputs}
    for spec in signature.inputs.values():
        _check_tensor(name, "input", spec, _find(spec.name, "input", inputs), batching)
    for input_, datatype in made.items():
        _check_datatype(name, "input", input_, datatype, _find(input_, "input", inputs))
    for spec in signature.outputs.values():
        tensor = _find(spec.name, "output", outputs)
        if spec.name in scattered:
            _check_datatype(name, "output", spec.name, spec.datatype, tensor)
        else:
            _check_tensor(name, "output", spec, tensor, batching)


def refuse_optional(signature: Signature, framework: str) -> None:
    """Raise UnsupportedError if a request may leave an input out, for frameworks that need every input."""
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
    _check_datatype(model, role, spec.name, spec.datatype, tensor)
    if spec.ragged:
        if tensor.dims != (-1,):  # the two blanks in the sentence are Triton's
            raise InvalidArgumentError(
                f"unable to load model '{model}', configuration expects model provides input with shape [-1]  for "
                f"ragged input '{spec.name}', model provides {format_shape(tensor.dims)}"
            )
        return
    dims = spec.model_dims
    if not batching:
        if tensor.dims == ():  # configured with any number of dims of 1, since dims must not be empty
            _check_scalar(model, spec.name, dims)
        elif not _fits(tensor.dims, dims):
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


def _check_scalar(model: str, name: str, dims: Sequence[int]) -> None:
    if any(dim != 1 for dim in dims):
        raise InvalidArgumentError(
            f"unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the model configuration "
            f"when the model doesn't support batching. Model configuration provided: {format_shape(tuple(dims))}. The "
            f"model's file gives '{name}' no dimensions, so it is one element: set its dims to [1]"
        )


def _check_datatype(model: str, role: str, name: str, datatype: Datatype, tensor: IOTensor) -> None:
    if tensor.data_type != datatype.config_name:
        raise InvalidArgumentError(
            f"unable to load model '{model}', configuration expects datatype {datatype.config_name} for {role} "
            f"'{name}', model provides {tensor.data_type}"
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
