"""What a BLS call costs beside the same step made by a client over shared memory: `python -m bench.bls`.

One model makes both, alternately, in one process: InferenceRequest.exec(), and a bare shoal.client that submits the
same arrays and waits. Prints microseconds of wall clock and of this process's CPU per step, and their ratios.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.server import free_ports

CONFIG = """
backend: "python"
input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]
"""
STEP = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
CALLER = """
import queue, time
import numpy as np
import triton_python_backend_utils as pb_utils
from shoal.star.outgoing import Ask, Input, check
from shoal.datatypes import FP32
from triton_python_backend_utils import runtime

ROUNDS, CALLS = 10, 300

class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy().copy()

        def call_model():
            request = pb_utils.InferenceRequest(
                model_name="step", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x)]
            )
            return pb_utils.get_output_tensor_by_name(request.exec(), "Y").as_numpy()

        def ask_as_client():
            waiter = queue.SimpleQueue()
            entry = client.models.lookup("step", None)
            outgoing = check(entry, Ask("", [Input("X", FP32, x.shape, x.view(np.uint8).data)], ("Y",), {}))
            client.submit(outgoing, lambda answer, _: waiter.put(answer), time.monotonic_ns() + 10**10)
            answer = waiter.get()
            (ref,) = answer.response.outputs
            return np.ndarray(ref.shape, np.float32, answer.block, ref.offset)

        call_model()
        client = runtime.current._join()
        spent = {call_model: [[], []], ask_as_client: [[], []]}
        for _ in range(ROUNDS):
            for step, (wall, cpu) in spent.items():
                start, start_cpu = time.perf_counter(), time.process_time()
                for _ in range(CALLS):
                    assert len(step()) == len(x)
                wall.append(time.perf_counter() - start)
                cpu.append(time.process_time() - start_cpu)
        best = [1e6 * min(times) / CALLS for each in spent.values() for times in each]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(best, np.float32))])]
"""


def measure(port: int, num_elements: int) -> list[float]:
    """Wall and CPU of a BLS call, wall and CPU of the client's step, in us."""
    tensor = {"name": "X", "shape": [num_elements], "datatype": "FP32", "data": [0.0] * num_elements}
    url = f"http://127.0.0.1:{port}/v2/models/caller/infer"
    request = urllib.request.Request(url, json.dumps({"inputs": [tensor]}).encode())
    with urllib.request.urlopen(request) as response:
        figures: list[float] = json.loads(response.read())["outputs"][0]["data"]
    return figures


def main() -> None:
    """Start a server, measure, print."""
    with tempfile.TemporaryDirectory() as root:
        for name, source in (("step", STEP), ("caller", CALLER)):
            directory = Path(root, name, "1")
            directory.mkdir(parents=True)
            (directory / "model.py").write_text(source)
            (directory.parent / "config.pbtxt").write_text(CONFIG)
        command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "serve"]
        (port,) = free_ports(1)
        command += [f"--model-repository={root}", f"--http-port={port}", "--metrics-port=0", "--allow-grpc=false"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait(port)
            print(
                f"{'floats':>10} {'BLS us':>10} {'client us':>10} {'ratio':>6} {'BLS cpu':>10} {'client cpu':>10} ratio"
            )
            for num_elements in (16, 4096, 262_144):
                wall, cpu, client_wall, client_cpu = measure(port, num_elements)
                print(
                    f"{num_elements:>10} {wall:>10.1f} {client_wall:>10.1f} {wall / client_wall:>6.2f} "
                    f"{cpu:>10.1f} {client_cpu:>10.1f} {cpu / client_cpu:.2f}"
                )
        finally:
            server.terminate()
            server.wait()


def wait(port: int) -> None:
    """Until the server is ready."""
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").close()
        except OSError:
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
