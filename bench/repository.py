"""Model repositories for the servers that read one: the same config.pbtxt for Shoal and Triton but for its backend."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.workloads import MLP_THREADS, TABLE_MODULO, BenchModel

TRITON_MODEL = Path(__file__).parent / "served" / "triton_model.py"
ONNX_MODEL = TRITON_MODEL.with_name("onnx_model.py")


def config_pbtxt(model: BenchModel, backend: str, num_instances: int = 1) -> str:
    """The configuration: instances on the CPU, batching without delay where the model can be batched."""
    parts = [
        f'name: "{model.name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {model.max_batch_size}",
        *(
            f'input {{ name: "{name}" data_type: TYPE_{model.datatype} dims: {list(model.dims)} }}'
            for name in model.input_names
        ),
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


def write_for_shoal(folder: Path, model: BenchModel, others: Sequence[BenchModel] = (), num_instances: int = 1) -> Path:
    """A repository with this model and `others` beside it, each with so many instances; the folder of it."""
    repository = folder / "-".join(["shoal", model.name, str(len(others)), str(num_instances)])
    for each in (model, *others):
        backend = "python" if each.is_python else "onnxruntime" if each.file else "identity"
        links = {f"model{each.file.suffix}": each.file} if each.file else {}
        if each.table_rows:
            backend, links = "embedding", {f"{each.output_names[0]}.npy": _table(folder, each)}
        _write(repository, each, config_pbtxt(each, backend, num_instances), links)
    return repository


def write_onnx_for_triton(folder: Path, models: Sequence[BenchModel]) -> Path:
    """Models with files in ONNX, in Triton's Python backend."""
    repository = folder / "triton-onnx"
    for each in models:
        assert each.file is not None
        _write(repository, each, config_pbtxt(each, "python"), {"model.py": ONNX_MODEL, "model.onnx": each.file})
    return repository


def write_for_triton(folder: Path, model: BenchModel) -> Path:
    """Write the model for Triton's Python backend."""
    file = model.file if model.file and model.is_python else TRITON_MODEL
    links = {"model.py": file}
    if model.table_rows:
        links["table.npy"] = _table(folder, model)
    return _write(folder / "triton" / model.name, model, config_pbtxt(model, "python"), links)


def _table(folder: Path, model: BenchModel) -> Path:
    """The model's table, written by the first caller."""
    file = folder / f"{model.name}.npy"
    if not file.exists():
        import numpy as np

        table = np.lib.format.open_memmap(file, "w+", np.float32, (model.table_rows, model.output_dims[-1]))
        numbers = table.reshape(-1)
        for start in range(0, len(numbers), TABLE_MODULO):
            numbers[start : start + TABLE_MODULO] = np.arange(min(TABLE_MODULO, len(numbers) - start))
    return file


def _write(repository: Path, model: BenchModel, config: str, links: Mapping[str, Path]) -> Path:
    version = repository / model.name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(config)
    for name, target in links.items():
        (version / name).unlink(missing_ok=True)
        (version / name).symlink_to(target)
    return repository
