"""The row of tensors that stay on the GPU between two models: an ensemble, and a model that calls another."""

from typing import Any

import numpy as np

from scripts.gpu_check.finding import Finding, Setup, right_if
from scripts.gpu_check.measure import median_ms, served, write_model

MIB = 1 << 20
#: Bytes of the tensor that is timed, of each worker's pool, and of a tensor for which a pool has no room.
TIMED_NBYTES, POOL_NBYTES, LARGE_NBYTES = 1 * MIB, 2 * MIB, 3 * MIB
CONFIG = """backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output [ { name: "Y" data_type: TYPE_FP32 dims: -1 }, { name: "SAID" data_type: TYPE_STRING dims: 1 } ]
instance_group { %s count: 1 } parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }"""
#: Twice the input, left on the device, and where the input was.
TWICE = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

DEVICE = torch.device("%s")


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "X")
            said = pb_utils.Tensor("SAID", np.array([b"host" if given.is_cpu() else b"gpu"], object))
            twice = (torch.from_dlpack(given).to(DEVICE) * 2).contiguous()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", twice), said]))
        return answers
"""
#: The sum of a called model's answer, and where that model got its input.
CALLS = """
import torch
import triton_python_backend_utils as pb_utils

DEVICE = torch.device("%s")
THERE = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, "X")).to(DEVICE).contiguous()
            response = pb_utils.InferenceRequest(
                model_name="twice", requested_output_names=["Y", "SAID"], preferred_memory=THERE,
                inputs=[pb_utils.Tensor.from_dlpack("X", given)],
            ).exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            twice, said = [pb_utils.get_output_tensor_by_name(response, name) for name in ("Y", "SAID")]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", twice), said]))
        return answers
"""
PIPE = """platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output [ { name: "Y" data_type: TYPE_FP32 dims: -1 }, { name: "SAID" data_type: TYPE_STRING dims: 1 } ]
ensemble_scheduling { step [
    { model_name: "first" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } },
    { model_name: "twice" model_version: -1 input_map { key: "X" value: "t" } output_map { key: "Y" value: "Y" }
      output_map { key: "SAID" value: "SAID" } } ] }"""


def tensors_stay(setup: Setup) -> Finding:
    """The row of an ensemble and of a call, with tensors in a GPU pool, with larger ones, and without a pool."""
    repository = setup.directory / "repository"
    config = CONFIG % setup.gpu_group
    for name, code in (("first", TWICE), ("twice", TWICE), ("calls", CALLS)):
        write_model(repository, name, config, code % setup.device)
    (repository / "pipe" / "1").mkdir(parents=True)
    (repository / "pipe" / "config.pbtxt").write_text(PIPE)
    there = b"host" if setup.on_cpu else b"gpu"  # PyTorch's tensors are on the CPU there
    with served(repository, f"--cuda-memory-pool-byte-size={setup.gpu_id}:{POOL_NBYTES}") as (_, client):
        are_right = [
            _is_right(client, model, nbytes, factor, place)
            for model, factor in (("pipe", 4), ("calls", 2))
            for nbytes, place in ((TIMED_NBYTES, there), (LARGE_NBYTES, b"host"), (TIMED_NBYTES, there))
        ]
        staying_ms = median_ms(lambda: _ask(client, "pipe", TIMED_NBYTES), setup.seconds / 2)
    with served(repository, f"--cuda-memory-pool-byte-size={setup.gpu_id}:0") as (_, client):
        are_right.append(_is_right(client, "pipe", TIMED_NBYTES, 4, b"host"))
        by_host_ms = median_ms(lambda: _ask(client, "pipe", TIMED_NBYTES), setup.seconds / 2)
    return right_if(
        all(are_right),
        f"{sum(are_right)} of {len(are_right)} answers right and where they should be; two steps with "
        f"{TIMED_NBYTES // MIB} MiB: {staying_ms:.1f} ms, by host memory {by_host_ms:.1f} ms",
    )


def _ask(client: Any, model: str, nbytes: int) -> Any:
    return client.infer(model, {"X": np.arange(nbytes // 4, dtype=np.float32)})


def _is_right(client: Any, model: str, nbytes: int, factor: int, place: bytes) -> bool:
    """Whether an answer has the right numbers, and its last model got its input in this place."""
    answer = _ask(client, model, nbytes)
    return answer["SAID"].item(0) == place and np.array_equal(
        answer["Y"], factor * np.arange(nbytes // 4, dtype=np.float32)
    )
