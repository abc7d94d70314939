"""A model whose only instance is being started again: requests wait for it, whichever way they came, until it is up or
has failed."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from shoal import Client
from shoal.errors import UnavailableError
from tests.end_to_end.asking import infer
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, serving_to_the_end, title

CONFIG = config_text("python", "A INT32 1", "B INT32 1", count=1)
#: Up once its gate lets it pass, unless it is broken; asked itself, it answers, and with 1 it asks the model `gated` in
#: its place.
MODEL = python_model("""
    def initialize(self, args):
        open(f"{args['model_repository']}/gate").close()
        assert not os.path.exists(f"{args['model_repository']}/broken")

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "A")) for each in requests]

    def answer(self, tensor):
        if tensor.as_numpy()[0] == 1:
            inputs = [pb_utils.Tensor("A", tensor.as_numpy() + 1)]
            asked = pb_utils.InferenceRequest(model_name="gated", requested_output_names=["B"], inputs=inputs)
            answered = asked.exec()
            assert not answered.has_error(), answered.error().message()
            return pb_utils.InferenceResponse(answered.output_tensors())
        return pb_utils.InferenceResponse([pb_utils.Tensor("B", tensor.as_numpy())])
""")
CALL, ANSWER = 1, 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for name in ("gated", "caller"):
        add_model(repository, name, CONFIG, MODEL)
    return repository


@pytest.fixture(scope="module")
def gates(repository: Path) -> dict[str, Gate]:
    """Where each of the two models stands still before it is up."""
    return {name: Gate(repository / name / "gate") for name in ("gated", "caller")}


@pytest.fixture(scope="module")
def server(repository: Path, gates: dict[str, Gate]) -> Iterator[Server]:
    flags = "--grpc-port=0", f"--client-socket={repository.parent}/socket"
    with gates["caller"].opened(), gates["gated"].opened(), serving_to_the_end(repository, *flags) as server:
        yield server


def ask_http(server: Server, model: str = "gated", word: int = ANSWER) -> int:
    return int(infer(server, model, {"A": np.full(1, word, np.int32)})["B"][0])


def ask_grpc(server: Server) -> int:
    return int(infer(server, "gated", {"A": np.full(1, ANSWER, np.int32)}, tritonclient.grpc)["B"][0])


def ways_to_ask(server: Server, client: Client) -> list[Callable[[], int]]:
    """HTTP, gRPC, shared memory, and a model that asks another."""

    def ask_client() -> int:
        return int(client.infer("gated", {"A": np.full(1, ANSWER, np.int32)})["B"][0])

    ways: list[Callable[[], int]] = [
        lambda: ask_http(server), lambda: ask_grpc(server), ask_client, lambda: ask_http(server, "caller", CALL),
    ]  # fmt: skip
    assert [ask() for ask in ways] == [ANSWER] * len(ways)  # client and caller have joined
    return ways


def ask_without_an_instance(
    server: Server, ways: Sequence[Callable[[], int]], pool: ThreadPoolExecutor
) -> "list[Future[int]]":
    """The only instance is killed, and its successor waits at the closed gate, as all the requests do for it."""
    (worker,) = [pid for pid in descendants(server.process.pid) if title(pid).startswith("shoal worker gated_0_0")]
    start = len(server.log)
    os.kill(worker, signal.SIGKILL)
    assert server.read_log(b"instance 'gated_0_0' (pid", start=start)
    asked = [pool.submit(ask) for ask in ways]
    wait_for_pending(server, "gated", len(ways))
    return asked


def test_requests_wait_for_it(server: Server, gates: dict[str, Gate], repository: Path) -> None:
    with Client(f"{repository.parent}/socket") as client, ThreadPoolExecutor(4) as pool:
        ways = ways_to_ask(server, client)
        with gates["gated"].closed():
            asked = ask_without_an_instance(server, ways, pool)
        assert [each.result(DEADLINE_S) for each in asked] == [ANSWER] * len(ways)


def test_requests_are_told_that_it_does_not_come_up_again(
    server: Server, gates: dict[str, Gate], repository: Path
) -> None:
    """The last test: the model does not come up again."""
    with Client(f"{repository.parent}/socket") as client, ThreadPoolExecutor(4) as pool:
        ways = ways_to_ask(server, client)
        with gates["gated"].closed():
            (repository / "gated" / "broken").touch()
            asked = ask_without_an_instance(server, ways, pool)
        for each in asked:
            failure = each.exception(DEADLINE_S)
            assert isinstance(failure, (InferenceServerException, UnavailableError))
            assert "Model 'gated' version 1 is unavailable: all its instances died again and again" in str(failure)
