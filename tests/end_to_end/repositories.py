"""Model repositories that tests write."""

from pathlib import Path


def add_model(repository: Path, name: str, config: str, code: str = "") -> Path:
    """A model of one version, with a `model.py` where there is code; the version's directory."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if code:
        (directory / "model.py").write_text(code)
    return directory


def config_text(
    backend: str, inputs: str, outputs: str, *fields: str, rows: int = 0, count: int = 0, **parameters: object
) -> str:
    """A config.pbtxt: of tensors such as "A INT32 4, B FP32 -1 16", for executions of at most `rows`, by `count`
    instances on CPUs (0: as many as is the default), with other `fields` as they stand there."""
    named = (("input", inputs), ("output", outputs))
    tensors = [(kind, *tensor.split()) for kind, text in named for tensor in text.split(", ")]
    lines = [f'backend: "{backend}"', *fields]
    for kind, name, datatype, *dims in tensors:
        lines.append(f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {", ".join(dims)} ] }}')
    for key, value in parameters.items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    if rows:
        lines.append(f"max_batch_size: {rows}")
    if count:
        lines.append(f"instance_group {{ count: {count} kind: KIND_CPU }}")
    return "\n".join([*lines, ""])


def python_model(methods: str) -> str:
    """A model.py whose model has these methods, each indented as in a class."""
    imports = ("os", "signal", "threading", "time", "numpy as np", "triton_python_backend_utils as pb_utils")
    return "\n".join([*(f"import {each}" for each in imports), f"class TritonPythonModel:{methods}"])
