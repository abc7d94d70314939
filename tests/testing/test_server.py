"""A server in the test's own process: asking, time, what is loaded and what is refused."""

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import CancelledError, InternalError, InvalidArgumentError, NotFoundError, UnavailableError
from shoal.testing import Server
from tests.testing.models import DECOUPLED, DELAYED, DOUBLE, write_identity, write_python

SAMPLES = Path(__file__).parents[2] / "model_repository"
ROW = [[1.0, 2.0]]


def test_a_repository_has_all_its_models_and_a_directory_one() -> None:
    with Server(SAMPLES, ["simple", "digits"]) as server:
        assert server.models == ["digits", "simple"]
    with Server(SAMPLES / "simple") as server:
        assert server.models == ["simple"]
        assert server.config("simple")["max_batch_size"] == 8


def test_the_response_is_that_of_the_model() -> None:
    rows = np.arange(32, dtype=np.int32).reshape(2, 16)
    with Server(SAMPLES / "simple") as server:
        response = server.infer("simple", {"INPUT0": rows, "INPUT1": rows}, outputs=["OUTPUT0"], request_id="7")
        assert (response.model_name, response.model_version, response.id) == ("simple", 1, "7")
        assert list(response) == ["OUTPUT0"]
        assert np.array_equal(response["OUTPUT0"], 2 * rows)


def test_an_onnx_model_without_a_configuration_is_completed_from_its_file() -> None:
    with Server(SAMPLES / "digits") as server:
        response = server.infer("digits", {"image": np.zeros((3, 64), np.float32)})
        assert response["label"].shape == (3, 1)  # with its reshape undone
        assert response["probabilities"].shape == (3, 10)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "expected 1 inputs but got 0 inputs"),
        ({"Z": ROW}, "unexpected inference input 'Z'"),
        ({"X": np.zeros((1, 2))}, "data-type is 'FP64', but model 'echo' expects 'FP32'"),
        ({"X": [[1.0, 2.0, 3.0]]}, r"Expected \[-1,2\], got \[1,3\]"),
        ({"X": [["a", "b"]]}, "cannot be a tensor of FP32"),
        ({"X": np.zeros((9, 2), np.float32)}, "batch-size must be <= 8"),
    ],
    ids=["none", "another", "datatype", "shape", "text", "batch"],
)
def test_a_request_is_refused_as_a_client_s(tmp_path: Path, inputs: dict[str, object], sentence: str) -> None:
    write_identity(tmp_path)
    with Server(tmp_path) as server:
        with pytest.raises(InvalidArgumentError, match=sentence):
            server.infer("echo", inputs)
        server.run_until_idle()
        assert server.batches == []


def test_an_unknown_model_is_not_found(tmp_path: Path) -> None:
    write_identity(tmp_path)
    with Server(tmp_path) as server:
        with pytest.raises(NotFoundError, match="unknown model: 'other' is not found"):
            server.infer("other", {})
        with pytest.raises(NotFoundError, match="version 2 is not found"):
            server.infer("echo", {"X": ROW}, version=2)
    with pytest.raises(NotFoundError, match=r"there is no model 'other' in '.*'; it has: echo"):
        Server(tmp_path, ["other"])


def test_nothing_runs_before_time_passes(tmp_path: Path) -> None:
    write_identity(tmp_path)
    with Server(tmp_path) as server:
        future = server.submit("echo", {"X": ROW})
        assert not future.done
        server.advance()
        assert future.done
        assert future.responses[0]["Y"].tolist() == ROW


def test_requests_share_a_batch_once_the_delay_is_over(tmp_path: Path) -> None:
    write_identity(tmp_path, config=DELAYED)
    with Server(tmp_path) as server:
        first = server.submit("echo", {"X": ROW}, request_id="first")
        server.advance(microseconds=999)
        second = server.submit("echo", {"X": [[3, 4], [5, 6]]}, request_id="second")
        assert server.batches == []
        server.advance(microseconds=1)
        [batch] = server.batches
        assert (batch.model, batch.instance, batch.rows, batch.time_ms) == ("echo", "echo_0", 3, 1.0)
        assert batch.request_ids == ("first", "second")
        assert first.result()["Y"].tolist() == ROW
        assert second.result()["Y"].tolist() == [[3, 4], [5, 6]]


def test_waiting_for_an_answer_lets_the_delay_pass(tmp_path: Path) -> None:
    write_identity(tmp_path, config=DELAYED)
    with Server(tmp_path) as server:
        server.infer("echo", {"X": ROW})
        assert server.now_ms == 1.0


def test_an_execution_takes_as_long_as_the_test_says(tmp_path: Path) -> None:
    write_identity(tmp_path, config="max_batch_size: 8\ninstance_group [ { count: 2 kind: KIND_CPU } ]")
    with Server(tmp_path, execution_ms={"echo": 5}) as server:
        futures = [server.submit("echo", {"X": ROW}) for _ in range(3)]
        server.advance(milliseconds=4)
        assert [batch.instance for batch in server.batches] == ["echo_0_0", "echo_0_1"]
        assert [future.done for future in futures] == [False, False, False]
        server.advance(milliseconds=1)
        assert [future.done for future in futures] == [True, True, False]
        server.run_until_idle()
        assert [batch.time_ms for batch in server.batches] == [0, 0, 5]
        assert server.now_ms == 10


@pytest.mark.parametrize("kind", ["coroutine", "senders"])
def test_an_execution_that_senders_answer_takes_as_long(tmp_path: Path, kind: str) -> None:
    coroutine = """
    async def execute(self, requests):
        return [answer(x_of(request).as_numpy()) for request in requests]
"""
    senders = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(answer(x_of(request).as_numpy()))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_python(
        tmp_path, "slow", coroutine if kind == "coroutine" else senders, "" if kind == "coroutine" else DECOUPLED
    )
    with Server(tmp_path, execution_ms={"slow": 5}) as server:
        futures = [server.submit("slow", {"X": ROW[0]}) for _ in range(2)]
        server.advance(milliseconds=4)
        assert [future.done for future in futures] == [False, False]
        server.run_until_idle()
        assert [batch.time_ms for batch in server.batches] == [0, 5]
        assert server.now_ms == 10


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 1000 default_queue_policy { max_queue_size: 2 } }"
    write_identity(tmp_path, config=f"max_batch_size: 8 {batching}")
    with Server(tmp_path) as server:
        for _ in range(2):
            server.submit("echo", {"X": ROW})
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            server.submit("echo", {"X": ROW})
        server.run_until_idle()
        assert [batch.rows for batch in server.batches] == [2]


def test_a_request_is_cancelled_while_it_waits(tmp_path: Path) -> None:
    write_identity(tmp_path, config=DELAYED)
    with Server(tmp_path) as server:
        future = server.submit("echo", {"X": ROW})
        future.cancel()
        assert future.done
        with pytest.raises(CancelledError):
            future.result()
        server.advance(milliseconds=2)
        assert server.batches == []


def test_a_model_is_loaded_again_with_another_configuration_and_unloaded(tmp_path: Path) -> None:
    write_identity(tmp_path)
    with Server(tmp_path) as server:
        waiting = server.submit("echo", {"X": ROW})
        config = (
            '{"backend": "identity", "input": [{"name": "A", "data_type": "TYPE_INT8", "dims": [1]}],'
            ' "output": [{"name": "B", "data_type": "TYPE_INT8", "dims": [1]}]}'
        )
        server.load("echo", config)
        with pytest.raises(UnavailableError, match="is not at ready state"):
            waiting.result()
        assert server.infer("echo", {"A": [5]})["B"].tolist() == [5]
        with pytest.raises(InvalidArgumentError):
            server.load("echo", '{"backend": "nonsense"}')
        assert server.infer("echo", {"A": [6]})["B"].tolist() == [6]
        server.unload("echo")
        assert server.models == []
        with pytest.raises(NotFoundError):
            server.infer("echo", {"A": [5]})


def test_what_a_gpu_would_serve_runs_on_the_cpu(tmp_path: Path) -> None:
    write_identity(tmp_path, config="max_batch_size: 8\ninstance_group [ { count: 1 kind: KIND_GPU gpus: [ 0 ] } ]")
    with Server(tmp_path) as server:
        assert server.infer("echo", {"X": ROW})["Y"].tolist() == ROW


def test_bf16_is_given_and_returned_as_floats(tmp_path: Path) -> None:
    write_identity(tmp_path)
    config = tmp_path / "echo" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "TYPE_BF16"))
    with Server(tmp_path) as server:
        assert server.infer("echo", {"X": [[1.0, -2.0]]})["Y"].tolist() == [[1.0, -2.0]]
        assert server.infer("echo", {"X": np.array([[1.0, 3.0]], np.float32)})["Y"].dtype == np.float32


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(answer(x_of(request).as_numpy()), 1)
"""
    write_python(tmp_path, "sends", code, DECOUPLED)
    write_python(tmp_path, "double", DOUBLE)
    gc.collect()
    threads, descriptors = threading.active_count(), os.listdir("/proc/self/fd")
    server = Server(tmp_path)
    with server:
        assert server.stream("sends", {"X": ROW[0]})[0]["Y"].tolist() == ROW[0]
        assert server.infer("double", {"X": ROW})["Y"].tolist() == [[2, 4]]
        assert threading.active_count() == threads
    star = weakref.ref(server._star)
    del server
    gc.collect()
    assert star() is None, "and with it all memory"
    assert os.listdir("/proc/self/fd") == descriptors


def test_versions_that_were_loaded_before_one_that_cannot_be_are_unloaded(tmp_path: Path) -> None:
    finalize = f"""
    def finalize(self):
        open({str(tmp_path / "finalized")!r}, "w").close()
"""
    write_python(tmp_path / "models", "double", DOUBLE + finalize, "version_policy { all { } }")
    (tmp_path / "models" / "double" / "2").mkdir()
    (tmp_path / "models" / "double" / "2" / "model.py").write_text("raise OSError('no weights')")
    with pytest.raises(InternalError, match="no weights"):
        Server(tmp_path / "models")
    assert (tmp_path / "finalized").exists()


def test_a_model_that_unloads_itself_answers_first(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        pb_utils.unload_model("passing")
        return [answer(x_of(requests[0]).as_numpy())]
"""
    write_python(tmp_path, "passing", code)
    with Server(tmp_path, execution_ms={"passing": 5}) as server:
        running, waiting = (server.submit("passing", {"X": ROW}) for _ in range(2))
        assert running.result()["Y"].tolist() == ROW
        with pytest.raises(UnavailableError, match="is not at ready state"):
            waiting.result()
        assert server.models == []


def test_a_server_serves_a_coroutine(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        await asyncio.sleep(1)
        return [answer(x_of(request).as_numpy()) for request in requests]
"""
    write_python(tmp_path, "slow", code)

    async def cell() -> list[list[float]]:
        with Server(tmp_path) as server:
            values: list[list[float]] = server.infer("slow", {"X": ROW})["Y"].tolist()
        return values

    assert asyncio.run(cell()) == ROW


def test_a_request_expires_on_the_clock_of_the_test(tmp_path: Path) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 3000 allow_timeout_override: true }"
    write_identity(tmp_path, config=f"max_batch_size: 1 dynamic_batching {{ {policy} }}")
    with Server(tmp_path, execution_ms={"echo": 10}) as server:
        futures = [server.submit("echo", {"X": ROW}, timeout_us=timeout_us) for timeout_us in (0, 0, 1000)]
        server.advance(milliseconds=1)
        assert [bool(future.errors) for future in futures] == [False, False, True]
        server.advance(milliseconds=2)
        with pytest.raises(UnavailableError, match=r"^Request timeout expired$"):
            futures[1].result()
        assert futures[0].result()["Y"].tolist() == ROW


def test_responses_keep_the_order_of_their_requests(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        arrays = [x_of(request).as_numpy() for request in requests]
        await asyncio.sleep(float(arrays[0][0, 0]))
        return [answer(array) for array in arrays]
"""
    write_python(tmp_path, "slow", code, config="max_batch_size: 1 dynamic_batching { preserve_ordering: true }")
    with Server(tmp_path) as server:
        futures = [server.submit("slow", {"X": [[seconds, 0]]}) for seconds in (60, 1)]
        server.advance(seconds=59)
        assert [future.done for future in futures] == [False, False]
        server.advance(seconds=1)
        assert [future.result()["Y"][0, 0] for future in futures] == [60, 1]


@pytest.mark.parametrize(("ragged", "sizes"), [("true", [[2, 3]]), ("false", [[2], [3]])])
def test_a_ragged_input_may_differ_within_a_batch(tmp_path: Path, ragged: str, sizes: list[list[int]]) -> None:
    code = """
    def execute(self, requests):
        return [answer(x_of(request).as_numpy()) for request in requests]
"""
    version = write_python(tmp_path, "ragged", code, config="max_batch_size: 8 dynamic_batching { }")
    config = version.parent / "config.pbtxt"
    tensors = config.read_text().replace("dims: [ 2 ]", "dims: [ -1 ]")
    config.write_text(tensors.replace("dims: [ -1 ]", f"dims: [ -1 ] allow_ragged_batch: {ragged}", 1))
    with Server(tmp_path) as server:
        futures = [server.submit("ragged", {"X": [[7.0] * size]}, request_id=f"{size}") for size in (2, 3)]
        assert [future.result()["Y"].shape for future in futures] == [(1, 2), (1, 3)]
        assert [[int(id_) for id_ in batch.request_ids] for batch in server.batches] == sizes
