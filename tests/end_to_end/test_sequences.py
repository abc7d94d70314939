"""Sequences as clients meet them, over HTTP and gRPC: states, flags and ids as models see them, and their ends."""

import os
import queue
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from shoal import Client
from tests.end_to_end.sequence_models import write_models
from tests.end_to_end.server import DEADLINE_S, Server, await_standby, serving_to_the_end, title

#: One request: model, number, id, flags as tritonclient calls them. Gives Y, and TOLD where the model tells anything.
Ask = Callable[..., tuple[int, str]]
FIRST, LAST = {"sequence_start": True}, {"sequence_end": True}


@pytest.fixture(scope="module")
def client_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("client") / "socket"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, client_path: Path) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving_to_the_end(repository, "--grpc-port=0", f"--client-socket={client_path}") as running:
        yield running


def asker(module: Any, url: str) -> tuple[Ask, Any]:
    client = module.InferenceServerClient(url)

    def ask(model: str, number: int, sequence_id: int | str = 0, **flags: Any) -> tuple[int, str]:
        tensor = module.InferInput("X", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), number, np.int32))
        answer = client.infer(model, [tensor], sequence_id=sequence_id, **flags)
        told = answer.as_numpy("TOLD")
        return int(answer.as_numpy("Y")[0, 0]), "" if told is None else told[0, 0].decode()

    return ask, client


@pytest.fixture(params=["http", "grpc"])
def ask(server: Server, request: pytest.FixtureRequest) -> Iterator[Ask]:
    of_grpc = triton_grpc, f"127.0.0.1:{server.grpc_port}"
    asked, client = asker(*(of_grpc if request.param == "grpc" else (triton_http, server.url)))
    yield asked
    client.close()


def refusal(ask: Ask, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InferenceServerException) as caught:
        ask(*args, **kwargs)
    return str(caught.value.message())


@pytest.mark.parametrize("model", ["plain", "direct", "onnx"])
def test_interleaved_sequences_have_states_of_their_own(ask: Ask, model: str) -> None:
    sums = dict.fromkeys((7, 8, 9), 0)
    for step in range(3):
        for key in sums:
            flags = {"sequence_start": step == 0, "sequence_end": step == 2}
            sums[key] += 10 * key + step
            assert ask(model, 10 * key + step, key, **flags)[0] == sums[key]


def test_many_sequences_at_once(server: Server) -> None:
    """More than there are slots, from as many clients."""

    def run(key: int) -> list[int]:
        ask, client = asker(triton_http, server.url)
        with client:
            return [
                ask(model, key + step, key, sequence_start=step == 0, sequence_end=step == 3)[0]
                for model in ("direct", "onnx", "plain")
                for step in range(4)
            ]

    with ThreadPoolExecutor(12) as pool:
        for key, sums in enumerate(pool.map(run, range(1, 25)), 1):
            assert sums == 3 * [key, 2 * key + 1, 3 * key + 3, 4 * key + 6]


def test_what_a_model_is_told(ask: Ask) -> None:
    assert ask("direct", 1, 2**40 + 5, **FIRST) == (1, "0 5 0")
    assert ask("direct", 2, 2**40 + 5) == (3, "0 5 0")
    assert ask("direct", 2, 2**40 + 5, **LAST) == (5, "0 5 1")
    assert ask("plain", 1, 6, **FIRST) == (1, "6 1")
    assert ask("plain", 1, 6) == (2, "6 0")
    assert ask("plain", 1, 6, **LAST) == (3, "6 2")
    assert ask("plain", 1, "six", **FIRST, **LAST) == (1, "'six' 3")


def test_ids_may_be_strings(ask: Ask) -> None:
    keys = ["a", "b", "a" * 128, "é"]
    for step in range(3):
        for number, key in enumerate(keys):
            total = ask("oldest", number, key, sequence_start=step == 0, sequence_end=step == 2)
            assert total == (number * (step + 1), key)


def test_a_row_without_a_request_is_not_ready(server: Server) -> None:
    """The second slot has a request and the first has none."""
    ask, client = asker(triton_http, server.url)
    with client:
        ask("direct", 1, 1, **FIRST)
        ask("direct", 2, 2, **FIRST)
        assert ask("direct", 3, 2) == (5, "1 2 0")
        assert ask("direct", 3, 2, **LAST) == (8, "1 2 1")
        assert ask("direct", 4, 1, **LAST) == (5, "0 1 1")
        model = client.get_inference_statistics("direct")["model_stats"][0]
        assert 2 in [each["batch_size"] for each in model["batch_stats"]]


def test_states_pass_from_request_to_request(ask: Ask) -> None:
    for model in ("state", "onnx_ten"):
        assert ask(model, 1, 5, **FIRST)[0] == 11
        assert ask(model, 2, 6, **FIRST)[0] == 12
        assert ask(model, 3, 5)[0] == 14
        assert ask(model, 1, 5, **FIRST)[0] == 11  # START begins again
        assert ask(model, 4, 6, **LAST)[0] == 16
        assert ask(model, 4, 5, **LAST)[0] == 15
        assert ask(model, 1, 6, **FIRST, **LAST)[0] == 11


def test_refusals_have_tritons_sentences(ask: Ask) -> None:
    not_started = (
        "inference request for sequence {} to model 'plain' must specify the START flag on the first request of the "
        "sequence"
    )
    assert refusal(ask, "plain", 1, 99) == not_started.format(99)
    assert refusal(ask, "plain", 1, "no") == not_started.format("no")
    missing = "inference request to model 'plain' must specify a non-zero or non-empty correlation ID"
    assert refusal(ask, "plain", 1) == missing
    assert refusal(ask, "oldest", 1, 5, **FIRST) == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'UINT64', but model 'oldest' expects "
        "'BYTES'"
    )
    ask("plain", 1, 98, **FIRST, **LAST)
    assert refusal(ask, "plain", 1, 98) == not_started.format(98)


def test_a_request_is_one_row(server: Server) -> None:
    with triton_http.InferenceServerClient(server.url) as client:
        one_row = "inference request to model 'plain' must specify batch-size 1 due to requirements of sequence batcher"
        no_row = "input byte size mismatch for input 'X' for model 'plain'. Expected 4, got 0"  # what Triton sees first
        for rows, refusal in ((0, no_row), (2, one_row)):
            tensor = triton_http.InferInput("X", [rows, 1], "INT32")
            tensor.set_data_from_numpy(np.zeros((rows, 1), np.int32))
            with pytest.raises(InferenceServerException) as caught:
                client.infer("plain", [tensor], sequence_id=1, sequence_start=True)
            assert caught.value.message().removeprefix("[request id: <id_unknown>] ") == refusal


def test_an_idle_sequence_ends_makes_room_and_is_forgotten(ask: Ask) -> None:
    assert ask("brief", 1, 1, **FIRST) == (1, "1")
    assert ask("brief", 5, 2, **FIRST) == (5, "1")  # waits for the only slot
    assert "must specify the START flag" in refusal(ask, "brief", 1, 1)


def test_an_iterative_request_is_run_again(ask: Ask) -> None:
    assert ask("again", 1) == (1, "1")
    assert ask("again", 4) == (4, "1 0 0 0")


def test_streams(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))

        def sums(model: str, number: int, key: Any, **flags: Any) -> list[int]:
            tensor = triton_grpc.InferInput("X", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.full((1, 1), number, np.int32))
            client.async_stream_infer(model, [tensor], sequence_id=key, **flags)
            got = [answers.get(timeout=DEADLINE_S) for _ in range(number + 1 if model == "stream" else 1)]
            return [int(each.as_numpy("Y")[0, 0]) for each in got]

        for model in ("plain", "onnx"):
            assert sums(model, 3, 41, **FIRST) == [3]
            assert sums(model, 4, 41) == [7]
            assert sums(model, 5, 41, **LAST) == [12]
        assert sums("stream", 2, "s", **FIRST) == [0, 1, 2]
        assert sums("stream", 3, "s", **LAST) == [0, 1, 2, 5]
        client.stop_stream()


def test_a_guest_takes_part(server: Server, client_path: Path) -> None:
    with Client(client_path) as guest:
        row = np.ones((1, 1), np.int32)
        ask, client = asker(triton_http, server.url)
        with client:
            for key in (51, "fifty-one"):
                assert guest.infer("plain", {"X": row}, sequence_id=key, sequence_start=True)["Y"][0, 0] == 1
                assert ask("plain", 1, key)[0] == 2  # the same sequence, through a front end
                assert guest.infer("plain", {"X": row}, sequence_id=key, sequence_end=True)["Y"][0, 0] == 3


def test_a_dead_instance_ends_its_sequences(server: Server) -> None:
    ask, client = asker(triton_http, server.url)
    with client:
        ask("plain", 1, 77, **FIRST)
        server.read_on()
        start = len(server.log)
        (worker,) = [pid for pid in server.children if title(pid).startswith("shoal worker plain_0_0")]
        os.kill(worker, signal.SIGKILL)
        # First: a sequence that is begun before the batcher knows of the death ends with the instance, too.
        assert "the sequence 77 of model 'plain' has ended with the instance" in refusal(ask, "plain", 1, 77)
        assert server.read_log(b"instance 'plain_0_0' (pid ", start=start)
        assert ask("plain", 5, 78, **FIRST, **LAST)[0] == 5  # by another
        assert ask("plain", 2, 77, **FIRST, **LAST)[0] == 2


def test_sequences_survive_a_batchers_death(server: Server) -> None:
    """Twice: what the second successor knows, the first has written down."""
    ask, client = asker(triton_http, server.url)
    with client:
        for model in ("plain", "direct", "onnx"):
            ask(model, 1, 81, **FIRST)
            ask(model, 10, 82, **FIRST)
        for number in (1, 2):
            (batcher,) = [pid for pid in await_standby(server) if title(pid) == "shoal batcher"]
            os.kill(batcher, signal.SIGKILL)
            for model in ("plain", "direct", "onnx"):
                assert ask(model, 1, 81)[0] == 1 + number
                assert ask(model, 10, 82)[0] == 10 + 10 * number
        for model in ("plain", "direct", "onnx"):
            assert ask(model, 1, 81, **LAST)[0] == 4
            assert ask(model, 10, 82, **LAST)[0] == 40
            assert "must specify the START flag" in refusal(ask, model, 1, 81)


def test_the_configuration_is_tritons(server: Server) -> None:
    with triton_http.InferenceServerClient(server.url) as client:
        assert client.get_model_config("again")["sequence_batching"] == {
            "oldest": {
                "max_candidate_sequences": 0,
                "preferred_batch_size": [4],
                "max_queue_delay_microseconds": 0,
                "preserve_ordering": False,
            },
            "max_sequence_idle_microseconds": 1000000,
            "control_input": [],
            "state": [],
            "iterative_sequence": True,
        }
