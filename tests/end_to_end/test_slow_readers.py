"""A model whose results are held, by clients that read slowly or not at all, or that look into them: it answers others.

One lane, a slab of four results and memory for a few more.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import Client as Guest
from shoal.frontend.grpc.messages import service
from tests.end_to_end.raw_client import Client, post
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import Server, imbalances, serving_to_the_end
from tests.end_to_end.window_client import WindowClient

NUM_FLOATS = 1_500_000
#: An answer of 6 MB: more than the kernel takes for a client that reads nothing.
BIG = config_text("python", "A FP32 1", f"B FP32 {NUM_FLOATS}", count=1)
BIG_PY = python_model(f"""
    def execute(self, requests):
        return [self._answer(each) for each in requests]

    def _answer(self, request):
        number = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("B", np.full({NUM_FLOATS}, number, np.float32))])
""")
#: Answers of any size: its slab has 8 MiB, and the odd page.
ANY = config_text("identity", "A UINT8 -1", "B UINT8 -1", count=1)
#: Calls that one, and keeps every answer.
KEEPER = config_text("python", "A UINT8 -1", "B INT32 1", count=1)
KEEPER_PY = python_model("""
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        return [self._answer(each) for each in requests]

    def _answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
        inputs = [pb_utils.Tensor("A", array)]
        call = pb_utils.InferenceRequest(model_name="any", requested_output_names=["B"], inputs=inputs)
        self.kept.append(pb_utils.get_output_tensor_by_name(call.exec(), "B"))
        if not len(array):
            self.kept.clear()
        return pb_utils.InferenceResponse([pb_utils.Tensor("B", np.array([len(self.kept)], np.int32))])
""")
MIB = 1 << 20
NUM_READERS = 32
INFER, RESOURCE_EXHAUSTED = "/inference.GRPCInferenceService/ModelInfer", "8"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where guests find the server."""
    return str(tmp_path_factory.mktemp("client") / "sock")


@pytest.fixture(scope="module")
def server(path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository: Path = tmp_path_factory.mktemp("models")
    for name, config, code in (("big", BIG, BIG_PY), ("any", ANY, ""), ("keeper", KEEPER, KEEPER_PY)):
        add_model(repository, name, config, code)
    flags = ["--grpc-port=0", "--http-process-count=1", "--shm-oversize-mib=64", f"--client-socket={path}"]
    with serving_to_the_end(repository, *flags) as running:
        yield running


def big(number: int) -> bytes:
    """A request to the model, for an answer in binary that is all that number."""
    asked: dict[str, Any] = {
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [number]}],
        "parameters": {"binary_data_output": True},
    }
    return post("big", json.dumps(asked).encode())


def big_on_road(number: int) -> bytes:
    """The same in a chunk, which a lane hands to the road."""
    head, _, body = big(number).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"])
    return head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def grpc_big(number: int) -> bytes:
    """The same over gRPC."""
    request = service.ModelInferRequest(model_name="big")
    request.inputs.add(name="A", datatype="FP32", shape=[1])
    request.raw_input_contents.append(np.array([number], np.float32).tobytes())
    return bytes(request.SerializeToString())


def is_right(client: Client, number: int) -> bool:
    """Whether the answer that the client is owed is whole."""
    reply = client.reply()
    tensor = reply.body[int(reply.headers.get("inference-header-content-length", 0)) :]
    return reply.status == 200 and tensor == np.full(NUM_FLOATS, number, np.float32).tobytes()


def test_clients_that_read_nothing_hold_up_no_other(server: Server) -> None:
    readers = [Client(server, receive_buffer=4096) for _ in range(NUM_READERS)]
    for number, reader in enumerate(readers):
        reader.send(big(number))
        assert reader.socket.recv(8) == b"HTTP/1.1"  # its answer is on its way, and goes no further
        reader.data = b"HTTP/1.1"
    with ThreadPoolExecutor(2) as pool, Client(server) as one, Client(server) as another:
        answers = pool.map(
            lambda client: [is_right(client.send(big(number)), number) for number in range(20)], (one, another)
        )
        assert [all(each) for each in answers] == [True, True]
    # There was memory for half of them: the others were given up, the longest first, and the log has their number.
    assert server.read_log(b"connections of clients that read too slowly, longest first"), server.log.decode()
    assert is_right(readers[-1], NUM_READERS - 1)
    for reader in readers:
        reader.socket.close()
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_clients_of_the_road_that_read_nothing_hold_up_no_other(server: Server) -> None:
    readers = [Client(server, receive_buffer=4096) for _ in range(NUM_READERS)]
    for number, reader in enumerate(readers):
        reader.send(big_on_road(number))
        assert reader.socket.recv(8) == b"HTTP/1.1"  # its answer is on its way, and goes no further
    with Client(server) as another:
        assert all(is_right(another.send(big(number)), number) for number in range(20))
    for reader in readers:
        reader.socket.close()
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_calls_whose_responses_are_not_read_hold_up_no_other(server: Server) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(WindowClient(server.grpc_port)) for _ in range(NUM_READERS)]
        for number, reader in enumerate(readers):
            reader.call(INFER, grpc_big(number), ends=True)
        with Client(server) as another:
            assert all(is_right(another.send(big(number)), number) for number in range(20))
        statuses = set()
        for number, reader in enumerate(readers):
            reader.open_windows()
            status = reader.trailers(1)["grpc-status"]
            if status == "0":
                (message,) = reader.messages(1)
                (tensor,) = service.ModelInferResponse.FromString(message).raw_output_contents
                assert tensor == np.full(NUM_FLOATS, number, np.float32).tobytes()
            statuses.add(status)
        assert statuses == {"0", RESOURCE_EXHAUSTED}
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_one_small_result_that_is_held_keeps_no_large_one_waiting(server: Server, path: str) -> None:
    large = np.arange(7 * MIB, dtype=np.uint32).astype(np.uint8)
    with Guest(path) as guest, Guest(path) as other:
        held = guest.infer("any", {"A": large[:100]}, copy=False)["B"]
        session = guest._connected()
        for _ in range(3):
            assert np.array_equal(other.infer("any", {"A": large})["B"], large)
        assert guest._connected() is session  # nobody had to go
        assert np.array_equal(held, large[:100])
        del held


def test_a_model_that_keeps_its_calls_answers_holds_up_no_client(server: Server, path: str) -> None:
    """Half of the memory beside the slab, and four blocks of the slab, are what a caller can have."""
    kept = np.full(2 * MIB - 4096, 7, np.uint8)
    with Guest(path) as guest:
        counts = [int(guest.infer("keeper", {"A": kept})["B"][0]) for _ in range(8)]
        assert counts == list(range(1, 9))
        for nbytes in (100, 2 * MIB - 4096, 7 * MIB):
            asked = np.full(nbytes, 3, np.uint8)
            assert np.array_equal(guest.infer("any", {"A": asked})["B"], asked)
        assert guest.infer("keeper", {"A": kept[:0]})["B"].tolist() == [0]
