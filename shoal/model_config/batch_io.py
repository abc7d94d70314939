"""Checks of batch_input and batch_output: tensors that the backend makes from a batch, or splits by one. Part of
`checks`. Pure.

Generators of sentences, in Triton's words where Triton has any.
"""

from collections.abc import Iterator

from shoal.model_config.messages import Config


def faults(config: Config) -> Iterator[str]:
    """Errors in the batch_input and batch_output of a completed configuration."""
    inputs = {tensor["name"]: tensor for tensor in config["input"]}
    outputs = {tensor["name"]: tensor for tensor in config["output"]}
    for made in config["batch_input"]:
        yield from _sources(made, "batch input", inputs)
        if made["data_type"] not in ("TYPE_INT32", "TYPE_FP32"):
            yield "batch input data type must be TYPE_INT32 or TYPE_FP32"
        for name in made["target_name"]:
            if name in inputs:  # Shoal's own check; Triton fails when it runs the model
                yield f"target input name '{name}' of a batch input is an input of clients, too, for {config['name']}"
    scattered: set[str] = set()
    for made in config["batch_output"]:
        yield from _sources(made, "batch output", inputs)
        for name in made["target_name"]:
            if name not in outputs:
                yield f"unknown target output name '{name}'"
            if name in scattered:
                yield f"target output name '{name}' can only be specified once"
            scattered.add(name)
            (source,) = made["source_input"]
            if len(outputs[name]["dims"]) > len(inputs[source]["dims"]):  # Triton would read beyond
                yield f"target output '{name}' has more dims than source input '{source}' for {config['name']}"


def _sources(made: Config, what: str, inputs: dict[str, Config]) -> Iterator[str]:
    sources = made["source_input"]
    if len(sources) != 1:
        yield f"{what} kind '{made['kind']}' expects 1 source input, got {len(sources)}"
    for source in sources:
        if source not in inputs:
            yield f"unknown source input name '{source}'"
        if inputs[source]["optional"]:  # Shoal's own check
            yield f"source input '{source}' of a {what} cannot be optional"
