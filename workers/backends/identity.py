"""Triton's identity backend: OUTPUT<n> is INPUT<n>. For tests, benchmarks and examples; needs no file.

Tensors of other names, which Triton refuses, are paired by their order. The parameters of Triton's example of custom
tracing have no effect here, and its metric of bytes is not kept: it would cost 10k instructions per batch, a tenth of
the worker's.
"""

import logging
import time
from collections.abc import Sequence

import numpy as np

from shoal.datatypes import BYTES, format_shape
from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature, TensorSpec
from shoal.workers.answers import Answers
from shoal.workers.backends import parameters
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device, joinable
from shoal.workers.requests import Request
from shoal.workers.tensors import Array

_log = logging.getLogger(__name__)


class IdentityBackend(BatchedBackend):
    """A backend that copies its inputs, and can be configured to take as long as a slow model would."""

    def __init__(self) -> None:
        # Changed by load.
        self._pairs: tuple[tuple[TensorSpec, str], ...] = ()  # an input, and the name of its output
        self._ragged: frozenset[str] = frozenset()
        self._is_batched = self._has_optional = False
        # The rows of the batch, set by execute for run, whose arguments do not have them.
        self._rows = 1
        self._delay_s = 0.0

    def load(self, model: BackendModel, device: Device) -> None:
        """Pair inputs with outputs. Raises InvalidArgumentError if the pairs do not match."""
        del device
        signature = Signature.from_config(model.config)
        if len(signature.inputs) != len(signature.outputs):
            raise InvalidArgumentError(
                f"model configuration must have equal input/output pairs: model '{model.name}' has "
                f"{len(signature.inputs)} inputs and {len(signature.outputs)} outputs"
            )
        pairs = _pairs(signature)
        for source, target in pairs:
            _check_pair(source, target)
        self._pairs = tuple((source, target.name) for source, target in pairs)
        self._ragged = frozenset(source.name for source, _ in pairs if source.ragged)
        self._is_batched = signature.max_batch_size > 0
        self._has_optional = any(source.optional for source, _ in pairs)
        self._delay_s = _delay_s(model)
        creation_delay_s = parameters.whole_number(model, "creation_delay_sec")
        if creation_delay_s:
            _log.info("Creation delay is set to: %d", creation_delay_s)
            time.sleep(creation_delay_s)

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Copy inputs to outputs; the output of an optional input that is left out has the rows of the requests, all
        zeros."""
        if self._ragged:
            time.sleep(self._delay_s)
            for request in joinable(requests, answers, self._ragged):  # one by one: ragged inputs differ in shape
                self._rows = request.parsed.rows
                answers.add(request, self._copy(request.inputs))
            return
        if self._has_optional:
            self._rows = sum([request.parsed.rows for request in requests])
        BatchedBackend.execute(self, requests, answers)  # super() would take 1k instructions more

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The inputs under the outputs' names, not copied here but into the block; zeros for an input that is left
        out."""
        if self._delay_s:
            time.sleep(self._delay_s)
        return self._copy(inputs)

    def _copy(self, inputs: dict[str, Array]) -> dict[str, Array]:
        outputs: dict[str, Array] = {}
        for source, target in self._pairs:
            found = inputs.get(source.name)
            outputs[target] = self._zeros(source) if found is None else found
        return outputs

    def unload(self) -> None:
        """No effect: there is no model to release."""

    def of_another_thread(self) -> "IdentityBackend":
        return IdentityBackend()

    def _zeros(self, source: TensorSpec) -> Array:
        dims = source.model_dims
        shape = (*([self._rows] if self._is_batched else []), *(max(dim, 1) for dim in dims))
        if source.datatype is BYTES:
            return np.full(shape, b"", BYTES.dtype)
        return np.zeros(shape, source.datatype.dtype)


def _pairs(signature: Signature) -> list[tuple[TensorSpec, TensorSpec]]:
    """Each input with its output: by their numbers if all have one, else by their order."""
    numbered = {f"OUTPUT{name.removeprefix('INPUT')}": spec for name, spec in signature.inputs.items()}
    if numbered.keys() == signature.outputs.keys():
        return [(numbered[name], spec) for name, spec in signature.outputs.items()]
    return list(zip(signature.inputs.values(), signature.outputs.values(), strict=True))


def _check_pair(source: TensorSpec, target: TensorSpec) -> None:
    if source.datatype is not target.datatype:
        raise InvalidArgumentError(
            f"expected input and output datatype to match, got {source.datatype.config_name} and "
            f"{target.datatype.config_name}"
        )
    shapes = [spec.model_dims for spec in (source, target)]
    if shapes[0] != shapes[1]:
        raise InvalidArgumentError(
            f"expected input and output shape to match, got {format_shape(shapes[0])} and {format_shape(shapes[1])}"
        )


def _delay_s(model: BackendModel) -> float:
    delay_ms = parameters.whole_number(model, "execute_delay_ms")
    multiplier = parameters.whole_number(model, "instance_wise_delay_multiplier")
    # The first instance takes execute_delay_ms, the n-th after it n × multiplier times that.
    index = model.instance_name.rpartition("_")[2]
    return delay_ms / 1000 * max(1, multiplier * (int(index) if index.isdecimal() else 0))
