"""Checks of model_warmup's samples before a worker runs them: one rule of `checks`. Pure.

Triton finds these faults while it makes a sample's requests, which pass the checks of clients' requests; hence the
sentences. `workers/warmup.py` reads data files and finds out whether the model can run a sample.
"""

import math
from collections.abc import Iterator

from shoal.datatypes import BY_CONFIG_NAME, format_shape
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.model_config.sequences import with_sequence_tensors
from shoal.model_config.signature import Signature, TensorSpec
from shoal.shared_settings import MAX_OVERSIZE_BYTES

#: The fields for the data of an input, one of which is set.
ZERO_DATA, RANDOM_DATA, INPUT_DATA_FILE = "zero_data", "random_data", "input_data_file"
#: The beginning of Triton's sentence about a request without an id.
NO_ID = "[request id: <id_unknown>] "


#: The parameter that names a recording in the model's directory `warmup`, since Triton has none:
#: parameters { key: "warmup_recording" value { string_value: "busy-hour.shoalrec" } }
RECORDING = "warmup_recording"


def recording(config: Config) -> str | None:
    """The file of the recording whose batches are run; None without one."""
    return parameter(config, RECORDING)


def recording_faults(config: Config) -> Iterator[str]:
    """Check that the model's instances can run a recording's batches; where its file lies is checked in `checks`."""
    if recording(config) is None:
        return
    for field, what in (("ensemble_scheduling", "an ensemble"), ("sequence_batching", "a model of sequences")):
        if field in config:
            yield f"{RECORDING} can not be specified for '{config['name']}', which is {what}"


def samples(config: Config) -> list[Config]:
    """The samples that are run: Triton makes no request of one whose batch_size is 0."""
    return [sample for sample in config["model_warmup"] if sample["batch_size"] > 0]


def faults(config: Config) -> Iterator[str]:
    """Check the samples. The configuration's inputs have been checked before."""
    signature = Signature.from_config(with_sequence_tensors(config))  # as in Triton, which requires the control tensors
    for sample in samples(config):
        yield from _sample(sample, signature)


def _sample(sample: Config, signature: Signature) -> Iterator[str]:
    model, inputs = signature.name, sample["inputs"]
    for name, given in inputs.items():
        if -1 in given["dims"]:
            yield f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
    for name, given in inputs.items():
        if not given.keys() & {ZERO_DATA, RANDOM_DATA, INPUT_DATA_FILE}:
            yield f"{NO_ID}warmup setting expects input '{name}' to have input_data_type set"
    for name, given in inputs.items():
        spec = signature.inputs.get(name)
        if spec is None:
            yield f"unexpected inference input '{name}' for model '{model}'"
        else:
            yield from _input(given, spec, signature)
    missing = [spec.name for spec in signature.inputs.values() if not spec.optional and spec.name not in inputs]
    if missing:
        yield (
            f"{NO_ID}expected {len(signature.inputs)} inputs but got {len(inputs)} inputs for model '{model}'. "
            f"Got input(s) {_names(list(inputs))}, but missing required input(s) {_names(missing)}. "
            "Please provide all required input(s)."
        )


def _input(given: Config, spec: TensorSpec, signature: Signature) -> Iterator[str]:
    name, model, dims = spec.name, signature.name, tuple(given["dims"])
    datatype = BY_CONFIG_NAME.get(given["data_type"])
    if datatype is not spec.datatype:
        came = "<invalid>" if datatype is None else datatype.name
        yield (
            f"{NO_ID}inference input '{name}' data-type is '{came}', but model '{model}' expects '{spec.datatype.name}'"
        )
    if len(dims) != len(spec.dims) or any(
        dim < 0 or want not in (-1, dim) for dim, want in zip(dims, spec.dims, strict=True)
    ):
        # A sample's request has one row where the model has a batch dimension.
        expected, got = ((-1, *spec.dims), (1, *dims)) if signature.max_batch_size else (spec.dims, dims)
        yield (
            f"{NO_ID}unexpected shape for input '{name}' for model '{model}'. Expected {format_shape(expected)}, "
            f"got {format_shape(got)}. "
        )
    nbytes = math.prod(dims) * (spec.datatype.itemsize or 4)
    if nbytes > MAX_OVERSIZE_BYTES:
        yield (
            f"warmup sample's input '{name}' for model '{model}' takes {nbytes} bytes, more than the "
            f"{MAX_OVERSIZE_BYTES} that a request may have; give it smaller dims"
        )


def _names(names: list[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
