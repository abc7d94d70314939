"""The signature of a model: its finished configuration in the form that requests are checked against.

Front ends, the batcher and workers import this, so it is light and knows no protobuf. Front ends check requests against
a signature, workers gather rows by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.datatypes import BY_CONFIG_NAME, Datatype
from shoal.errors import InternalError
from shoal.model_config import sequences
from shoal.model_config.messages import Config
from shoal.model_config.ragged_batching import length_axes


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]  # as clients see them, without the batch dimension; -1: any size
    reshape: tuple[int, ...] | None  # as the backend sees them; None: like dims
    optional: bool  # a request may leave this input out
    ragged: bool  # requests of one batch may differ in this input's shape
    label_filename: str  # the label file of an output, in the model's directory; "": no labels

    @property
    def model_dims(self) -> tuple[int, ...]:
        """`dims` as the backend sees them."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """The requirements of a sequence batcher on a request, besides its tensors."""

    control: str  # the input that receives the correlation id; "": none
    correlation: Datatype | None  # the datatype of that input; None: either kind of id is accepted
    is_iterative: bool  # a request without an id is a sequence by itself


@dataclass(frozen=True, slots=True)
class Signature:
    """The name of a model, its largest batch (0: no batch dimension) and its tensors in the configuration's order."""

    name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    sequences: SequenceSpec | None = None  # None: the model has no sequences
    lengths: Mapping[str, int] = field(default_factory=dict)  # ragged_batching.length_axes; empty: lengths do not count

    @classmethod
    def from_config(cls, config: Config) -> "Signature":
        """Build the signature of a finished configuration, which has passed `checks`."""
        return cls(
            name=config["name"],
            max_batch_size=config["max_batch_size"],
            inputs=_specs(config["input"]),
            outputs=_specs(config["output"]),
            sequences=_sequence_spec(config),
            lengths=length_axes(config),
        )

    def full_dims(self, spec: TensorSpec) -> tuple[int, ...]:
        """The dims of a tensor as clients see them, with the batch dimension, -1, if the model has one."""
        return (-1, *spec.dims) if self.max_batch_size > 0 else spec.dims


def reshaped(shape: Sequence[int], dims: Sequence[int], reshape: Sequence[int]) -> tuple[int, ...]:
    """A `shape` that fits `dims`, reshaped: each -1 in `reshape` takes the size of the corresponding -1 in `dims`."""
    variable = iter([size for size, dim in zip(shape, dims, strict=True) if dim == -1])
    return tuple(next(variable) if dim == -1 else dim for dim in reshape)


def client_dims(signature: Signature, output: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an output for clients, its `reshape` undone. Raises InternalError where it does not fit."""
    spec = signature.outputs.get(output)
    if spec is None or spec.reshape is None:
        return shape
    has_batch = signature.max_batch_size > 0
    inner = shape[has_batch:]
    if len(inner) != len(spec.reshape):
        raise InternalError(
            f"output '{output}' of model '{signature.name}' has shape {list(shape)}, "
            f"which does not fit the reshape {list(spec.reshape)} of its configuration"
        )
    return shape[:has_batch] + reshaped(inner, spec.reshape, spec.dims)


def _sequence_spec(config: Config) -> SequenceSpec | None:
    batching = sequences.batching(config)
    if batching is None:
        return None
    told = [control for control in sequences.controls(config) if control.kind == sequences.CORRELATION_KIND]
    name, datatype = (told[0].name, BY_CONFIG_NAME[told[0].data_type]) if told else ("", None)
    return SequenceSpec(name, datatype, batching["iterative_sequence"])


def _specs(tensors: Sequence[Config]) -> dict[str, TensorSpec]:
    return {tensor["name"]: _spec(tensor) for tensor in tensors}


def _spec(tensor: Config) -> TensorSpec:
    reshape = tensor.get("reshape")
    return TensorSpec(
        name=tensor["name"],
        datatype=BY_CONFIG_NAME[tensor["data_type"]],
        dims=tuple(tensor["dims"]),
        reshape=None if reshape is None else tuple(reshape["shape"]),
        # Fields that only ModelInput has, or only ModelOutput.
        optional=tensor.get("optional", False),
        ragged=tensor.get("allow_ragged_batch", False),
        label_filename=tensor.get("label_filename", ""),
    )
