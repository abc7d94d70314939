"""Model repositories for the servers that read one: the same config.pbtxt for Shoal and Triton but for its backend."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.benchmark.workloads import MLP_THREADS, Model

TRITON_MODEL = Path(__file__).parent / "served" / "triton_model.py"


def config_pbtxt(model: Model, backend: str, num_instances: int = 1) -> str:
    """The configuration: instances on the CPU, batching without delay where the model can be batched."""
    parts = [
        f'name: "{model.name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {model.max_batch_size}",
        *(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: {list(model.dims)} }}' for name in model.input_names),
        *(
            f'output {{ name: "{name}" data_type: TYPE_FP32 dims: {list(model.output_dims)} }}'
            for name in model.output_names
        ),
        f"instance_group [ {{ count: {num_instances} kind: KIND_CPU }} ]",
    ]
    if model.max_batch_size:
        parts.append("dynamic_batching { }")
    if backend == "onnxruntime":
        threads = f'{{ string_value: "{MLP_THREADS}" }}'
        parts.append(f'parameters {{ key: "intra_op_thread_count" value: {threads} }}')
    return "\n".join(parts) + "\n"


def write_for_shoal(folder: Path, model: Model, others: Sequence[Model] = (), num_instances: int = 1) -> Path:
    """A repository with this model and `others` beside it, each with so many instances; the folder of it."""
    repository = folder / "-".join(["shoal", model.name, str(len(others)), str(num_instances)])
    for each in (model, *others):
        backend = "python" if each.is_python else "onnxruntime" if each.file else "identity"
        links = {f"model{each.file.suffix}": each.file} if each.file else {}
        _write(repository, each, config_pbtxt(each, backend, num_instances), links)
    return repository


def write_for_triton(folder: Path, model: Model) -> Path:
    """The same in Triton's Python backend."""
    file = model.file if model.file and model.is_python else TRITON_MODEL
    return _write(folder / "triton" / model.name, model, config_pbtxt(model, "python"), {"model.py": file})


def _write(repository: Path, model: Model, config: str, links: Mapping[str, Path]) -> Path:
    version = repository / model.name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(config)
    for name, target in links.items():
        (version / name).unlink(missing_ok=True)
        (version / name).symlink_to(target)
    return repository
