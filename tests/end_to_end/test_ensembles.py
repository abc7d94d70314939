"""Ensembles through a whole server and Triton's client: graphs of Python and ONNX models, their faults and reloads."""

import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as triton

from tests.end_to_end import raw_client
from tests.end_to_end.asking import Array, tensors
from tests.end_to_end.asking import outputs as outputs_of
from tests.end_to_end.ensemble_models import MODELS, step, write_counting, write_ensemble, write_model
from tests.end_to_end.segments import copies
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, imbalances, only, samples, serving, title, wait_until


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ensembles")
    for name, body in MODELS.items():
        write_model(path, name, body)
    write_model(path, "flat", "return given(request) + 1", batch=0)
    write_ensemble(
        path,
        "fan",
        step("double", {"X": "X"}, {"Y": "twice"}),
        step("triple", {"X": "X"}, {"Y": "thrice"}),
        step("add", {"A": "twice", "B": "thrice"}, {"Y": "Y"}),
        outputs=("twice", "Y"),
    )
    write_ensemble(
        path, "checked", step("double", {"X": "X"}, {"Y": "twice"}), step("picky", {"X": "twice"}, {"Y": "Y"})
    )
    write_ensemble(path, "located", step("double", {"X": "X"}, {"Y": "t"}), step("where", {"X": "t"}, {"Y": "Y"}))
    write_ensemble(path, "waiting", step("double", {"X": "X"}, {"Y": "t"}), step("slow", {"X": "t"}, {"Y": "Y"}))
    write_ensemble(
        path,
        "nested",
        step("fan", {"X": "X"}, {"twice": "a", "Y": "b"}),
        step("add", {"A": "a", "B": "b"}, {"Y": "Y"}),
        outputs=("a", "Y"),
    )
    write_ensemble(path, "mixed", step("flat", {"X": "X"}, {"Y": "t"}), step("flat", {"X": "t"}, {"Y": "Y"}), batch=0)
    write_ensemble(
        path,
        "pictures",
        step("double", {"X": "X"}, {"Y": "twice"}),
        step("digits", {"image": "twice"}, {"probabilities": "p"}),
        step("triple", {"X": "p"}, {"Y": "Y"}),
        outputs=("twice", "p", "Y"),
    )
    write_counting(path)
    write_ensemble(
        path,
        "streaming",
        step("double", {"X": "X"}, {"Y": "twice"}),
        step("count", {"X": "twice"}, {"Y": "each"}),
        step("triple", {"X": "each"}, {"Y": "t"}),
        step("add", {"A": "t", "B": "twice"}, {"Y": "Y"}),
        more="max_inflight_requests: 2",
    )
    write_ensemble(path, "chain", step("double", {"X": "X"}, {"Y": "t"}), step("double", {"X": "t"}, {"Y": "Y"}))
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    names = "fan", "checked", "located", "waiting", "nested", "mixed", "text_ensemble", "streaming", "pictures"
    # Small slabs, since all of them are searched.
    flags = "--grpc-port=0", "--shm-client-slab-mib=8", "--shm-worker-slab-mib=8"
    with serving([repository, SAMPLES], *flags, *only(*names)) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))


@pytest.fixture
def client(server: Server) -> Iterator[Any]:  # its type hints say None where it never is
    with triton.InferenceServerClient(server.url, concurrency=8) as client:
        yield client


def infer(client: Any, model: str, array: Array, *outputs: str, **more: Any) -> list[Array]:
    """The outputs of the answer, in their order."""
    wanted = [triton.InferRequestedOutput(name) for name in outputs] or None
    return list(outputs_of(client.infer(model, tensors({"X": array}), outputs=wanted, **more)).values())


X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def statistics(client: Any, model: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get_inference_statistics(model)["model_stats"][0]
    return found


def test_three_models_of_python_and_onnx_are_one(client: Any) -> None:
    texts = np.array([[b"will it rain in the mountains tomorrow"], [b"a cake with butter"]], object)
    given = triton.InferInput("text", [2, 1], "BYTES").set_data_from_numpy(texts)
    result = client.infer("text_ensemble", [given], request_id="r")
    assert result.as_numpy("label").tolist() == [[b"weather"], [b"food"]]
    assert result.as_numpy("probability").shape == (2, 1)
    assert result.get_response()["id"] == "r"
    assert client.get_model_metadata("text_ensemble")["platform"] == "ensemble"


def test_steps_fan_out_and_in(client: Any) -> None:
    twice, total = infer(client, "fan", X)
    np.testing.assert_array_equal(twice, X * 2)
    np.testing.assert_array_equal(total, X * 5)


def test_what_follows_a_stream_runs_once_for_each_answer(server: Server, client: Any) -> None:
    """Many at once, so that answers of one request are executed together and lie in one block."""
    assert client.get_model_config("streaming")["model_transaction_policy"] == {"decoupled": True}
    told: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as streaming:
        streaming.start_stream(lambda result, error: told.put((result, error)))
        for number in range(8):
            array = np.array([[number, 1, 2]], np.float32)
            given = grpc.InferInput("X", [1, 3], "FP32").set_data_from_numpy(array)
            streaming.async_stream_infer("streaming", [given], request_id=str(number), enable_empty_final_response=True)
        answers: dict[str, list[Any]] = {str(number): [] for number in range(8)}
        num_open = 8
        while num_open:
            result, error = told.get(timeout=DEADLINE_S)
            assert error is None
            response = result.get_response()
            num_open -= response.parameters["triton_final_response"].bool_param
            if response.outputs:
                answers[response.id].append(result.as_numpy("Y"))
    for number in range(8):
        twice = np.array([[2 * number, 2, 4]], np.float32)
        expected = [(3 * (twice + each) + twice).tolist() for each in range(2 * number)]
        assert sorted([each.tolist() for each in answers[str(number)]]) == expected
    with pytest.raises(triton.InferenceServerException, match="decoupled transaction policy"):
        infer(client, "streaming", X)


def test_without_batches(client: Any) -> None:
    (result,) = infer(client, "mixed", X[0])
    np.testing.assert_array_equal(result, X[0] + 2)


def test_large_tensors_go_beside_the_slabs(client: Any) -> None:
    large = np.arange(6 << 20, dtype=np.float32).reshape(1, -1) % 1000  # 24 MiB, in and out
    twice, total = infer(client, "fan", large)
    np.testing.assert_array_equal(twice, large * 2)
    np.testing.assert_array_equal(total, large * 5)


def test_what_a_step_reads_lies_in_memory_of_the_one_before(client: Any) -> None:
    for rows in (1, 2):
        (is_shared,) = infer(client, "located", np.ones((1, 1000 * rows), np.float32))
        assert is_shared.tolist() == [[1.0]]


def test_an_intermediate_tensor_is_nowhere_but_where_it_was_written(server: Server, client: Any) -> None:
    """Counted in all memory of the server: what models of Python and ONNX write lies in their workers' memory, once."""
    image = np.random.default_rng().uniform(1, 9, (1, 64)).astype(np.float32)
    given = triton.InferInput("X", [1, 64], "FP32").set_data_from_numpy(image)
    result = client.infer("pictures", [given])
    twice, probabilities, total = (result.as_numpy(name) for name in ("twice", "p", "Y"))
    np.testing.assert_array_equal(twice, image * 2)
    np.testing.assert_allclose(total, probabilities * 3)
    searched = [each.tobytes() for each in (image, twice, probabilities, total)]
    assert copies(server.process.pid, *searched) == [["client"], ["worker"], ["worker"], ["worker"]]


def ask_fan(url: str, number: int, count: int) -> None:
    """From a thread of its own: a client is for one."""
    with triton.InferenceServerClient(url) as own:
        for each in range(number * count, (number + 1) * count):
            array = np.full((1, 1 + each % 3), each, np.float32)
            twice, total = infer(own, "fan", array)
            np.testing.assert_array_equal(twice, array * 2)
            np.testing.assert_array_equal(total, array * 5)


def test_many_requests_at_once(server: Server, client: Any) -> None:
    before = statistics(client, "fan")["inference_stats"]["success"]["count"]
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(ask_fan, server.url, number, 20) for number in range(8)]:
            each.result()
    assert statistics(client, "fan")["inference_stats"]["success"]["count"] - before == 160


def test_the_whole_and_its_steps_are_counted(server: Server, client: Any) -> None:
    before = {name: statistics(client, name) for name in ("fan", "double", "triple", "add")}
    infer(client, "fan", X)
    after = {name: statistics(client, name) for name in before}
    for name, counted in after.items():
        assert counted["inference_count"] - before[name]["inference_count"] == 2, name
        assert counted["execution_count"] - before[name]["execution_count"] == 1, name
    stages = "compute_input", "compute_infer", "compute_output"
    spent = {
        (name, stage): after[name]["inference_stats"][stage]["ns"] - before[name]["inference_stats"][stage]["ns"]
        for name in after
        for stage in stages
    }
    for stage in stages:  # the whole's is the sum over its steps
        assert spent["fan", stage] == sum(spent[name, stage] for name in ("double", "triple", "add"))
    figures = samples(server.metrics_port)
    assert figures['nv_inference_count{model="fan",version="1"}'] == after["fan"]["inference_count"]
    assert figures['nv_inference_pending_request_count{model="fan",version="1"}'] == 0


def test_a_killed_worker_of_a_step(server: Server, client: Any) -> None:
    died = r"in ensemble 'checked', .*Stub process 'picky_0' is not healthy"
    with pytest.raises(triton.InferenceServerException, match=died):
        infer(client, "checked", np.full((1, 1), 6.5, np.float32))
    until_ready(client, "checked")
    (result,) = infer(client, "checked", X)
    np.testing.assert_array_equal(result, X * 2)


def until_ready(client: Any, model: str) -> None:
    wait_until(lambda: client.is_model_ready(model), lambda: f"{model} does not become ready")


def test_who_hangs_up_ends_the_steps(server: Server, client: Any) -> None:
    before = statistics(client, "slow")["inference_stats"]["fail"]["count"]
    num_doubled = statistics(client, "double")["inference_stats"]["success"]["count"]
    body = b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}'
    head = b"POST /v2/models/waiting/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    waiting = raw_client.Client(server).send(head, body)
    wait_until(lambda: statistics(client, "double")["inference_stats"]["success"]["count"] > num_doubled)
    waiting.reset()
    wait_until(
        lambda: statistics(client, "slow")["inference_stats"]["fail"]["count"] > before,
        lambda: "the step was not told that nobody waits",
    )


def test_a_reload_of_a_step_is_seen_at_once_and_costs_no_request(repository: Path, server: Server, client: Any) -> None:
    stop = threading.Event()

    def ask() -> int:
        num_asked = 0
        with triton.InferenceServerClient(server.url) as own:
            while not stop.is_set():
                (total,) = infer(own, "fan", X, "Y")
                assert np.array_equal(total, X * 5) or np.array_equal(total, X * 12), total
                num_asked += 1
        return num_asked

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for factor in (10, 3):
                write_model(repository, "triple", f"return given(request) * {factor}")
                client.load_model("triple")
                (total,) = infer(client, "fan", X, "Y")
                np.testing.assert_array_equal(total, X * (2 + factor))
        finally:
            stop.set()
        assert all(each.result() > 0 for each in asking)


def test_an_ensemble_is_ready_only_while_its_models_are(repository: Path, client: Any) -> None:
    client.unload_model("triple")
    assert not client.is_model_ready("fan")
    reasons = {
        each["name"]: (each.get("state"), each.get("reason", "")) for each in client.get_model_repository_index()
    }
    assert reasons["fan"] == (
        "UNAVAILABLE",
        "Invalid argument: ensemble 'fan' depends on 'triple' which has no loaded version.",
    )
    assert reasons["nested"][0] == "UNAVAILABLE"
    with pytest.raises(triton.InferenceServerException, match="'fan' has no available versions"):
        infer(client, "fan", X)
    client.load_model("triple")
    _, total = infer(client, "nested", X)
    np.testing.assert_array_equal(total, X * 7)


def test_a_load_brings_its_models_and_an_unload_takes_them(client: Any) -> None:
    client.load_model("chain")
    (result,) = infer(client, "chain", X)
    np.testing.assert_array_equal(result, X * 4)
    client.unload_model("chain", unload_dependents=True)
    assert client.is_model_ready("double")  # others need it
    client.unload_model("waiting", unload_dependents=True)
    assert not client.is_model_ready("slow")
    assert client.is_model_ready("double")
    client.load_model("waiting")
    assert client.is_model_ready("slow")


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (
            [step("double", {"X": "X"}, {"Y": "a"}), step("absent", {"X": "a"}, {"Y": "Y"})],
            "ensemble wrong contains models that are not available or ambiguous: absent",
        ),
        (
            [step("double", {"X": "X"}, {"Y": "Y"}, version=0)],
            "ensemble 'wrong' depends on 'double' whose required version 0 is not loaded.",
        ),
        (
            [step("wrong", {"X": "X"}, {"Y": "Y"})],
            "circular dependency between ensembles: wrong -> wrong. Remove one of these steps from the "
            "'ensemble_scheduling' of its ensemble",
        ),
    ],
    ids=("absent", "version", "circle"),
)
def test_what_is_no_dataflow_is_refused(repository: Path, client: Any, steps: list[str], sentence: str) -> None:
    write_ensemble(repository, "wrong", *steps)
    with pytest.raises(triton.InferenceServerException) as refused:
        client.load_model("wrong")
    index = {each["name"]: each.get("reason", "") for each in client.get_model_repository_index()}
    assert sentence in f"{refused.value} {index['wrong']}"
    assert client.is_model_ready("double")


def test_the_batcher_dies(server: Server, client: Any) -> None:
    (batcher,) = [pid for pid in server.children if title(pid) == "shoal batcher"]
    is_dead = threading.Event()

    def ask_on(number: int) -> None:
        """Until what was asked after the death has been answered, or refused because of it."""
        is_last = False
        while not is_last:
            is_last = is_dead.is_set()
            try:
                ask_fan(server.url, number, 1)
            except triton.InferenceServerException as error:  # steps of Python may not run again
                assert "another batcher has taken the place" in str(error)
                return

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask_on, number) for number in range(3)]
        os.kill(batcher, signal.SIGKILL)
        is_dead.set()
        for each in asking:
            each.result()
    answers: list[list[np.ndarray[Any, Any]]] = []
    for _ in range(1 + sum(title(pid) == "shoal http" for pid in server.children)):
        try:
            answers.append(infer(client, "nested", X))
        except triton.InferenceServerException as error:  # of each lane one, asked before it knew of the death
            assert "another batcher has taken the place" in str(error)
    np.testing.assert_array_equal(answers[-1][1], X * 7)
