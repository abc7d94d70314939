"""Instances that are threads of one worker process: on a real server, from the load to the unload."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch, infer
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, serving_to_the_end, title, wait_until

#: Passes three requests only if all three are inside at once, in one process.
MODEL = """
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

ALL = threading.Barrier(3)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            wish = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().item()
            if wish == 2:
                threading.Event().wait()
            if wish == 1:
                ALL.wait(60)
            if wish == 3:
                os._exit(3)
            if wish == 4:
                ALL.wait(60)
                if threading.current_thread() is not threading.main_thread():
                    raise SystemExit(5)
            said = np.array([os.getpid(), threading.get_native_id(), len(os.sched_getaffinity(0))], np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", said)]))
        return responses
"""
SHARED = 'parameters { key: "instances_share_process" value { string_value: "true" } }'
CONFIG = config_text("python", "X INT32 1", "Y INT64 3", SHARED, count=3)
LIMITED = f'{CONFIG} parameters {{ key: "execution_timeout_ms" value {{ string_value: "500" }} }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_model(repository, "threads", CONFIG, MODEL)
    add_model(repository, "limited", LIMITED, MODEL)
    onnx = add_model(
        repository, "mlp", f'platform: "onnxruntime_onnx" {SHARED} instance_group {{ count: 3 kind: KIND_CPU }}'
    )
    (onnx / "model.onnx").write_bytes((SAMPLES / "mlp" / "1" / "model.onnx").read_bytes())
    with serving_to_the_end(repository, "--model-control-mode=explicit", "--load-model=*") as running:
        yield running


def wish(server: Server, number: int, model: str = "threads") -> list[int]:
    said: list[int] = infer(server, model, {"X": np.array([number], np.int32)})["Y"].tolist()
    return said


def instances(server: Server, model: str = "threads") -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = fetch(server.http_port, f"/v2/repository/models/{model}/instances").json["versions"][
        0
    ]["instances"]
    return told


def are_up(server: Server, count: int, model: str = "threads") -> bool:
    return [each["state"] for each in instances(server, model)] == ["up"] * count


def test_three_instances_are_threads_of_one_process_and_execute_at_once(server: Server) -> None:
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda _: wish(server, 1), range(3)))
    assert len({pid for pid, _, _ in said}) == 1
    assert len({thread for _, thread, _ in said}) == 3
    told = instances(server)
    assert {each["pid"] for each in told} == {said[0][0]}
    assert [each["name"] for each in told] == ["threads_0_0", "threads_0_1", "threads_0_2"]
    assert {cores for _, _, cores in said} == {len(each["cores"]) for each in told}
    assert title(said[0][0]).endswith("shared)")


def test_onnx_instances_share_a_session(server: Server) -> None:
    with ThreadPoolExecutor(6) as pool:
        inputs = fetch(server.http_port, "/v2/models/mlp").json["inputs"]
        rows = np.zeros([1, *inputs[0]["shape"][1:]], np.float32)
        answers = list(pool.map(lambda _: infer(server, "mlp", {inputs[0]["name"]: rows}), range(24)))
    assert len(answers) == 24
    assert len({each["pid"] for each in instances(server, "mlp")}) == 1


def test_the_memory_of_the_process_counts_once(server: Server) -> None:
    (version,) = fetch(server.http_port, "/v2/repository/models/mlp/instances").json["versions"]
    assert 1 << 20 < version["memory_bytes"] < 2 * version["instances"][0]["rss_bytes"]
    assert version["gpu_memory_bytes"] == {}


def test_scaling_changes_the_number_of_threads(server: Server) -> None:
    (pid,) = {each["pid"] for each in instances(server)}
    before = num_threads(pid)
    path = "/v2/repository/models/threads/instances"
    assert fetch(server.http_port, path, {"count": 5}).status == 200
    assert num_threads(pid) == before + 2
    assert are_up(server, 5)
    assert {each["pid"] for each in instances(server)} == {pid}
    assert fetch(server.http_port, path, {"count": 3}).status == 200
    wait_until(lambda: num_threads(pid) == before)
    assert are_up(server, 3)
    assert wish(server, 0)[0] == pid


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_a_death_is_that_of_all_instances_and_says_so(server: Server) -> None:
    before = instances(server)
    with pytest.raises(InferenceServerException) as error:
        wish(server, 3)
    assert "other instances of the model share that process" in str(error.value)
    wait_until(lambda: are_up(server, 3) and instances(server)[0]["pid"] != before[0]["pid"])
    assert len({each["pid"] for each in instances(server)}) == 1
    assert [each["restarts"] for each in instances(server)] == [each["restarts"] + 1 for each in before]
    with ThreadPoolExecutor(3) as pool:
        assert len({thread for _, thread, _ in pool.map(lambda _: wish(server, 1), range(3))}) == 3


def test_a_model_that_calls_exit_in_a_thread_ends_the_process_with_that_status(server: Server) -> None:
    (pid,) = {each["pid"] for each in instances(server)}
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(wish, server, 4) for _ in range(3)]
        errors = [error for each in answers if (error := each.exception(DEADLINE_S))]
    assert len(errors) >= 2
    assert all(f"(pid {pid}) exited with code 5 while executing" in str(each) for each in errors), errors
    wait_until(lambda: are_up(server, 3) and instances(server)[0]["pid"] != pid)


def test_a_hanging_batch_is_found_in_its_own_thread(server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(wish, server, 2, "limited")
        error = hanging.exception(DEADLINE_S)
    assert "took longer than the limit of 500 ms" in str(error)
    wait_until(lambda: are_up(server, 3, "limited"))
    assert wish(server, 0, "limited")


def test_an_unload_ends_the_process(server: Server) -> None:
    (pid,) = {each["pid"] for each in instances(server, "mlp")}
    assert fetch(server.http_port, "/v2/repository/models/mlp/unload", {}).status == 200
    deadline_s = time.monotonic() + DEADLINE_S
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline_s
