"""What only a GPU can show: right answers, where instances run, what a server costs (run through scripts/gpu-check).

A model of 4096 hidden units is served by ONNX Runtime and by TensorRT on the first GPU, and asked with requests of 1, 8
and 32 rows; the same is run in this process without a server. A Python model says which GPU and cores it was given.
With --on-cpu ONNX Runtime does it all on the CPU: that tries this script, and no GPU.
"""

import argparse
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
import tritonclient.http as triton
from onnx import TensorProto, helper, numpy_helper

from shoal.options import ServerOptions
from shoal.placement import Gpu
from shoal.supervisor.machine import find_machine, server_cores
from shoal.workers.tensors import Array
from tests.end_to_end.server import Server, serving

NO_GPU = 2
BATCHES = (1, 8, 32)
MOST, CLIENTS = 32, 4
WIDTHS = (1024, 4096, 1000)
#: Of answers of about 1: TensorRT computes FP32 in TF32 where the GPU can.
TOLERANCE = 1e-2
DEVICES_CODE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        said = f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {sorted(os.sched_getaffinity(0))}"
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([said], object))]) for _ in requests]
"""
DEVICES_CONFIG = """backend: "python" input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "SAID" data_type: TYPE_STRING dims: 1 } instance_group { kind: KIND_%s gpus: %s }"""
MODEL_CONFIG = """platform: "%s" max_batch_size: %d input { name: "X" data_type: TYPE_FP32 dims: %d }
output { name: "Y" data_type: TYPE_FP32 dims: %d } instance_group { kind: KIND_%s gpus: %s count: 1 }"""

Run = Callable[[Array], Array]


class Row(NamedTuple):
    """One framework at one batch size."""

    framework: str
    batch: int
    error: float  # the largest difference from ONNX Runtime on the CPU
    copies: str
    bare_rows_s: float
    shoal_rows_s: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As they are printed."""
        verdict = "right" if self.error <= TOLERANCE else "WRONG"
        ratio = f"{self.shoal_rows_s / self.bare_rows_s:.0%}"
        rates = f"{self.bare_rows_s:,.0f}", f"{self.shoal_rows_s:,.0f}"
        return self.framework, str(self.batch), f"{verdict} ({self.error:.1e})", self.copies, *rates, ratio


HEADINGS = (
    "framework",
    "rows",
    "answers",
    "host copies of an input, by design",
    "bare rows/s",
    "Shoal rows/s",
    "ratio",
)


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 where all is right, 1 where something is not, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--on-cpu", action="store_true", help="try this script where there is no GPU")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: 5)")
    given = parser.parse_args(argv)
    machine = find_machine(ServerOptions(), os.environ, server_cores())
    if not machine.gpus and not given.on_cpu:
        print("There is no GPU here that NVIDIA's driver tells of. Nothing has been checked.", file=sys.stderr)
        return NO_GPU
    print(f"{machine.gpus[0] if not given.on_cpu else 'on the CPU'}; cores {len(machine.cores)}")
    with TemporaryDirectory() as directory:
        return check(Path(directory), None if given.on_cpu else machine.gpus[0], given.seconds)


def check(directory: Path, gpu: Gpu | None, seconds: float) -> int:
    """Everything, on this GPU or on the CPU; the exit code."""
    onnx_file = directory / "model.onnx"
    make_model(onnx_file)
    expect = onnxruntime_run(onnx_file, "CPUExecutionProvider")
    frameworks = ("onnxruntime", "tensorrt") if gpu else ("onnxruntime",)
    with seeing_only(gpu):  # not the server, to which it would be number 0
        repository = make_repository(directory / "repository", onnx_file, frameworks, gpu)
    rows: list[Row] = []
    with serving(repository) as server:
        said = ask_devices(server)
        for framework in frameworks:
            served = {batch: served_rows_s(server, framework, batch, seconds) for batch in BATCHES}
            errors = {batch: worst_error(server, framework, batch, expect) for batch in BATCHES}
            file = repository / framework / "1" / ("model.plan" if framework == "tensorrt" else "model.onnx")
            with triton.InferenceServerClient(server.url) as client, seeing_only(gpu):
                bare = bare_run(framework, file, client.get_model_config(framework), on_cpu=gpu is None)
            for batch in BATCHES:
                bare_rows_s = rate(functools.partial(bare, sample(batch)), seconds) * batch
                rows.append(Row(framework, batch, errors[batch], copies(gpu is None), bare_rows_s, served[batch]))
        server.stop()  # its workers' ends are in its log
    print_table(rows)
    is_placed = gpu is None or is_beside(said, gpu)
    verdict = "right" if is_placed else "WRONG"
    print(f"\na Python model's CUDA_VISIBLE_DEVICES and cores are {said}: {verdict}")
    returned = re.findall(r"worker \S+ has returned \d+ MiB on GPU .*", server.log.decode())
    print("\n".join(returned) or "no worker's end has returned memory of a GPU")
    is_right = is_placed and (gpu is None or bool(returned)) and all(row.error <= TOLERANCE for row in rows)
    return 0 if is_right else 1


@contextmanager
def seeing_only(gpu: Gpu | None) -> Iterator[None]:
    """CUDA, which reads this when this process first uses it, has this GPU alone, as device 0; None: as it is."""
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    if gpu is not None:
        os.environ[name] = gpu.uuid
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def make_model(path: Path) -> None:
    """X [-1, 1024] → relu → Y [-1, 1000]; the same weights every time."""
    generator = np.random.default_rng(0)
    first, second = (
        (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in (WIDTHS[:2], WIDTHS[1:])
    )
    nodes = [
        helper.make_node("MatMul", ["X", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["Y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["rows", WIDTHS[0]])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["rows", WIDTHS[2]])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def make_repository(path: Path, onnx_file: Path, frameworks: Sequence[str], gpu: Gpu | None) -> Path:
    """One model per framework, and `devices`."""
    kind, gpus = ("CPU", "[]") if gpu is None else ("GPU", f"[{gpu.id}]")
    for name in (*frameworks, "devices"):
        (path / name / "1").mkdir(parents=True)
    (path / "devices" / "1" / "model.py").write_text(DEVICES_CODE)
    (path / "devices" / "config.pbtxt").write_text(DEVICES_CONFIG % (kind, gpus))
    (path / "onnxruntime" / "1" / "model.onnx").write_bytes(onnx_file.read_bytes())
    if "tensorrt" in frameworks:
        from shoal.workers.backends.tensorrt.build import Order, build

        order = Order(onnx_file, {}, MOST, fp16=False, workspace_mib=0)
        build(order, path / "tensorrt" / "1" / "model.plan", path.parent / "engines", print)
    platforms = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}
    for name in frameworks:
        text = MODEL_CONFIG % (platforms[name], MOST, WIDTHS[0], WIDTHS[2], kind, gpus)
        (path / name / "config.pbtxt").write_text(text)
    return path


# -- bare frameworks --------------------------------------------------------------------------------------------------


def bare_run(framework: str, file: Path, config: Any, *, on_cpu: bool) -> Run:
    """The framework without a server, in this process: device 0 is its default."""
    if framework == "onnxruntime":
        return onnxruntime_run(file, "CPUExecutionProvider" if on_cpu else "CUDAExecutionProvider")
    from shoal.workers.backends.backend import BackendModel, Device
    from shoal.workers.backends.tensorrt.backend import TensorrtBackend

    # TensorRT has no call of its own that takes an array: our backend's, then, with nothing around it.
    backend = TensorrtBackend()
    model = BackendModel(
        framework, 1, f"{framework}_0_0", str(file.parent), str(file), {"model_warmup": [], **config}, {}
    )
    backend.load(model, Device("KIND_GPU", 0, (0,)))
    return lambda array: backend.run({"X": array})["Y"]


def onnxruntime_run(file: Path, provider: str) -> Run:
    """A session, asked as its own examples do."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(str(file), providers=[provider], enable_fallback=0)

    def run(array: Array) -> Array:
        (outputs,) = session.run(["Y"], {"X": array})
        answer: Array = outputs
        return answer

    return run


# -- the server -------------------------------------------------------------------------------------------------------


def sample(rows: int) -> Array:
    """An input of that many rows, the same in every call."""
    return np.random.default_rng(rows).standard_normal((rows, WIDTHS[0])).astype(np.float32)


def ask(client: Any, model: str, array: Array) -> Array:
    """One request, in binary."""
    tensor = triton.InferInput("X", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    answer: Array = client.infer(model, [tensor]).as_numpy("SAID" if model == "devices" else "Y")
    return answer


def ask_devices(server: Server) -> str:
    """What the Python model says of its process."""
    with triton.InferenceServerClient(server.url) as client:
        said: bytes = ask(client, "devices", np.zeros(1, np.float32)).item()
        return said.decode()


def is_beside(said: str, gpu: Gpu) -> bool:
    """Whether an instance on this GPU sees that alone, from cores beside it."""
    uuid, _, cores = said.partition(" ")
    return uuid == gpu.uuid and {int(core) for core in cores.strip("[]").split(",")} <= set(gpu.cores)


def worst_error(server: Server, model: str, batch: int, expect: Run) -> float:
    """The largest difference of an answer."""
    array = sample(batch)
    with triton.InferenceServerClient(server.url) as client:
        return float(np.abs(ask(client, model, array) - expect(array)).max())


def served_rows_s(server: Server, model: str, batch: int, seconds: float) -> float:
    """Rows a second through the server, from clients that each wait for their answer."""
    array = sample(batch)

    def load(_number: int) -> float:
        with triton.InferenceServerClient(server.url) as client:
            return rate(lambda: ask(client, model, array), seconds)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(load, range(CLIENTS))) * batch


def rate(call: Callable[[], object], seconds: float) -> float:
    """Calls a second, after one that does not count."""
    call()
    start_s, count = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - start_s) < seconds:
        call()
        count += 1
    return count / elapsed_s


def copies(on_cpu: bool) -> str:
    """Copies of a request that is alone in its batch, after the socket; with cuda-python, which its extras bring."""
    return "0 (a view)" if on_cpu else "1 (page-locked, read by the GPU)"


def print_table(rows: Sequence[Row]) -> None:
    """In Markdown, for docs/gpu.md."""

    def lines() -> Iterator[Sequence[str]]:
        yield HEADINGS
        yield ["---"] * len(HEADINGS)
        yield from (row.cells for row in rows)

    for cells in lines():
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
