"""Clients' shared memory, driven by the real tritonclient over HTTP and gRPC: one server, whose ledger balances."""

import http.client
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    LOOK_AGAIN_S,
    SAMPLES,
    Server,
    imbalances,
    only,
    serving,
    title,
    wait_until,
)

GATED = python_model("""
    def execute(self, requests):
        open({gate!r} + ".begun", "w").close()
        open({gate!r}).close()
        array = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]
""")
NAMES = (f"shoal-test-{os.getpid()}-{number}" for number in itertools.count())
MIB = 1 << 20


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """Where the model `gated` stands still; a file beside it says that the model has come so far."""
    return Gate(tmp_path_factory.mktemp("gate") / "gate")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gate: Gate) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    for name, backend in (("same", "identity"), ("gated", "python")):
        add_model(models, name, config_text(backend, "IN FP32 -1", "OUT FP32 -1"))
    (models / "gated" / "1" / "model.py").write_text(GATED.format(gate=str(gate.path)))
    flags = ["--allow-client-shm=true", "--grpc-port=0"]
    with serving([SAMPLES, models], *flags, *only("simple", "simple_string", "same", "gated")) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))
        assert server.stop() == 0, server.log.decode()
        assert b"Traceback" not in server.log, server.log.decode()


class Api:
    """A tritonclient: its module, and a client of it."""

    def __init__(self, kind: str, module: Any, url: str) -> None:
        self.kind = kind
        self.module = module
        self.client = module.InferenceServerClient(url)

    def input(self, name: str, shape: list[int], datatype: str, *place: Any) -> Any:
        made = self.module.InferInput(name, shape, datatype)
        made.set_shared_memory(*place)
        return made

    def output(self, name: str, *place: Any) -> Any:
        made = self.module.InferRequestedOutput(name)
        made.set_shared_memory(*place)
        return made

    def regions(self) -> dict[str, Any]:
        """Those that are registered, by name."""
        told = self.client.get_system_shared_memory_status()
        if isinstance(told, list):
            return {each["name"]: each for each in told}
        return {name: {f: getattr(each, f) for f in ("name", "key", "offset", "byte_size")}
                for name, each in told.regions.items()}  # fmt: skip

    @staticmethod
    def output_of(result: Any, name: str) -> dict[str, Any]:
        """What a response says of an output."""
        told = result.get_output(name)
        if isinstance(told, dict):
            return told
        assert not any(result.get_response().raw_output_contents)
        return {"name": told.name, "datatype": told.datatype, "shape": list(told.shape), **told.parameters}

    def refusal(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[str, str]:
        """The status in HTTP's terms, and the sentence."""
        with pytest.raises(InferenceServerException) as refused:
            call(*arguments, **more)
        status = str(refused.value.status())
        return _GRPC_STATUS.get(status, status), refused.value.message()


_GRPC_STATUS = {
    "StatusCode.INVALID_ARGUMENT": "400",
    "StatusCode.ALREADY_EXISTS": "400",
    "StatusCode.NOT_FOUND": "404",
    "StatusCode.INTERNAL": "500",
}


@pytest.fixture(params=["http", "grpc"])
def api(request: pytest.FixtureRequest, server: Server) -> Iterator[Api]:
    made = client_of(server, request.param)
    yield made
    made.client.unregister_system_shared_memory()
    assert made.regions() == {}
    made.client.close()


def client_of(server: Server, kind: str) -> Api:
    if kind == "http":
        return Api(kind, tritonclient.http, server.url)
    return Api(kind, tritonclient.grpc, f"127.0.0.1:{server.grpc_port}")


@contextmanager
def region(nbytes: int) -> Iterator[tuple[Any, str]]:
    """Memory of the client's, and its key."""
    key = next(NAMES)
    handle = shm.create_shared_memory_region(key, key, nbytes)
    try:
        yield handle, key
    finally:
        shm.destroy_shared_memory_region(handle)


def numbers(handle: Any, count: int, offset: int = 0) -> Any:
    return shm.get_contents_as_numpy(handle, np.float32, [count], offset).copy()


def test_integers_in_regions(api: Api) -> None:
    """The flow of Triton's example simple_*_shm_client.py."""
    client = api.client
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    one, two = np.arange(16, dtype=np.int32), np.ones(16, dtype=np.int32)
    with region(128) as (outputs, output_key), region(128) as (inputs, input_key):
        client.register_system_shared_memory("output_data", output_key, 128)
        shm.set_shared_memory_region(inputs, [one])
        shm.set_shared_memory_region(inputs, [two], offset=64)
        client.register_system_shared_memory("input_data", f"/{input_key}", 128)
        assert api.regions() == {
            "input_data": {"name": "input_data", "key": f"/{input_key}", "offset": 0, "byte_size": 128},
            "output_data": {"name": "output_data", "key": output_key, "offset": 0, "byte_size": 128},
        }
        for _ in range(3):  # whatever is remembered of the first one, the second one reads what lies there then
            result = client.infer(
                "simple",
                [
                    api.input("INPUT0", [1, 16], "INT32", "input_data", 64),
                    api.input("INPUT1", [1, 16], "INT32", "input_data", 64, 64),
                ],
                outputs=[api.output("OUTPUT0", "output_data", 64), api.output("OUTPUT1", "output_data", 64, 64)],
            )
            assert api.output_of(result, "OUTPUT0") == {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16]}
            contents = shm.get_contents_as_numpy(outputs, np.int32, [2, 16])
            assert contents.tolist() == [(one + two).tolist(), (one - two).tolist()]
            one = one + 5
            shm.set_shared_memory_region(inputs, [one])


def test_strings_in_regions(api: Api) -> None:
    """The flow of simple_*_shm_string_client.py; and sizes of strings come from the region itself."""
    one = serialize_byte_tensor(np.array([str(each).encode() for each in range(16)], dtype=object))
    two = serialize_byte_tensor(np.array([b"1"] * 16, dtype=object))
    sizes = [len(each.item()) for each in (one, two)]
    with region(512) as (outputs, output_key), region(sum(sizes)) as (inputs, input_key):
        shm.set_shared_memory_region(inputs, [one, two])
        api.client.register_system_shared_memory("strings", input_key, sum(sizes))
        api.client.register_system_shared_memory("results", output_key, 512)
        places = [("INPUT0", sizes[0], 0), ("INPUT1", sizes[1], sizes[0])]
        api.client.infer(
            "simple_string",
            [api.input(name, [1, 16], "BYTES", "strings", nbytes, offset) for name, nbytes, offset in places],
            outputs=[api.output("OUTPUT0", "results", 256), api.output("OUTPUT1", "results", 256, 256)],
        )
        for offset, expected in ((0, range(1, 17)), (256, range(-1, 15))):
            found = shm.get_contents_as_numpy(outputs, np.object_, [16], offset)
            assert [int(each) for each in found] == list(expected)
        wrong = [api.input(name, [1, 16], "BYTES", "strings", nbytes - 1, offset) for name, nbytes, offset in places]
        status, sentence = api.refusal(api.client.infer, "simple_string", wrong)
        assert (status, "incomplete string data for inference input 'INPUT0'" in sentence) == ("400", True)


def test_one_input_in_a_region_and_one_in_the_request(api: Api) -> None:
    one, two = np.arange(16, dtype=np.int32), np.full(16, 7, np.int32)
    sent = api.module.InferInput("INPUT0", [1, 16], "INT32")
    with region(64) as (handle, key):
        api.client.register_system_shared_memory("r", key, 64)
        for _ in range(3):
            two = two + 1
            sent.set_data_from_numpy(one.reshape(1, 16))
            shm.set_shared_memory_region(handle, [two])
            inputs = [sent, api.input("INPUT1", [1, 16], "INT32", "r", 64)]
            assert api.client.infer("simple", inputs).as_numpy("OUTPUT1").tolist() == [(one - two).tolist()]


def test_strings_without_end(api: Api) -> None:
    """An object may be long and have no memory: strings, which are read at once, are bounded."""
    with region(MIB) as (_, key):
        os.truncate(f"/dev/shm/{key}", 1 << 40)
        api.client.register_system_shared_memory("r", key, 1 << 40)
        inputs = [api.input(name, [1, 16], "BYTES", "r", 1 << 40) for name in ("INPUT0", "INPUT1")]
        status, sentence = api.refusal(api.client.infer, "simple_string", inputs)
        assert (status, "exceed the maximum allowed input size of 67108864 bytes" in sentence) == ("400", True)
        numbers_ = [api.input("IN", [1 << 38], "FP32", "r", 1 << 40)]
        status, sentence = api.refusal(api.client.infer, "same", numbers_)
        assert (status, sentence[:34]) == ("400", "a payload of 1099511627937 bytes, ")


def test_registering(api: Api) -> None:
    register = api.client.register_system_shared_memory
    with region(4096) as (_, key):
        register("r", key, 1024, offset=100)
        assert api.regions()["r"] == {"name": "r", "key": key, "offset": 100, "byte_size": 1024}
        assert api.refusal(register, "r", key, 8) == ("400", "shared memory region 'r' already in manager")
        register("again", f"/{key}", 4096)
        bad = ("400", "failed to register shared memory region 's': invalid args")
        for nbytes, offset in ((4097, 0), (4096, 1), (1, 4096), (0, 0), (2**63, 0), (2**64 - 1, 1), (8, 2**64 - 8)):
            assert api.refusal(register, "s", key, nbytes, offset=offset) == bad
        assert api.refusal(register, "s", "shoal-not-there", 8) == (
            "500", "Unable to open shared memory region: 'shoal-not-there'")  # fmt: skip
        for odd in ("", "/", ".", "//..", "a/b", "/../../etc/passwd", "a\0b", "sem.x", "é", "a b", "x" * 300):
            said = odd if len(odd) < 300 else f"{'x' * 40}…"
            assert api.refusal(register, "s", odd, 8) == (
                "400", f"cannot register shared memory region 's' - invalid shm key '{said}'")  # fmt: skip
        reserved = "//triton_python_backend_shm_region_1"
        status, sentence = api.refusal(register, "s", reserved, 8)
        assert (status, f"with key '{reserved}' as the key contains the reserved prefix" in sentence) == ("400", True)
        assert set(api.regions()) == {"again", "r"}
        status_of = api.client.get_cuda_shared_memory_status
        assert api.refusal(status_of, "r") == (
            "404", "The region named 'r' is registered as system shared memory, not CUDA shared memory")  # fmt: skip
        api.client.unregister_system_shared_memory("r")
        api.client.unregister_system_shared_memory("r")
        assert api.refusal(api.client.get_system_shared_memory_status, "r") == (
            "404", "Unable to find system shared memory region: 'r'")  # fmt: skip
        assert set(api.regions()) == {"again"}


def test_memory_of_gpus_is_refused(api: Api) -> None:
    register = api.client.register_cuda_shared_memory
    assert api.refusal(register, "r", b"AA==", 0, 8) == (
        "400", "failed to register CUDA shared memory region: 'r', GPUs not supported")  # fmt: skip
    api.client.unregister_cuda_shared_memory("r")
    api.client.unregister_cuda_shared_memory()


def test_places_that_are_not_there(api: Api) -> None:
    def ask(place: tuple[Any, ...], result: tuple[Any, ...] = ("r", 16, 16)) -> tuple[str, str]:
        outputs = [api.output("OUT", *result)]
        return api.refusal(api.client.infer, "same", [api.input("IN", [4], "FP32", *place)], outputs=outputs)

    with region(64) as (_, key):
        api.client.register_system_shared_memory("r", key, 32, offset=16)
        offset = ("400", "Invalid offset for shared memory region: 'r'")
        size = ("400", "Invalid offset + byte size for shared memory region: 'r'")
        assert ask(("x", 16)) == ("404", "Unable to find shared memory region: 'x'")
        assert ask(("r", 16, 32)) == ask(("r", 0, 2**63 - 1)) == offset
        assert ask(("r", 33)) == ask(("r", 16, 17)) == ask(("r", 2**63 - 1, 1)) == size
        assert ask(("r", 16), ("y", 16)) == ("404", "Unable to find shared memory region: 'y'")
        assert ask(("r", 16), ("r", 16, 17)) == size
        assert ask(("r", 8))[1].endswith("input byte size mismatch for input 'IN' for model 'same'. Expected 16, got 8")
        assert ask(("r", 16), ("r", 12, 16)) == (
            "500", "shared memory size specified with the request for output 'OUT' (12 bytes) should be at least 16 "
            "bytes to hold the results")  # fmt: skip


def test_a_region_that_is_cut_short_is_its_clients_fault(api: Api) -> None:
    with region(64) as (_, key), region(64) as (_, result_key):
        api.client.register_system_shared_memory("r", key, 64)
        api.client.register_system_shared_memory("s", result_key, 64)
        inputs = [api.input("IN", [16], "FP32", "r", 64)]
        os.truncate(f"/dev/shm/{key}", 60)
        short = ("400", "Invalid offset + byte size for shared memory region: 'r'")
        assert api.refusal(api.client.infer, "same", inputs) == short
        os.truncate(f"/dev/shm/{key}", 64)
        assert api.client.infer("same", inputs).as_numpy("OUT").tolist() == [0] * 16
        os.truncate(f"/dev/shm/{result_key}", 60)
        refused = api.refusal(api.client.infer, "same", inputs, outputs=[api.output("OUT", "s", 64)])
        assert refused == ("400", "Invalid offset + byte size for shared memory region: 's'")
        assert os.stat(f"/dev/shm/{result_key}").st_size == 60  # nothing has made it longer


def test_a_name_that_is_registered_again_means_the_new_object(api: Api) -> None:
    """Calls alike on one connection, which lanes recognise by their bytes."""
    inputs, outputs = [api.input("IN", [4], "FP32", "data", 16)], [api.output("OUT", "data", 16, 16)]
    for number in (1, 2):
        with region(32) as (handle, key):
            api.client.register_system_shared_memory("data", key, 32)
            for each in range(5):
                values = np.full(4, 10 * number + each, np.float32)
                shm.set_shared_memory_region(handle, [values])
                api.client.infer("same", inputs, outputs=outputs)
                assert np.array_equal(numbers(handle, 4, 16), values)
            api.client.unregister_system_shared_memory("data")
            status, _ = api.refusal(api.client.infer, "same", inputs, outputs=outputs)
            assert status == "404"


def test_every_front_end_knows_every_region(server: Server) -> None:
    over_http, over_grpc = client_of(server, "http"), client_of(server, "grpc")
    lanes = [client_of(server, "http") for _ in range(8)]  # connections of both lanes, most likely
    with region(64) as (handle, key):
        shm.set_shared_memory_region(handle, [np.arange(8, dtype=np.float32)])
        over_grpc.client.register_system_shared_memory("r", key, 64)
        for each in (over_http, over_grpc, *lanes):
            assert set(each.regions()) == {"r"}
            place = each.input("IN", [8], "FP32", "r", 32)
            assert each.client.infer("same", [place]).as_numpy("OUT").tolist() == list(range(8))
        # Whoever takes a dead one's place is told.
        before = {pid for pid in server.children if title(pid).startswith(("shoal http", "shoal grpc", "shoal road"))}
        assert len(before) >= 4
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        for kind in ("http", "grpc"):
            assert set(_when_it_is_back(server, kind, Api.regions)) == {"r"}
        _when_it_is_back(server, "http", lambda each: each.client.unregister_system_shared_memory("r"))
        for kind in ("http", "grpc"):
            assert _when_it_is_back(server, kind, Api.regions) == {}
    for each in (over_http, over_grpc, *lanes):
        each.client.close()


def _when_it_is_back(server: Server, kind: str, ask: Callable[[Api], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while True:
        api = client_of(server, kind)
        try:
            return ask(api)
        except (InferenceServerException, OSError, http.client.HTTPException):
            assert time.monotonic() < end
            time.sleep(LOOK_AGAIN_S)
        finally:
            api.client.close()


def test_an_unregistered_region_serves_the_requests_that_have_it(api: Api, server: Server, gate: Gate) -> None:
    begun = gate.path.with_name("gate.begun")
    begun.unlink(missing_ok=True)
    inputs, outputs = [api.input("IN", [8], "FP32", "r", 32)], [api.output("OUT", "r", 32, 32)]

    def ask() -> Any:  # tritonclient's HTTP client belongs to the thread that made it
        asker = client_of(server, api.kind)
        try:
            return asker.client.infer("gated", inputs, outputs=outputs)
        finally:
            asker.client.close()

    with region(64) as (handle, key), region(128) as (other, other_key), ThreadPoolExecutor(1) as pool:
        api.client.register_system_shared_memory("r", key, 64)
        shm.set_shared_memory_region(handle, [np.arange(8, dtype=np.float32)])
        asked = pool.submit(ask)
        wait_until(begun.exists)
        assert not asked.done()
        api.client.unregister_system_shared_memory("r")
        refused = api.refusal(api.client.infer, "same", inputs)
        assert refused == ("404", "Unable to find shared memory region: 'r'")
        api.client.register_system_shared_memory("r", other_key, 128)
        with gate.opened():
            asked.result(DEADLINE_S)
        assert numbers(handle, 8, 32).tolist() == list(range(8))
        assert numbers(other, 32).tolist() == [0] * 32


@pytest.mark.parametrize("num_mib", [4, 20])
def test_large_tensors(api: Api, num_mib: int) -> None:
    """What a lane has no block for takes the road."""
    count = num_mib * MIB // 4
    values = np.random.default_rng(1).random(count, dtype=np.float32)
    with region(2 * num_mib * MIB) as (handle, key):
        api.client.register_system_shared_memory("r", key, 2 * num_mib * MIB)
        shm.set_shared_memory_region(handle, [values])
        api.client.infer(
            "same",
            [api.input("IN", [count], "FP32", "r", num_mib * MIB)],
            outputs=[api.output("OUT", "r", num_mib * MIB, num_mib * MIB)],
        )
        assert np.array_equal(numbers(handle, count, num_mib * MIB), values)
