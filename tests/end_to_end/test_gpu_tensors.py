"""Tensors that stay on a GPU between models: ensembles and calls, real processes beside the fake driver
(scripts/gpu_check/fake), whose memory is files: a model that gets a tensor on the GPU reads what another process has
put there, by a handle."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from scripts.gpu_check.finding import FAKES
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import Server, imbalances, serving, signal_worker, title, wait_until

#: Bytes of a tensor of the tests, and of each worker's pool: two such tensors and no third.
NBYTES = 4096
POOL_NBYTES = 2 * NBYTES

CONFIG = """
backend: "python" {more}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "ON_GPU" data_type: TYPE_INT32 dims: [ -1 ] }}
"""
#: What all these models have: tensors that they make on the GPU, and how they read one, wherever it is.
COMMON = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils
from cuda.bindings import runtime
from shoal.datatypes import FP32
from triton_python_backend_utils import dlpack


class Mine:
    def __init__(self, array):
        self.array = np.ascontiguousarray(array, np.float32)
        status, self.address = runtime.cudaMalloc(max(1, self.array.nbytes))
        ctypes.memmove(self.address, self.array.ctypes.data, self.array.nbytes)

    def __dlpack__(self, **_):
        return dlpack.export_cuda(self.address, self.array.nbytes, self.array.shape, FP32, self)

    def __dlpack_device__(self):
        return 2, 0

    def cpu(self):
        there = np.frombuffer(ctypes.string_at(self.address, self.array.nbytes), np.float32)
        return there.reshape(self.array.shape).copy()

    def __del__(self):
        runtime.cudaFree(self.address)


def read(tensor):
    if tensor.is_cpu():
        return tensor.as_numpy()
    capsule = tensor.to_dlpack()
    head = dlpack._head(capsule)
    there = (ctypes.c_float * int(np.prod(tensor.shape()))).from_address(head.data)
    return np.array(there).reshape(tensor.shape())


def answer(array, on_gpu, **more):
    shape = array.shape[:-1] + (1,) if array.ndim > 1 else (1,)
    flags = pb_utils.Tensor("ON_GPU", np.full(shape, on_gpu, np.int32))
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", Mine(array)), flags])
"""
#: Twice the input, on the GPU.
GIVES = """
class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(each, "IN") for each in requests]
        return [answer(2 * read(each), not each.is_cpu()) for each in given]
"""
#: One more, and where the input was.
TAKES = """
class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(each, "IN") for each in requests]
        return [answer(1 + read(each), not each.is_cpu()) for each in given]
"""
#: Calls `gives`, passes on its answer to `takes`, as it came, and then a tensor of its own.
CALLS = """
ON_GPU = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)


def call(model, tensor, **more):
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=["OUT", "ON_GPU"], **more
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name) for name in ("OUT", "ON_GPU")]


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = read(pb_utils.get_input_tensor_by_name(request, "IN"))
            twice, _ = call("gives", pb_utils.Tensor.from_dlpack("IN", Mine(given)), preferred_memory=ON_GPU)
            stayed = not twice.is_cpu()
            passed = pb_utils.Tensor.from_dlpack("IN", twice) if stayed else pb_utils.Tensor("IN", twice.as_numpy())
            more, lent = call("takes", passed)
            assert more.is_cpu()
            last, own = call("takes", pb_utils.Tensor.from_dlpack("IN", Mine(more.as_numpy())))
            on_gpu = [stayed, lent.as_numpy().item(), own.as_numpy().item()]
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", last.as_numpy()), pb_utils.Tensor("ON_GPU", np.array(on_gpu, np.int32)),
            ]))
        return answers
"""
ON_GPU = "instance_group { kind: KIND_GPU count: 1 }"
TAKES_IT = ' parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
MODELS = {
    "gives": (CONFIG.format(more=ON_GPU + TAKES_IT), GIVES),
    "takes": (CONFIG.format(more=ON_GPU + TAKES_IT), TAKES),
    "forced": (CONFIG.format(more=ON_GPU), TAKES),
    "calls": (CONFIG.format(more=ON_GPU + TAKES_IT), CALLS),
    "gives_rows": (CONFIG.format(more=f"max_batch_size: 8 dynamic_batching {{ }} {ON_GPU}"), GIVES),
    "takes_rows": (CONFIG.format(more=f"max_batch_size: 8 dynamic_batching {{ }} {ON_GPU} {TAKES_IT}"), TAKES),
}


def step(model: str, given: str, **outputs: str) -> str:
    mapped = "".join(f'output_map {{ key: "{name}" value: "{tensor}" }} ' for name, tensor in outputs.items())
    return f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{given}" }} {mapped}}}'


def ensemble(steps: list[str], outputs: dict[str, str], max_batch_size: int = 0) -> str:
    declared = "".join(
        f'output {{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] }}' for name, kind in outputs.items()
    )
    return (
        f'platform: "ensemble" max_batch_size: {max_batch_size} '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } '
        f"{declared} ensemble_scheduling {{ {' '.join(steps)} }}"
    )


ANSWER = {"OUT": "FP32", "ON_GPU": "INT32"}
FIRST = step("gives", "IN", OUT="t")
LAST = step("takes", "t", OUT="OUT", ON_GPU="ON_GPU")
ENSEMBLES = {
    "pair": ensemble([FIRST, LAST], ANSWER),
    "three": ensemble([FIRST, step("gives", "t", OUT="u"), step("takes", "u", OUT="OUT", ON_GPU="ON_GPU")], ANSWER),
    "to_the_host": ensemble([FIRST, step("forced", "t", OUT="OUT", ON_GPU="ON_GPU")], ANSWER),
    "both": ensemble(
        [FIRST, LAST, step("forced", "t", OUT="OUT2", ON_GPU="ON_GPU2")],
        {**ANSWER, "OUT2": "FP32", "ON_GPU2": "INT32"},
    ),
    "seen": ensemble([FIRST, LAST], {**ANSWER, "t": "FP32"}),
    "rows": ensemble(
        [step("gives_rows", "IN", OUT="t"), step("takes_rows", "t", OUT="OUT", ON_GPU="ON_GPU")], ANSWER, 8
    ),
}


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fake GPU's memory lies."""
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, memory: Path) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    for name, (config, code) in MODELS.items():
        add_model(models, name, config, COMMON + code)
    for name, config in ENSEMBLES.items():
        add_model(models, name, config)
    paths = {name: f"{FAKES}{os.pathsep}{os.environ.get(name, '')}" for name in ("PYTHONPATH", "PATH")}
    flags = [f"--cuda-memory-pool-byte-size=0:{POOL_NBYTES}"]
    with serving(models, *flags, environment={**paths, "FAKE_GPU": str(memory)}) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))
        assert server.stop() == 0, server.log.decode()
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url) as client:
        yield client


def ask(client: Any, model: str, given: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    sent = triton.InferInput("IN", list(given.shape), "FP32")
    sent.set_data_from_numpy(given)
    result = client.infer(model, [sent])
    return {each["name"]: result.as_numpy(each["name"]) for each in result.get_response()["outputs"]}


def tensor(first: int, nbytes: int = NBYTES) -> np.ndarray[Any, Any]:
    return np.arange(first, first + nbytes // 4, dtype=np.float32)


def test_a_tensor_stays_on_the_gpu_between_two_steps_and_its_part_of_the_pool_is_given_back(client: Any) -> None:
    for number in range(20):  # ten times what the pool has room for
        given = tensor(number)
        answer = ask(client, "pair", given)
        assert answer["OUT"].tolist() == (2 * given + 1).tolist()
        assert answer["ON_GPU"].tolist() == [1]


def test_a_worker_reads_its_own_tensor_too(client: Any) -> None:
    """`gives` is two steps: CUDA opens no handle in the process that has made it."""
    answer = ask(client, "three", tensor(5))
    assert answer["OUT"].tolist() == (4 * tensor(5) + 1).tolist()
    assert answer["ON_GPU"].tolist() == [1]


def test_what_does_not_fit_into_the_pool_goes_through_host_memory(client: Any) -> None:
    given = tensor(1, POOL_NBYTES + 4)
    answer = ask(client, "pair", given)
    assert (answer["OUT"].tolist(), answer["ON_GPU"].tolist()) == ((2 * given + 1).tolist(), [0])


@pytest.mark.parametrize("model", ["to_the_host", "both", "seen"])
def test_a_reader_that_cannot_or_a_client_gets_a_copy_on_the_host(client: Any, model: str) -> None:
    answer = ask(client, model, tensor(3))
    assert answer["OUT"].tolist() == (2 * tensor(3) + 1).tolist()
    assert answer["ON_GPU"].tolist() == [0]
    if model == "both":
        assert answer["OUT2"].tolist() == answer["OUT"].tolist()
    if model == "seen":
        assert answer["t"].tolist() == (2 * tensor(3)).tolist()


def test_a_client_of_the_model_itself_gets_its_output_on_the_host(client: Any) -> None:
    answer = ask(client, "gives", tensor(2))
    assert (answer["OUT"].tolist(), answer["ON_GPU"].tolist()) == ((2 * tensor(2)).tolist(), [0])


def test_calls_pass_on_what_is_on_the_gpu(client: Any) -> None:
    for number in range(10):
        given = tensor(number)
        answer = ask(client, "calls", given)
        assert answer["OUT"].tolist() == (2 * given + 2).tolist()
        assert answer["ON_GPU"].tolist() == [1, 1, 1]


def test_rows_of_a_batch_each_find_their_own(server: Server) -> None:
    def one(number: int) -> None:
        with triton.InferenceServerClient(server.url) as client:
            for rows in (1, 2):
                given = np.full((rows, 8), number, np.float32) + np.arange(8, dtype=np.float32)
                answer = ask(client, "rows", given)
                assert answer["OUT"].tolist() == (2 * given + 1).tolist()
                assert answer["ON_GPU"].tolist() == [[1]] * rows

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(32)))


@pytest.mark.parametrize("dies", ["gives", "takes"])
def test_whatever_dies_the_pools_are_whole_again(client: Any, server: Server, memory: Path, dies: str) -> None:
    ask(client, "pair", tensor(0))
    before = opened(memory, "takes")
    start = len(server.log)
    signal_worker(server, dies, signal.SIGKILL)
    assert server.read_log(b"is up again", start=start)
    for number in range(6):
        given = tensor(number)
        answer = ask(client, "pair", given)
        assert (answer["OUT"].tolist(), answer["ON_GPU"].tolist()) == ((2 * given + 1).tolist(), [1])
    # The worker that read the pool of the dead one has closed its handle, or it is the dead one.
    wait_until(lambda: bool(before - opened(memory, "takes")), lambda: (before, opened(memory, "takes")))


def opened(memory: Path, model: str) -> set[str]:
    """The memory of others that the living worker of a model has open."""
    found = [each.name.split(".open.") for each in memory.glob("*.open.*")]
    return {f"{name} {pid}" for name, pid in found if title(int(pid)).startswith(f"shoal worker {model}_0_0 ")}
