"""Refusals of configurations that ONNX Runtime cannot serve. Pure. Runs in a worker, while it loads."""

from collections.abc import Collection, Iterable

from shoal.errors import UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor
from shoal.model_config.messages import Config
from shoal.workers.backends.backend import BackendModel


def refuse_bf16(config: Config) -> None:
    """Raise UnsupportedError for a configuration with BF16 and strings."""
    # BF16 has no numpy form, so such a model is run on addresses, and a string has none that could be shared.
    data_types = {tensor["data_type"] for tensor in (*config["input"], *config["output"])}
    if {"TYPE_BF16", "TYPE_STRING"} <= data_types:
        raise UnsupportedError(f"model '{config['name']}': TYPE_BF16 is not supported together with TYPE_STRING")


def refuse_maps(model: str, config: Config, outputs: Iterable[IOTensor]) -> None:
    """Raise UnsupportedError for an output that the configuration has, or would be given, and that is no tensor.

    `outputs` are the file's; one that is a list of maps has ONNX Runtime's name for that in place of a data type.
    """
    wanted = {output["name"] for output in config["output"]}
    for output in outputs:
        if output.data_type.startswith("seq(") and (not wanted or output.name in wanted):
            is_zipmap = output.data_type.startswith("seq(map(")
            advice = (
                "It is a list of maps, as skl2onnx makes them of a classifier's probabilities; convert the model with "
                f"options={{'zipmap': False}}, or name only other outputs in the configuration of model '{model}'"
            )
            raise UnsupportedError(
                f"Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O '{output.name}', expected 'ONNX_TYPE_TENSOR'."
                + f" {advice}" * is_zipmap
            )


def check_providers(model: BackendModel, wanted: Collection[tuple[str, object]], got: Collection[str]) -> None:
    """Raise UnavailableError if a provider could not be set up: ONNX Runtime goes on without it, on the CPU."""
    missing = [name for name, _ in wanted if name not in got]
    if missing:
        raise UnavailableError(
            f"model '{model.name}', instance '{model.instance_name}': {', '.join(missing)} could not be set up, the "
            "lines of ONNX Runtime before this one say why (most often libraries of CUDA or cuDNN are missing or of "
            "another version: pip install 'onnxruntime-gpu[cuda,cudnn]'). KIND_CPU does without"
        )
