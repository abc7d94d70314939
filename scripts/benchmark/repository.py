"""Model repositories for the servers that read one: the same config.pbtxt for Shoal and Triton but for its backend."""

from pathlib import Path

from scripts.benchmark.workloads import MLP, MLP_512, MLP_THREADS, Model

TRITON_MODEL = Path(__file__).parent / "served" / "triton_model.py"


def config_pbtxt(model: Model, backend: str) -> str:
    """The configuration: one instance on the CPU, batching without delay where the model can be batched."""
    parts = [
        f'name: "{model.name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {model.max_batch_size}",
        f'input [ {{ name: "{model.input_name}" data_type: TYPE_FP32 dims: {list(model.dims)} }} ]',
        f'output [ {{ name: "{model.output_name}" data_type: TYPE_FP32 dims: {list(model.output_dims)} }} ]',
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
    ]
    if model.max_batch_size:
        parts.append("dynamic_batching { }")
    if backend == "onnxruntime":
        threads = f'{{ string_value: "{MLP_THREADS}" }}'
        parts.append(f'parameters {{ key: "intra_op_thread_count" value: {threads} }}')
    return "\n".join(parts) + "\n"


def write_for_shoal(folder: Path, model: Model) -> Path:
    """A repository with this model; the folder of it."""
    backend = "onnxruntime" if model is MLP_512 else "identity"
    return _write(folder / "shoal" / model.name, model, backend, {"model.onnx": MLP} if model is MLP_512 else {})


def write_for_triton(folder: Path, model: Model) -> Path:
    """The same in Triton's Python backend."""
    return _write(folder / "triton" / model.name, model, "python", {"model.py": TRITON_MODEL})


def _write(repository: Path, model: Model, backend: str, links: dict[str, Path]) -> Path:
    version = repository / model.name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(config_pbtxt(model, backend))
    for name, target in links.items():
        (version / name).unlink(missing_ok=True)
        (version / name).symlink_to(target)
    return repository
