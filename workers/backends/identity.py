"""Triton's identity backend: the n-th output is the n-th input. For tests, benchmarks and examples; needs no file."""

import time

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.backend import BatchedBackend, Device, Model
from shoal.workers.tensors import Array


class IdentityBackend(BatchedBackend):
    """Copies; where the configuration says so, takes its time like a slow model would."""

    def __init__(self) -> None:
        # Changed by load.
        self._pairs: tuple[tuple[str, str], ...] = ()  # names of an input and its output
        self._delay_s = 0.0

    def describe(self, model: Model, device: Device) -> ModelIO:
        """Nothing: only the configuration knows."""
        del model, device
        return ModelIO((), ())

    def load(self, model: Model, device: Device) -> None:
        """Pair inputs with outputs. Raises InvalidArgumentError where the pairs do not match."""
        del device
        signature = Signature.from_config(model.config)
        inputs, outputs = list(signature.inputs.values()), list(signature.outputs.values())
        if len(inputs) != len(outputs):
            raise InvalidArgumentError(
                f"model '{model.name}': the identity backend expects as many outputs as inputs, got {len(inputs)} "
                f"inputs and {len(outputs)} outputs"
            )
        for source, target in zip(inputs, outputs, strict=True):
            if source.ragged:
                raise InvalidArgumentError(
                    f"model '{model.name}', input '{source.name}': the identity backend joins rows, it cannot take "
                    "'allow_ragged_batch'"
                )
            if source.datatype is not target.datatype:
                raise InvalidArgumentError(
                    f"expected input and output datatype to match, got {source.datatype.config_name} and "
                    f"{target.datatype.config_name}"
                )
        self._pairs = tuple(zip(signature.inputs, signature.outputs, strict=True))
        self._delay_s = _delay_s(model)

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The inputs under the outputs' names; the copy is the one into the block."""
        if self._delay_s:
            time.sleep(self._delay_s)
        outputs: dict[str, Array] = {}
        for source, target in self._pairs:
            if source in inputs:
                outputs[target] = inputs[source]
        return outputs

    def unload(self) -> None:
        """There is nothing to let go."""


def _delay_s(model: Model) -> float:
    delay_ms = _whole_number(model, "execute_delay_ms")
    multiplier = _whole_number(model, "instance_wise_delay_multiplier")
    # The first instance takes execute_delay_ms, the n-th after it n × multiplier times that.
    index = model.instance_name.rpartition("_")[2]
    return delay_ms / 1000 * max(1, multiplier * (int(index) if index.isdecimal() else 0))


def _whole_number(model: Model, key: str) -> int:
    value = model.parameter(key) or "0"
    if not value.isdecimal():
        raise InvalidArgumentError(f"model '{model.name}': parameter '{key}' must be a whole number, got '{value}'")
    return int(value)
