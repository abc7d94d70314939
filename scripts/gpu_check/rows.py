"""The rows of the check: the most telling first. Their modules are imported by the process that runs one."""

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the table."""

    name: str
    title: str
    function: str  # "module:function", in this package
    limit_s: float


ROWS = (
    Row("machine", "the machine", "machine:machine", 75),
    Row("torchscript", "PyTorch: TorchScript", "pytorch:torchscript", 90),
    Row("export", "PyTorch: .pt2 of torch.export", "pytorch:export", 90),
    Row("python", "Python model with CUDA tensors, and its place", "devices:cuda_tensors", 75),
    Row("out-of-memory", "a batch without room is split", "devices:out_of_memory", 75),
    Row("lost", "illegal address: exit 70, another instance answers", "devices:lost", 90),
    Row("returned", "memory returned by an unload", "devices:memory_returned", 75),
    Row("metrics", "figures of the GPU in /metrics", "devices:metrics", 75),
    Row("instances", "1, 2 and 4 instances on one GPU", "pytorch:instances", 120),
    Row("threads", "2 and 4 instances on one GPU, threads of one process", "pytorch:instances_as_threads", 120),
    Row("mps", "2 and 4 instances on one GPU with --cuda-mps", "pytorch:instances_with_mps", 120),
    Row("cuda-shm", "CUDA shared memory of clients", "devices:cuda_shared_memory", 75),
    Row("between-models", "tensors stay on the GPU between models", "between_models:tensors_stay", 120),
    Row("aotinductor", "PyTorch: AOTInductor", "pytorch:aotinductor", 150),
    Row("onnx-cuda", "ONNX Runtime, CUDA", "onnx_models:cuda", 90),
    Row("onnx-tensorrt", "ONNX Runtime, TensorRT", "onnx_models:onnx_tensorrt", 150),
    Row("tensorrt", "TensorRT engine", "onnx_models:tensorrt", 150),
)
