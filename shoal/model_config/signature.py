"""What a request to a model must look like: its finished configuration, compiled once.

Front ends, the batcher and workers import this; it is light on purpose and knows no protobuf. Checking a request
against a signature is the front end's, gathering its rows the worker's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.datatypes import BY_CONFIG_NAME, Datatype
from shoal.errors import InternalError
from shoal.model_config import sequences
from shoal.model_config.messages import Config


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]  # as clients see them, without the batch dimension; -1 = any size
    reshape: tuple[int, ...] | None  # as the backend sees them; None = the same as dims
    optional: bool  # a request may leave this input out
    ragged: bool  # requests of one batch may differ in this input's shape
    label_filename: str  # of an output, inside the model directory; "" = no labels

    @property
    def model_dims(self) -> tuple[int, ...]:
        """`dims` as the backend sees them."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What a request to a sequence batcher must have beside its tensors."""

    control: str  # the input that says the correlation id; "" = none
    correlation: Datatype | None  # its datatype; None: either kind of id will do
    is_iterative: bool  # one without an id is a sequence by itself


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's name, its largest batch (0 = no batch dimension) and its tensors in the configuration's order."""

    name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    sequences: SequenceSpec | None = None  # None: requests are all alike

    @classmethod
    def from_config(cls, config: Config) -> "Signature":
        """Compiles a finished configuration; one that has passed `checks` cannot fail here."""
        return cls(
            name=config["name"],
            max_batch_size=config["max_batch_size"],
            inputs=_specs(config["input"]),
            outputs=_specs(config["output"]),
            sequences=_sequence_spec(config),
        )


def reshaped(shape: Sequence[int], dims: Sequence[int], reshape: Sequence[int]) -> tuple[int, ...]:
    """`shape`, which fits `dims`, as `reshape` has it: its -1 take the sizes of those of `dims`, in order."""
    variable = iter([size for size, dim in zip(shape, dims, strict=True) if dim == -1])
    return tuple(next(variable) if dim == -1 else dim for dim in reshape)


def client_dims(signature: Signature, output: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape clients see of an output: its `reshape` is undone. Raises InternalError where it does not fit."""
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
        # Fields that ModelInput has and ModelOutput has not, and the other way round.
        optional=tensor.get("optional", False),
        ragged=tensor.get("allow_ragged_batch", False),
        label_filename=tensor.get("label_filename", ""),
    )
