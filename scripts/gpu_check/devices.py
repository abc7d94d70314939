"""Rows of Python models on a GPU, and of the server around them: tensors, faults, memory, figures."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from scripts.gpu_check.finding import Finding, Setup, Verdict, right_if
from scripts.gpu_check.measure import median_ms, post, served, write_model
from shoal.nvml import load_nvml
from tests.end_to_end.server import samples

MIB = 1 << 20
CONFIG = """backend: "python" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 16 }
output [ { name: "Y" data_type: TYPE_FP32 dims: 16 }, { name: "SAID" data_type: TYPE_STRING dims: 1 } ]
instance_group { %s count: %d } %s"""
#: A model that answers twice its input, computed on the device, and where its process runs. The body of the function
#: `fault`, which each row has for itself, is appended.
CODE = """
import os
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

DEVICE = torch.device("%s")


class TritonPythonModel:
    def initialize(self, args):
        self.held = torch.ones(%d << 20, dtype=torch.uint8, device=DEVICE)
        self.weight = torch.full((16,), 2.0, device=DEVICE)

    def execute(self, requests):
        values = [torch.from_dlpack(pb_utils.get_input_tensor_by_name(each, "X")) for each in requests]
        fault(values)
        said = f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {sorted(os.sched_getaffinity(0))}"
        answers = []
        for value in values:
            on_device = (value.to(DEVICE) * self.weight).contiguous()
            tensors = [
                pb_utils.Tensor.from_dlpack("Y", on_device),
                pb_utils.Tensor("SAID", np.full((len(value), 1), said, object)),
            ]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers


def fault(values):
"""
NO_FAULT = "    return\n"
#: A body of `fault` that allocates more than a GPU has, for a batch of more than two rows; and one, for a fake
#: GPU, that raises the error that PyTorch would.
OUT_OF_MEMORY = """    if sum(len(value) for value in values) > 2:
        torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)
"""
FAKE_OUT_OF_MEMORY = """    if sum(len(value) for value in values) > 2:
        raise RuntimeError("CUDA out of memory. Tried to allocate 32768.00 GiB")
"""
#: A body of `fault` that, for a negative input, reads an array beyond its memory; and one that raises PyTorch's error.
LOST = """    if any((value < 0).any() for value in values):
        class Beyond:
            owner = torch.zeros(16, device=DEVICE)
            __cuda_array_interface__ = {
                "shape": (1 << 40,), "typestr": "<f4", "data": (owner.data_ptr(), False), "version": 2,
            }
        beyond = torch.as_tensor(Beyond(), device=DEVICE)
        (beyond[(1 << 40) - 64:] + 1).sum().item()
"""
FAKE_LOST = """    if any((value < 0).any() for value in values):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""


def cuda_tensors(setup: Setup) -> Finding:
    """The row of a model that answers with a tensor of the device, by DLPack, on its GPU and the cores beside it."""
    repository = setup.directory / "repository"
    make_model(setup, repository, "double", NO_FAULT)
    with served(repository) as (_, client):
        array = np.arange(48, dtype=np.float32).reshape(3, 16)
        answer = client.infer("double", {"X": array})
        said = answer["SAID"].item(0).decode()
        is_right = np.array_equal(answer["Y"], 2 * array)
    is_placed = is_beside(said, setup.gpu_uuid, setup.gpu_cores)
    return right_if(is_right and is_placed, f"answers {'right' if is_right else 'WRONG'}; the process has {said}")


def is_beside(said: str, uuid: str, cores: tuple[int, ...]) -> bool:
    """Whether an instance sees this GPU alone, and runs on cores beside it."""
    seen, _, listed = said.partition(" ")
    return seen == uuid and {int(core) for core in listed.strip("[]").split(",")} <= set(cores)


def out_of_memory(setup: Setup) -> Finding:
    """The row of a batch of eight requests for which the GPU lacks memory: the server splits it, down to two rows."""
    repository = setup.directory / "repository"
    more = """dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 30000000 }
        parameters { key: "idempotent" value { string_value: "true" } }"""
    fault = FAKE_OUT_OF_MEMORY if setup.on_cpu else OUT_OF_MEMORY
    make_model(setup, repository, "double", fault, more=more)
    with served(repository) as (server, client):

        def ask(number: int) -> bool:
            array = np.full((1, 16), number, np.float32)
            return np.array_equal(client.infer("double", {"X": array})["Y"], 2 * array)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))
        splits = [rows for rows in (8, 4) if server.read_log(b"too small for a batch of %d rows" % rows)]
    return right_if(all(answers), f"{sum(answers)} of 8 answers right; batches of {splits} rows were split")


def lost(setup: Setup) -> Finding:
    """The row of a model that reads beyond its memory: one instance ends and is started again, the other answers."""
    repository = setup.directory / "repository"
    fault = FAKE_LOST if setup.on_cpu else LOST
    make_model(setup, repository, "double", fault, count=2)
    array = np.ones((1, 16), np.float32)
    with served(repository) as (server, client):
        client.infer("double", {"X": array})
        start = len(server.log)
        try:
            client.infer("double", {"X": -array})
            return Finding(Verdict.WRONG, "the read beyond the end was answered")
        except Exception as error:  # noqa: BLE001 - it is what the client sees
            words = " ".join(str(error).split())[:160]
        others = [np.array_equal(client.infer("double", {"X": array})["Y"], 2 * array) for _ in range(20)]
        has_code = server.read_log(b"exited with code 70", start=start)
        server.read_log(b"is up again", start=start)
        again = np.array_equal(client.infer("double", {"X": array})["Y"], 2 * array)
    is_right = has_code and all(others) and again
    return right_if(is_right, f"the client read '{words}'; exit 70; {sum(others)} of 20 answers meanwhile, up again")


def memory_returned(setup: Setup) -> Finding:
    """The row of a model with 512 MiB, whose memory the GPU has again once it is unloaded."""
    nvml = load_nvml()
    if nvml is None:
        return Finding(Verdict.NOT_RUN, "no nvidia-ml-py")
    repository = setup.directory / "repository"
    make_model(setup, repository, "large", NO_FAULT, held_mib=512)
    handle = nvml.nvmlDeviceGetHandleByUUID(setup.gpu_uuid)

    def used() -> int:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used) // MIB

    with served(repository, "--model-control-mode=explicit") as (server, client):
        before = used()
        post(server, "v2/repository/models/large/load")
        client.infer("large", {"X": np.ones((1, 16), np.float32)})
        during, start = used(), len(server.log)
        post(server, "v2/repository/models/large/unload")
        server.read_log(b"has returned", start=start)
        server.read_log(b"\n", start=server.log.index(b"has returned", start))
        after = used()
        (line,) = re.findall(r"has returned (\d+) MiB", server.log[start:].decode())
    is_right = int(line) >= 500 and during - before >= 500 and after - before < 100
    return right_if(is_right, f"in use {before}, {during} with the model, {after} MiB after; the log says {line} MiB")


def metrics(setup: Setup) -> Finding:
    """The row of a GPU's figures in /metrics."""
    repository = setup.directory / "repository"
    make_model(setup, repository, "double", NO_FAULT)
    with served(repository) as (server, _):
        label = f'{{gpu_uuid="{setup.gpu_uuid}"}}'
        figures = {
            name.removesuffix(label): value for name, value in samples(server.metrics_port).items() if label in name
        }
    used, total = figures.get("nv_gpu_memory_used_bytes", -1), figures.get("nv_gpu_memory_total_bytes", -1)
    is_right = 0 < used < total and 0 <= figures.get("nv_gpu_utilization", -1) <= 1
    return right_if(is_right, ", ".join(f"{name.removeprefix('nv_')} {value:g}" for name, value in figures.items()))


def cuda_shared_memory(setup: Setup) -> Finding:
    """The row of tensors in a client's memory on the GPU, in and out, which tritonclient registers and unregisters."""
    os.environ.setdefault("FAKE_GPU", str(setup.directory))  # where the fake GPU has its memory
    import tritonclient.utils.cuda_shared_memory as regions

    repository = setup.directory / "repository"
    make_model(setup, repository, "double", NO_FAULT)
    array = np.arange(48, dtype=np.float32).reshape(3, 16)
    handles = {name: regions.create_shared_memory_region(name, array.nbytes, setup.gpu_id) for name in ("given", "out")}
    place = {"shared_memory_byte_size": array.nbytes}
    tensor = {"name": "X", "datatype": "FP32", "shape": array.shape}
    body = json.dumps({
        "inputs": [{**tensor, "parameters": {"shared_memory_region": "given", **place}}],
        "outputs": [{"name": "Y", "parameters": {"shared_memory_region": "out", **place}}],
    }).encode()  # fmt: skip
    answers = []
    with served(repository, "--allow-client-shm=true") as (server, client):
        for name, handle in handles.items():
            encoded = regions.get_raw_handle(handle).decode()
            said = {"raw_handle": {"b64": encoded}, "device_id": setup.gpu_id, "byte_size": array.nbytes}
            post(server, f"v2/cudasharedmemory/region/{name}/register", json.dumps(said).encode())
        for factor in (1, 2, 3):
            regions.set_shared_memory_region(handles["given"], [factor * array])
            post(server, "v2/models/double/infer", body)
            answer = regions.get_contents_as_numpy(handles["out"], np.float32, list(array.shape))
            answers.append(np.array_equal(answer, 2 * factor * array))
        by_region = median_ms(lambda: post(server, "v2/models/double/infer", body), setup.seconds / 2)
        by_host = median_ms(lambda: client.infer("double", {"X": array}), setup.seconds / 2)
        post(server, "v2/cudasharedmemory/unregister")
        again = np.array_equal(client.infer("double", {"X": array})["Y"], 2 * array)
    for name in tuple(handles):
        regions.destroy_shared_memory_region(handles.pop(name))
    is_right = all(answers) and again
    return right_if(
        is_right, f"{sum(answers)} of 3 answers right; HTTP by region {by_region:.2f} ms, shoal.Client {by_host:.2f} ms"
    )


def make_model(
    setup: Setup,
    repository: Any,
    name: str,
    fault: str,
    *,
    count: int = 1,
    more: str = "",
    held_mib: int = 1,
) -> None:
    """Write a model that doubles its input on the device, except when `fault` raises."""
    config = CONFIG % (setup.gpu_group, count, more)
    write_model(repository, name, config, CODE % (setup.device, held_mib) + fault)
