"""What a step of an ensemble costs the batcher of a whole server: python -m bench.ensemble_served

Three models, Python, ONNX and Python, in a row and all at once, under wrk with 1 and with 16 connections; beside them
the same models asked one by one. Prints the batcher's own user instructions (where perf counts) and its CPU time, per
request; by step; and by step what is left of that when a request of its own to each model is subtracted.
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench import instructions, measure
from bench.bls import wait
from bench.errors import BenchmarkError
from bench.load import Target, Wrk
from bench.repository import config_pbtxt
from bench.server import free_ports
from bench.workloads import DIGITS, Model, v2_request

SECONDS = 4
PYTHON = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
FIRST = Model("first", ("X",), (64,), ("Y",), (64,), 32)
LAST = Model("last", ("X",), (10,), ("Y",), (10,), 32)
CHAIN = replace(FIRST, name="chain", output_dims=(10,))
FAN = replace(CHAIN, name="fan", output_names=("a", "b", "c"))
#: Model, its input and the tensor that it reads, its output and the tensor that it writes.
STEPS = {
    "chain": (
        ("first", "X", "X", "Y", "a"),
        ("digits", "image", "a", "probabilities", "b"),
        ("last", "X", "b", "Y", "Y"),
    ),
    "fan": (
        ("first", "X", "X", "Y", "a"),
        ("digits", "image", "X", "probabilities", "b"),
        ("first", "X", "X", "Y", "c"),
    ),
}
FAN_DIMS = {"a": 64, "b": 10, "c": 64}
MODELS = {model.name: model for model in (FIRST, DIGITS, LAST, CHAIN, FAN)}


def write(root: Path) -> None:
    """The repository."""
    for model in (FIRST, LAST, DIGITS):
        version = root / model.name / "1"
        version.mkdir(parents=True)
        if model.file is not None:
            (version / "model.onnx").symlink_to(model.file)
        else:
            (version / "model.py").write_text(PYTHON)
        config = config_pbtxt(model, "python" if model.file is None else "onnxruntime")
        (root / model.name / "config.pbtxt").write_text(config)
    for name, steps in STEPS.items():
        (root / name / "1").mkdir(parents=True)
        shown = "".join(
            f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "{read}" value: "{reads}" }} '
            f'output_map {{ key: "{written}" value: "{writes}" }} }}\n'
            for model, read, reads, written, writes in steps
        )
        outputs = "".join(
            f'output {{ name: "{output}" data_type: TYPE_FP32 dims: [{FAN_DIMS.get(output, 10)}] }}\n'
            for output in MODELS[name].output_names
        )
        (root / name / "config.pbtxt").write_text(
            f'platform: "ensemble"\nmax_batch_size: 32\ninput {{ name: "X" data_type: TYPE_FP32 dims: [64] }}\n'
            f"{outputs}ensemble_scheduling {{ {shown} }}\n"
        )


class Costs:
    """What requests cost the batcher of one server."""

    def __init__(self, folder: Path, pid: int, port: int) -> None:
        self._folder, self._pid, self._port = folder, pid, port
        self._perf = instructions.find_perf()
        self._wrk = Wrk()

    def of(self, model: Model, num_connections: int) -> tuple[float, float]:
        """Thousands of instructions (0 where nobody counts), and microseconds, by request."""
        request, body = v2_request(model, "binary"), self._folder / "body"
        body.write_bytes(request.body)
        target = Target(self._port, request, body, num_connections)
        self._wrk.shoot(target, 1)
        counter = None if self._perf is None else instructions.Counter(self._perf, self._folder, self._pid)
        before = self._ticks()
        load = self._wrk.shoot(target, SECONDS, prefix=() if counter is None else counter.prefix)
        if load.errors:
            raise BenchmarkError(f"{load.errors} errors from {model.name}")
        cpu_us = 1e6 * (self._ticks() - before) / measure.TICKS_PER_S / load.requests
        counted = 0.0 if counter is None else counter.per_request(load.requests)["batcher"]
        return counted / 1000, cpu_us

    def _ticks(self) -> int:
        stats = measure.process_tree(self._pid)
        return sum([each.ticks for each in stats if instructions.role(instructions.title(each.pid)) == "batcher"])


def main() -> None:
    """Start a server, measure, print."""
    with tempfile.TemporaryDirectory() as name:
        root, (port,) = Path(name), free_ports(1)
        write(root / "models")
        command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "serve"]
        command += [f"--model-repository={root / 'models'}", f"--http-port={port}", "--metrics-port=0"]
        server = subprocess.Popen([*command, "--allow-grpc=false"], stdout=subprocess.DEVNULL)
        try:
            wait(port)
            costs = Costs(root, server.pid, port)
            for num_connections in (1, 16):
                alone = {model.name: costs.of(model, num_connections) for model in (FIRST, DIGITS, LAST)}
                for each, cost in alone.items():
                    print(f"{each:8} c={num_connections:<3} {cost[0]:8.1f}k instructions {cost[1]:7.1f} µs")
                for each, steps in STEPS.items():
                    cost = costs.of(MODELS[each], num_connections)
                    own = [sum([alone[step[0]][figure] for step in steps]) for figure in (0, 1)]
                    num = len(steps)
                    print(
                        f"{each:8} c={num_connections:<3} {cost[0]:8.1f}k instructions {cost[1]:7.1f} µs, by step "
                        f"{cost[0] / num:6.1f}k {cost[1] / num:6.1f} µs, beyond requests of their own "
                        f"{(cost[0] - own[0]) / num:6.1f}k {(cost[1] - own[1]) / num:6.1f} µs"
                    )
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.ensemble_served: {error}")
