"""Clients' memory on a GPU, by tritonclient.utils.cuda_shared_memory as it is, over HTTP and gRPC: one server, beside a
fake driver (scripts/gpu_check/fake): real processes pass real bytes by handles."""

import base64
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import serialize_byte_tensor

from scripts.gpu_check.finding import FAKES
from tests.end_to_end.repositories import add_model, python_model
from tests.end_to_end.server import Server, descendants, imbalances, serving, title
from tests.end_to_end.test_client_regions import Api

NUMBERS = """
backend: "{backend}" {more}
input {{ name: "IN" data_type: TYPE_{datatype} dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_{datatype} dims: [ -1 ] }}
"""
PIPE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
    model_name: "same" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }
"""
DOUBLE = python_model("""
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * each)]) for each in given]
""")
TWICE = python_model("""
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for factor in (1, 2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", factor * given)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")
WHERE_IT_IS = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils

pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class Head(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            if tensor.is_cpu():
                found = -tensor.as_numpy()
            else:
                capsule = tensor.to_dlpack()
                head = Head.from_address(pointer(capsule, b"dltensor"))
                assert tensor.__dlpack_device__() == (head.kind, head.number) == (2, 0)
                there = (ctypes.c_float * tensor.shape()[0]).from_address(head.data)
                found = np.array(there)
                there[0] = 99  # no model should; the client sees that it was its own memory
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)]))
        return answers
"""
ON_CPU, ON_GPU = (f"instance_group {{ kind: KIND_{kind} count: 1 }}" for kind in ("CPU", "GPU"))
MODELS = {
    "same": (NUMBERS.format(backend="identity", datatype="FP32", more=ON_CPU), ""),
    "strings": (NUMBERS.format(backend="identity", datatype="STRING", more=""), ""),
    "cached": (NUMBERS.format(backend="identity", datatype="FP32", more="response_cache { enable: true }"), ""),
    "double": (
        NUMBERS.format(backend="python", datatype="FP32", more=f"max_batch_size: 8 dynamic_batching {{}} {ON_GPU}"),
        DOUBLE,
    ),
    "twice": (
        NUMBERS.format(backend="python", datatype="FP32", more="model_transaction_policy { decoupled: true }"),
        TWICE,
    ),
    "device": (
        NUMBERS.format(
            backend="python",
            datatype="FP32",
            more=ON_GPU + ' parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }',
        ),
        WHERE_IT_IS,
    ),
    "pipe": (PIPE, ""),
}


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fake GPU's memory lies."""
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, memory: Path) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    for name, (config, code) in MODELS.items():
        add_model(models, name, config, code)
    paths = {name: f"{FAKES}{os.pathsep}{os.environ.get(name, '')}" for name in ("PYTHONPATH", "PATH")}
    flags = ["--allow-client-shm=true", "--grpc-port=0", "--cache-config=local,size=1048576"]
    with serving(models, *flags, environment={**paths, "FAKE_GPU": str(memory)}) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))
        assert server.stop() == 0, server.log.decode()
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture(scope="module")
def cuda(memory: Path) -> Iterator[Any]:
    """tritonclient.utils.cuda_shared_memory, on the fake GPU."""
    # The real package may be there, and imported: PyTorch for CUDA needs it.
    real = {name: sys.modules.pop(name) for name in tuple(sys.modules) if name.partition(".")[0] == "cuda"}
    os.environ["FAKE_GPU"] = str(memory)
    sys.path.insert(0, str(FAKES))
    import tritonclient.utils.cuda_shared_memory as module

    yield module
    sys.path.remove(str(FAKES))
    del os.environ["FAKE_GPU"]
    for name in tuple(sys.modules):
        if name.partition(".")[0] == "cuda" or name.startswith("tritonclient.utils.cuda_shared_memory"):
            del sys.modules[name]
    sys.modules.update(real)


@pytest.fixture(params=["http", "grpc"])
def api(request: pytest.FixtureRequest, server: Server, memory: Path) -> Iterator[Api]:
    modules = {"http": (tritonclient.http, server.url), "grpc": (tritonclient.grpc, f"127.0.0.1:{server.grpc_port}")}
    made = Api(request.param, *modules[request.param])
    yield made
    made.client.unregister_cuda_shared_memory()
    assert regions_of(made) == {}
    assert holders(memory) == []
    made.client.close()


def regions_of(api: Api) -> dict[str, Any]:
    """Those that are registered, by name."""
    told = api.client.get_cuda_shared_memory_status()
    if isinstance(told, list):
        return {each["name"]: each for each in told}
    fields = ("name", "device_id", "byte_size")
    return {name: {field: getattr(each, field) for field in fields} for name, each in told.regions.items()}


def holders(memory: Path) -> list[int]:
    """The processes that have a client's memory open."""
    return [int(each.suffix[1:]) for each in memory.glob("*.open.*") if title(int(each.suffix[1:]))]


@contextmanager
def region(api: Api, cuda: Any, name: str, nbytes: int, registered: int = 0) -> Iterator[Any]:
    """Memory of the client's on the GPU, registered, perhaps as larger than it is."""
    handle = cuda.create_shared_memory_region(name, nbytes, 0)
    api.client.register_cuda_shared_memory(name, cuda.get_raw_handle(handle), 0, registered or nbytes)
    try:
        yield handle
    finally:
        api.client.unregister_cuda_shared_memory(name)
        cuda.destroy_shared_memory_region(handle)


def infer(api: Api, model: str, place: tuple[Any, ...], result: tuple[Any, ...], shape: list[int], **more: Any) -> Any:
    inputs = [api.input("IN", shape, more.get("datatype", "FP32"), *place)]
    return api.client.infer(model, inputs, outputs=[api.output("OUT", *result)])


@pytest.mark.parametrize(("model", "factor"), [("same", 1), ("double", 2)])
def test_tensors_in_regions(api: Api, cuda: Any, server: Server, memory: Path, model: str, factor: int) -> None:
    """The flow of Triton's simple_*_cudashm_client.py, on a model of the CPU and one of the GPU."""
    shape = [1, 4] if model == "double" else [4]
    with region(api, cuda, "in", 32) as given, region(api, cuda, "out", 16) as wanted:
        assert regions_of(api) == {
            "in": {"name": "in", "device_id": 0, "byte_size": 32},
            "out": {"name": "out", "device_id": 0, "byte_size": 16},
        }
        assert holders(memory) == []
        for first in range(3):  # whatever is remembered of the first one, the second one reads what lies there then
            values = np.arange(first, first + 8, dtype=np.float32)
            cuda.set_shared_memory_region(given, [values])
            result = infer(api, model, ("in", 16, 16), ("out", 16), shape)
            assert api.output_of(result, "OUT") == {"name": "OUT", "datatype": "FP32", "shape": shape}
            assert cuda.get_contents_as_numpy(wanted, np.float32, [4]).tolist() == (factor * values[4:]).tolist()
        (worker,) = {*holders(memory)}
        assert title(worker).startswith(f"shoal worker {model}_0_0 ({'GPU 0' if model == 'double' else 'CPU'}")


def test_regions_of_a_gpu_and_of_the_machine_and_none(api: Api, cuda: Any) -> None:
    """An input on the GPU has its answer in the response, and one in the request has it on the GPU."""
    values = np.arange(4, dtype=np.float32)
    with region(api, cuda, "r", 16) as handle:
        cuda.set_shared_memory_region(handle, [values])
        result = api.client.infer("same", [api.input("IN", [4], "FP32", "r", 16)])
        assert result.as_numpy("OUT").tolist() == values.tolist()
        sent = api.module.InferInput("IN", [4], "FP32")
        sent.set_data_from_numpy(values + 1)
        api.client.infer("same", [sent], outputs=[api.output("OUT", "r", 16)])
        assert cuda.get_contents_as_numpy(handle, np.float32, [4]).tolist() == (values + 1).tolist()


def test_requests_of_several_clients_at_once(api: Api, cuda: Any, server: Server) -> None:
    url = server.url if api.kind == "http" else f"127.0.0.1:{server.grpc_port}"
    with region(api, cuda, "in", 64) as given, region(api, cuda, "out", 64) as wanted:
        values = np.arange(16, dtype=np.float32)
        cuda.set_shared_memory_region(given, [values])

        def ask(offset: int) -> None:
            own = Api(api.kind, api.module, url)
            infer(own, "double", ("in", 16, offset), ("out", 16, offset), [1, 4])
            own.client.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(0, 64, 16)))
        assert cuda.get_contents_as_numpy(wanted, np.float32, [16]).tolist() == (2 * values).tolist()


def test_strings_in_regions(api: Api, cuda: Any) -> None:
    """Which no front end has seen: the worker walks them."""
    data = serialize_byte_tensor(np.array([b"a", b"", b"ccc"], dtype=object))
    nbytes = len(data.item())
    with region(api, cuda, "in", nbytes) as given, region(api, cuda, "out", 64) as wanted:
        cuda.set_shared_memory_region(given, [data])
        infer(api, "strings", ("in", nbytes), ("out", 64), [3], datatype="BYTES")
        assert cuda.get_contents_as_numpy(wanted, np.object_, [3]).tolist() == [b"a", b"", b"ccc"]
        for shape, sentence in (
            ([2], "unexpected number of string elements 3 for inference input 'IN' for model 'strings', expecting 2"),
            ([4], "expected 4 string elements for inference input 'IN' for model 'strings', got 3"),
        ):
            refusal = api.refusal(infer, api, "strings", ("in", nbytes), ("out", 64), shape, datatype="BYTES")
            assert refusal == ("400", sentence)


def test_registering(api: Api, cuda: Any) -> None:
    handle = base64.b64encode(bytes(64))
    register = api.client.register_cuda_shared_memory
    with region(api, cuda, "r", 16):
        assert api.refusal(register, "r", handle, 0, 8) == ("400", "shared memory region 'r' already in manager")
        wrong = ("400", "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        for bad in (base64.b64encode(bytes(63)), b"AA==", b""):
            assert api.refusal(register, "s", bad, 0, 8) == wrong
        assert api.refusal(register, "s", handle, 1, 8) == (
            "400", "failed to register CUDA shared memory region 's': invalid device_id 1, the server's GPUs are: 0"
        )  # fmt: skip
        assert api.refusal(register, "s", handle, 0, 0) == (
            "400", "failed to register shared memory region 's': invalid args")  # fmt: skip
        assert api.refusal(api.client.get_system_shared_memory_status, "r") == (
            "404", "The region named 'r' is registered as CUDA shared memory, not system shared memory")  # fmt: skip
        api.client.unregister_system_shared_memory("r")
        api.client.unregister_system_shared_memory()
        assert set(regions_of(api)) == {"r"}
    assert api.refusal(api.client.get_cuda_shared_memory_status, "r") == (
        "404", "Unable to find cuda shared memory region: 'r'")  # fmt: skip


def test_places_that_are_not_there(api: Api, cuda: Any, memory: Path) -> None:
    def ask(place: tuple[Any, ...], result: tuple[Any, ...] = ("r", 16)) -> tuple[str, str]:
        return api.refusal(infer, api, "same", place, result, [4])

    beyond = "a tensor lies at 16 + 16 bytes of CUDA shared memory on GPU 0, of which the client has allocated 16 bytes"
    with region(api, cuda, "r", 16, registered=32) as handle:
        cuda.set_shared_memory_region(handle, [np.ones(4, np.float32)])
        assert ask(("s", 16)) == ("404", "Unable to find shared memory region: 's'")
        assert ask(("r", 16, 32)) == ("400", "Invalid offset for shared memory region: 'r'")
        assert ask(("r", 16, 17)) == ("400", "Invalid offset + byte size for shared memory region: 'r'")
        for place, result in ((("r", 16, 16), ("r", 16)), (("r", 16), ("r", 16, 16))):
            status, sentence = ask(place, result)
            assert (status, sentence.startswith(beyond)) == ("400", True), sentence
        status, sentence = ask(("r", 16), ("r", 12))
        assert (status, sentence) == (
            "500", "shared memory size specified with the request for output 'OUT' (12 bytes) should be at least 16 "
            "bytes to hold the results",
        )  # fmt: skip
        assert cuda.get_contents_as_numpy(handle, np.float32, [4]).tolist() == [1, 1, 1, 1]
        # A handle that is none is known when it is used; its request alone fails.
        api.client.register_cuda_shared_memory("none", base64.b64encode(b"\1" * 64), 0, 16)
        for place, result in ((("none", 16), ("r", 16)), (("r", 16), ("none", 16))):
            status, sentence = ask(place, result)
            assert (status, "failed to open CUDA IPC handle of a registered region on GPU 0" in sentence) == (
                "400", True), sentence  # fmt: skip
        infer(api, "same", ("r", 16), ("r", 16), [4])


def test_an_ensemble_is_refused(api: Api, cuda: Any) -> None:
    sent = api.module.InferInput("IN", [4], "FP32")
    sent.set_data_from_numpy(np.ones(4, np.float32))
    with region(api, cuda, "r", 16):
        for inputs, outputs, tensor in (
            ([api.input("IN", [4], "FP32", "r", 16)], None, "input 'IN'"),
            ([sent], [api.output("OUT", "r", 16)], "output 'OUT'"),
        ):
            status, sentence = api.refusal(api.client.infer, "pipe", inputs, outputs=outputs)
            start = f"{tensor} of ensemble 'pipe' cannot lie in CUDA shared memory"
            assert (status, sentence.startswith(start)) == ("400", True), sentence


def test_no_answer_comes_from_a_cache(api: Api, cuda: Any) -> None:
    """Equal requests, as their bytes go, have other values; and what is answered must have been written."""
    with region(api, cuda, "in", 16) as given, region(api, cuda, "out", 16) as wanted:
        for first in (5, 6, 5):
            values = np.arange(first, first + 4, dtype=np.float32)
            cuda.set_shared_memory_region(given, [values])
            cuda.set_shared_memory_region(wanted, [0 * values])
            infer(api, "cached", ("in", 16), ("out", 16), [4])
            assert cuda.get_contents_as_numpy(wanted, np.float32, [4]).tolist() == values.tolist()


def test_every_response_of_a_decoupled_model_is_written(server: Server, cuda: Any) -> None:
    modules = tritonclient.grpc, f"127.0.0.1:{server.grpc_port}"
    api, answers = Api("grpc", *modules), []
    with region(api, cuda, "in", 16) as given, region(api, cuda, "out", 16) as wanted:
        cuda.set_shared_memory_region(given, [np.arange(4, dtype=np.float32)])
        api.client.start_stream(lambda result, error: answers.append((result, error)))
        inputs, outputs = [api.input("IN", [4], "FP32", "in", 16)], [api.output("OUT", "out", 16)]
        api.client.async_stream_infer("twice", inputs, outputs=outputs)
        api.client.stop_stream()  # once all answers have come
        assert [error for _, error in answers] == [None, None]
        assert cuda.get_contents_as_numpy(wanted, np.float32, [4]).tolist() == [0, 2, 4, 6]
    api.client.close()


def test_a_model_that_takes_tensors_on_its_gpu_gets_the_client_s_memory(api: Api, cuda: Any) -> None:
    with region(api, cuda, "in", 32) as given, region(api, cuda, "out", 16) as wanted:
        for _ in range(2):  # the second time its layout is known
            cuda.set_shared_memory_region(given, [np.arange(8, dtype=np.float32)])
            infer(api, "device", ("in", 16, 16), ("out", 16), [4])
            assert cuda.get_contents_as_numpy(wanted, np.float32, [4]).tolist() == [4, 5, 6, 7]
            assert cuda.get_contents_as_numpy(given, np.float32, [8]).tolist() == [0, 1, 2, 3, 99, 5, 6, 7]
        sent = api.module.InferInput("IN", [4], "FP32")
        sent.set_data_from_numpy(np.ones(4, np.float32))
        assert api.client.infer("device", [sent]).as_numpy("OUT").tolist() == [-1, -1, -1, -1]


def test_a_worker_that_died_opens_the_region_again(api: Api, cuda: Any, server: Server, memory: Path) -> None:
    with region(api, cuda, "in", 16) as given, region(api, cuda, "out", 16) as wanted:
        cuda.set_shared_memory_region(given, [np.arange(4, dtype=np.float32)])
        infer(api, "double", ("in", 16), ("out", 16), [1, 4])
        (worker,) = {*holders(memory)}
        start = len(server.log)
        os.kill(worker, signal.SIGKILL)
        assert server.read_log(b"is up again", start=start)
        cuda.set_shared_memory_region(wanted, [np.zeros(4, np.float32)])
        infer(api, "double", ("in", 16), ("out", 16), [1, 4])
        assert cuda.get_contents_as_numpy(wanted, np.float32, [4]).tolist() == [0, 2, 4, 6]
        (other,) = {*holders(memory)}
        assert other != worker
        assert other in descendants(server.process.pid)
