"""Rows of ONNX Runtime and of TensorRT engines, where their packages for GPUs are."""

import importlib.util
from pathlib import Path

import numpy as np

from scripts.gpu_check.finding import Finding, MissingError, Setup, right_if
from scripts.gpu_check.measure import MOST, TOLERANCE, Array, Call, beside_bare, served, worst_error, write_model

WIDTHS = (1024, 4096, 1000)
CONFIG = """platform: "%s" max_batch_size: %d dynamic_batching { }
input { name: "X" data_type: TYPE_FP32 dims: %d } output { name: "Y" data_type: TYPE_FP32 dims: %d }
instance_group { %s } %s"""
ON_TENSORRT = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'


def cuda(setup: Setup) -> Finding:
    """The row of an ONNX model on the CUDA provider."""
    return onnx_row(setup, "CPUExecutionProvider" if setup.on_cpu else "CUDAExecutionProvider", "")


def onnx_tensorrt(setup: Setup) -> Finding:
    """The row of an ONNX model on the TensorRT provider."""
    return onnx_row(setup, "TensorrtExecutionProvider", ON_TENSORRT)


def tensorrt(setup: Setup) -> Finding:
    """The row of a TensorRT engine that is built here from an ONNX file."""
    if setup.on_cpu or importlib.util.find_spec("tensorrt") is None:
        raise MissingError("it needs the package tensorrt and a GPU")
    from shoal.workers.backends.tensorrt.build import Order, build

    file = write_onnx(setup.directory / "model.onnx")
    repository = setup.directory / "repository"
    config = CONFIG % ("tensorrt_plan", MOST, WIDTHS[0], WIDTHS[2], setup.group, "")
    version = write_model(repository, "network", config)
    order = Order(file, {}, MOST, fp16=False, workspace_mib=0)
    build(order, version / "model.plan", setup.directory / "engines", print)
    return compare(setup, repository, bare_call(file, "CPUExecutionProvider"), "bare is ONNX Runtime's CPU")


def onnx_row(setup: Setup, provider: str, more: str) -> Finding:
    """Answers and figures of a provider beside those of a session without a server."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise MissingError(f"this onnxruntime {onnxruntime.__version__} has only {', '.join(available)}")
    file = write_onnx(setup.directory / "model.onnx")
    repository = setup.directory / "repository"
    config = CONFIG % ("onnxruntime_onnx", MOST, WIDTHS[0], WIDTHS[2], setup.group, more)
    (write_model(repository, "network", config) / "model.onnx").write_bytes(file.read_bytes())
    return compare(setup, repository, bare_call(file, provider), provider)


def compare(setup: Setup, repository: Path, bare: Call, what: str) -> Finding:
    """Answers and figures of the served model beside those of a bare session."""
    expected = bare_call(setup.directory / "model.onnx", "CPUExecutionProvider")
    with served(repository) as (_, client):

        def through(array: Array) -> Array:
            answer: Array = client.infer("network", {"X": array})["Y"]
            return answer

        error = worst_error(through, expected, sample)
        figures = beside_bare(bare, through, sample, setup.seconds)
    return right_if(error <= TOLERANCE, f"{what}; error {error:.1e}; {figures}")


def bare_call(file: Path, provider: str) -> Call:
    """A session of ONNX Runtime, used as in its own examples."""
    import onnxruntime

    if provider != "CPUExecutionProvider" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(str(file), providers=[provider], enable_fallback=0)

    def call(array: Array) -> Array:
        (answer,) = session.run(["Y"], {"X": array})
        found: Array = answer
        return found

    return call


def sample(rows: int) -> Array:
    """An input of that many rows, equal in every call."""
    return np.random.default_rng(rows).standard_normal((rows, WIDTHS[0])).astype(np.float32)


def write_onnx(path: Path) -> Path:
    """Write X [-1, 1024] → relu → Y [-1, 1000], with equal weights every time; returns the path."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    first, second = (
        (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in (WIDTHS[:2], WIDTHS[1:])
    )
    nodes = [
        helper.make_node("MatMul", ["X", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["Y"]),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("X", WIDTHS[0]), ("Y", WIDTHS[2]))
    ]
    weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    graph = helper.make_graph(nodes, "network", tensors[:1], tensors[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
