"""The text of a config.pbtxt that names a backend, the largest batch, inputs and outputs. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def as_pbtxt(config: Mapping[str, Any]) -> str:
    """The text of a configuration, in which `default_model_filename` may be missing; batching is dynamic."""
    lines = [f'backend: "{config["backend"]}"']
    if filename := config.get("default_model_filename"):
        lines.append(f'default_model_filename: "{quoted(filename)}"')
    lines.append(f"max_batch_size: {config['max_batch_size']}")
    for role in ("input", "output"):
        for tensor in config[role]:
            fields = [
                f'name: "{quoted(tensor["name"])}"',
                f"data_type: {tensor['data_type']}",
                f"dims: {_list(tensor['dims'])}",
            ]
            fields += [f"reshape {{ shape: {_list(tensor['reshape']['shape'])} }}"] if "reshape" in tensor else []
            lines.append(f"{role} {{ {' '.join(fields)} }}")
    lines += ["dynamic_batching { }"] if config["max_batch_size"] > 0 else []
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A text escaped as it must be between quotation marks in config.pbtxt."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _list(dims: Sequence[Any]) -> str:
    return f"[ {', '.join(map(str, dims))} ]" if dims else "[ ]"
