"""--record on a real server: what clients asked and got is in the files, a replay answers the same bits, and a crash
leaves a file with which an instance crashes again."""

import json
import os
import queue
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from shoal import Client
from shoal.errors import InternalError
from shoal.recorder.entry import Outcome
from shoal.recorder.recorded import RecordedRequest, Recording, batches
from shoal.recorder.segment_file import FILE_HEAD
from tests.end_to_end.asking import fetch, infer, tensors
from tests.end_to_end.command_line import SHOAL, run_here
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    SAMPLES,
    Server,
    await_standby,
    only,
    samples,
    serving_to_the_end,
    title,
    wait_until,
)

BATCHED = """
backend: "python"
max_batch_size: 3
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { max_queue_delay_microseconds: 60000000 }
"""
#: A batch of the value 13 anywhere ends the instance, as a fault in native code does.
CRASHING = python_model("""
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        if any((each == 13).any() for each in arrays):
            os.abort()
        batch_size = np.float32(len(arrays))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each * batch_size / np.float32(3.7))])
            for each in arrays
        ]
""")
VECTORS = config_text("python", "text_input STRING -1", "embedding FP32 1")
VECTORS_CODE = python_model("""
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("embedding", np.ones(1, np.float32))]) for _ in requests]
""")
#: The samples that are asked, and the steps of the ensemble among them.
MODELS = ("simple", "repeat_int32", "text_ensemble", "tokenizer", "encoder", "postprocessing")
#: Requests to `simple` before the crash: by HTTP, with a secret, and those of `speak_with_headers`.
NUM_SIMPLE = 20 + 1 + 5 * 3 + 2 * 3
SECRET = "a secret that no file may have"
GUILTY = 13.0


class Recorded(NamedTuple):
    """A server that has recorded, and still runs; a copy of what it had recorded before a crash, and the crash's
    file."""

    server: Server
    repository: Path
    folder: Path
    before: Path
    death: Path


def has_recorded(folder: Path, ids: set[str]) -> bool:
    return ids <= {each.id for each in Recording(folder)}


def requests_in(folder: Path) -> list[RecordedRequest]:
    return list(Recording(folder)) if folder.exists() else []


def together(client: Client, *values: float) -> list[object]:
    """The answers to requests with these values that wait for each other in one batch."""

    def ask(value: float) -> object:
        try:
            return client.infer("batched", {"INPUT0": np.full((1, 4), value, np.float32)}, request_id=f"{value:g}")
        except InternalError as error:
            return error

    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(ask, values))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder, repository = tmp_path_factory.mktemp("recorded") / "files", tmp_path_factory.mktemp("models")
    add_model(repository, "batched", BATCHED, CRASHING)
    for name in MODELS:
        shutil.copytree(SAMPLES / name, repository / name)
    settings = ("redact=parameters.token", "max-size=64MiB", "headers=X-User, traceparent")
    flags = [f"--record={folder}", *[f"--record-config={each}" for each in settings]]
    add_model(repository, "vectors", VECTORS, VECTORS_CODE)
    models = only("vectors", "batched", "simple", "repeat_int32", "text_ensemble")
    with serving_to_the_end(repository, *models, *flags, "--grpc-port=0", "--poison-refusal-secs=0") as server:
        row = np.arange(16, dtype=np.int32).reshape(1, 16)
        for number in range(20):
            infer(server, "simple", {"INPUT0": row + number, "INPUT1": row}, request_id=f"http-{number}")
        values = {"datatype": "INT32", "shape": [1, 16], "data": row.ravel().tolist()}
        tensors = [{"name": name, **values} for name in ("INPUT0", "INPUT1")]
        asked = {"parameters": {"token": SECRET, "kept": 7}, "inputs": tensors}
        assert fetch(server.http_port, "/v2/models/simple/infer", asked).status == 200
        speak_with_headers(server)
        wrong = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}
        assert fetch(server.http_port, "/v2/models/simple/infer", wrong).status == 400  # refused before the batcher
        with Client(server.client_socket) as client:
            for _ in range(3):
                together(client, 1.0, 2.0, 3.0)
            no_delay = {"DELAY": np.array([0, 0], np.uint32), "WAIT": np.array([0], np.uint32)}
            inputs = {"IN": np.array([4, 2], np.int32), **no_delay}
            assert len(list(client.stream("repeat_int32", inputs))) == 2
            texts = {"text": np.array([["school of fish"]], dtype=object)}
            client.infer("text_ensemble", texts)
            wait_until(lambda: any(each.model == "text_ensemble" for each in requests_in(folder)))
            before = shutil.copytree(folder, folder.parent / "before")
            errors = together(client, 5.0, GUILTY, 6.0)
            assert all(isinstance(each, InternalError) for each in errors)
        wait_until(lambda: bool(list(folder.glob("*died*"))))
        wait_until(lambda: len(requests_in(next(folder.glob("*died*")))) >= 6)
        yield Recorded(server, repository, folder, before, next(folder.glob("*died*")))


def speak_with_headers(server: Server) -> None:
    """Requests with and without recorded headers: on a lane, known and not, on the road, and over gRPC, in streams
    too; to `vectors` by OpenAI's API."""
    zeros = np.zeros((1, 16), np.int32)
    values = {"datatype": "INT32", "shape": [1, 16], "data": zeros.ravel().tolist()}
    asked = {"inputs": [{"name": name, **values} for name in ("INPUT0", "INPUT1")]}
    for number in range(3):
        for user, more in ((f"http-{number}", {}), (f"road-{number}", {"TE": "trailers"}), ("", {})):
            headers = {"X-User": user, "X-Other": "not asked for", **more} if user else {}
            body = {**asked, "id": user or f"bare-{number}"}
            assert fetch(server.http_port, "/v2/models/simple/infer", body, headers=headers).status == 200
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        inputs = tensors({"INPUT0": zeros, "INPUT1": zeros}, api=tritonclient.grpc)
        for number in range(3):
            client.infer("simple", inputs, request_id=f"grpc-{number}", headers={"x-user": f"grpc-{number}"})
            client.infer("simple", inputs, request_id=f"grpc-bare-{number}")
        for stream, metadata in (("stream", {"x-user": "stream"}), ("stream-bare", None)):
            answers = queue.SimpleQueue[Any]()
            client.start_stream(lambda result, error, answers=answers: answers.put(error), headers=metadata)
            for number in range(3):
                client.async_stream_infer("simple", inputs, request_id=f"{stream}-{number}")
                assert answers.get(timeout=DEADLINE_S) is None
            client.stop_stream()
    headers = {"X-User": "embeddings", "X-Request-Id": "embeddings"}
    assert fetch(server.http_port, "/v1/embeddings", {"model": "vectors", "input": "a"}, headers=headers).status == 200


def test_what_clients_asked_and_got_is_recorded(recorded: Recorded) -> None:
    found = [each for each in Recording(recorded.before) if each.model == "simple"]
    assert [each.id for each in found][:21] == [*[f"http-{number}" for number in range(20)], ""]
    assert {each.outcome for each in found} == {Outcome.OK}
    third = found[3]
    assert third.asker == "front end"
    assert third.version == 1
    inputs = {each.name: each.array().tolist() for each in third.inputs}
    assert inputs == {"INPUT0": [list(range(3, 19))], "INPUT1": [list(range(16))]}
    (response,) = third.responses
    outputs = {each.name: each.array().ravel().tolist() for each in response.outputs}
    assert outputs["OUTPUT0"] == [2 * number + 3 for number in range(16)]
    assert outputs["OUTPUT1"] == [3] * 16
    assert abs(third.arrival_ns - time.time_ns()) < 3600e9
    points = third.points
    assert 0 < points.start_ns <= points.end_ns
    assert points.compute_start_ns <= points.compute_end_ns


def test_the_headers_on_the_list_are_recorded(recorded: Recorded) -> None:
    found = [each for each in Recording(recorded.before) if each.model == "simple"][21:]
    users = {each.id: dict(each.headers) for each in found}
    ways, numbers = ("http", "road", "grpc"), range(3)
    with_headers = {f"{way}-{number}": {"x-user": f"{way}-{number}"} for way in ways for number in numbers}
    in_stream = {f"stream-{number}": {"x-user": "stream"} for number in numbers}
    bare = ("bare", "grpc-bare", "stream-bare")
    without = {f"{way}-{number}": dict[str, str]() for way in bare for number in numbers}
    assert users == with_headers | in_stream | without
    (embedding,) = [each for each in Recording(recorded.before) if each.model == "vectors"]
    assert dict(embedding.headers) == {"x-user": "embeddings"}
    shown = run_here("records", f"{recorded.before}#{found[0].number}")
    assert "header      x-user: http-0" in shown.stdout


def test_batches_are_recorded_with_their_order(recorded: Recorded) -> None:
    found = [each for each in Recording(recorded.before) if each.model == "batched"]
    assert [len(each) for each in batches(found)] == [3, 3, 3]
    for batch in batches(found):
        executions = [each.execution for each in batch if each.execution is not None]
        assert [(each.position, each.num_requests, each.rows, each.instance) for each in executions] == [
            (index, 3, 3, "batched_0_0") for index in range(3)
        ]
        assert {each.id for each in batch} == {"1", "2", "3"}


def test_streams_ensembles_and_their_steps_are_recorded(recorded: Recorded) -> None:
    found = list(Recording(recorded.before))
    (stream,) = [each for each in found if each.model == "repeat_int32"]
    outputs = [{each.name: each.array().ravel().tolist() for each in response.outputs} for response in stream.responses]
    assert [each["OUT"] for each in outputs] == [[4], [2]]
    ensemble = [each for each in found if each.model == "text_ensemble"]
    steps = [each for each in found if each.asker == "ensemble"]
    assert len(ensemble) == 1
    assert ensemble[0].responses[0].outputs
    assert len(steps) >= 2
    assert all(each.inputs and each.responses[0].outputs for each in steps)


def test_redacted_parameters_are_in_no_file(recorded: Recorded) -> None:
    found = list(Recording(recorded.folder))
    assert {"kept": 7} in [each.parameters for each in found]
    assert all(SECRET not in str(each.parameters) for each in found)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in recorded.folder.iterdir())


def test_a_replay_answers_the_same_bits(recorded: Recorded) -> None:
    against = ("--against", recorded.server.client_socket)
    simple = run_here("replay", recorded.before, *against, "--model", "simple", "--json")
    assert simple.returncode == 0, (simple.stdout, simple.stderr)
    told = json.loads(simple.stdout)
    assert (told["requests"], told["equal"], told["differences"]) == (NUM_SIMPLE, NUM_SIMPLE, [])
    # a batch of three waits for its third request: all come at once
    batched = ("--model", "batched", "--speed", "0", "--json")
    done = run_here("replay", recorded.before, *against, *batched)
    assert (done.returncode, json.loads(done.stdout)["equal"]) == (0, 9), (done.stdout, done.stderr)


def test_the_exact_batches_answer_the_same_bits_in_process(recorded: Recorded) -> None:
    asked = ("--repo", recorded.repository, "--model", "batched", "--json")
    exact = run_here("replay", recorded.before, "--exact-batches", *asked)
    told = json.loads(exact.stdout)
    assert (exact.returncode, told["equal"], told["batches_not_as_recorded"]) == (0, 9, 0), exact.stderr
    # each answer depends on the size of its batch
    alone = run_here("replay", recorded.before, *asked)
    told = json.loads(alone.stdout)
    assert (alone.returncode, told["values_differ"]) == (2, 9), alone.stderr
    near = run_here("replay", recorded.before, *asked, "--compare", "atol=100")
    assert near.returncode == 0, near.stdout


def test_a_crash_leaves_the_batch_that_caused_it(recorded: Recorded) -> None:
    found = list(Recording(recorded.death))
    died = [each for each in found if each.outcome is Outcome.DIED]
    assert sorted([each.id for each in died]) == ["13", "5", "6"]
    assert {each.execution.num_requests for each in died if each.execution is not None} == {3}
    assert all(each.error is not None and "SIGABRT" in str(each.error) for each in died)
    assert {each.model for each in found} == {"batched"}
    assert [each.outcome for each in found].count(Outcome.OK) == 9  # the seconds before


def test_a_recorded_crash_crashes_again_in_process(recorded: Recorded) -> None:
    number = next(each.number for each in Recording(recorded.death) if each.id == "6" and each.outcome is Outcome.DIED)
    for arguments in (
        ["run", str(recorded.repository / "batched"), "--record", f"{recorded.death}#{number}"],
        ["replay", str(recorded.death), "--repo", str(recorded.repository), "--exact-batches"],
    ):
        done = subprocess.run([*SHOAL, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == -signal.SIGABRT, (done.stdout, done.stderr)


def test_a_recorded_crash_crashes_again_in_a_server(recorded: Recorded) -> None:
    start = len(recorded.server.log)
    done = run_here("replay", recorded.death, "--against", recorded.server.client_socket, "--speed", "0", "--json")
    assert recorded.server.read_log(b"SIGABRT", start=start)
    told = json.loads(done.stdout)
    guilty = [each.number for each in Recording(recorded.death) if each.id == "13"]
    assert not [each for each in told["differences"] if each["number"] in guilty], told


def test_records_are_counted(recorded: Recorded) -> None:
    found = samples(recorded.server.metrics_port)
    counted = found['shoal_recorded_requests_total{model="simple",version="1"}']
    assert counted >= NUM_SIMPLE
    assert found['shoal_record_dropped_total{model="simple",version="1"}'] == 0


def test_records_are_listed_shown_and_exported(recorded: Recorded, tmp_path: Path) -> None:
    listed = run_here("records", recorded.before, "--model", "simple")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == NUM_SIMPLE + 1
    shown = run_here("records", f"{recorded.before}#2")
    assert "INPUT0  INT32 [1, 16]" in shown.stdout
    assert "OUTPUT1" in shown.stdout
    run_here("records", f"{recorded.before}#2", "--export", "npz", "--output", tmp_path / "two.npz")
    with np.load(tmp_path / "two.npz") as arrays:
        assert arrays["input/INPUT0"].tolist() == [list(range(1, 17))]
        assert {*arrays} == {"input/INPUT0", "input/INPUT1", "output/OUTPUT0", "output/OUTPUT1"}
    exported = run_here("records", recorded.before, "--model", "simple", "--export", "perf-analyzer").stdout
    assert json.loads(exported)["data"][0]["INPUT0"] == {"content": list(range(16)), "shape": [16]}
    lines = run_here("records", recorded.before, "--export", "json").stdout.splitlines()
    assert json.loads(lines[0])["inputs"][0]["data"]


def test_a_truncated_file_is_read_up_to_the_damage(recorded: Recorded, tmp_path: Path) -> None:
    (file,) = [path for path in recorded.before.iterdir() if "died" not in path.name]
    data = file.read_bytes()
    (tmp_path / "cut.shoalrec").write_bytes(data + data[FILE_HEAD.size : -7])
    listed = run_here("records", tmp_path / "cut.shoalrec")
    assert listed.returncode == 2
    assert len(listed.stdout.splitlines()) > 10
    assert "it ends in a frame" in listed.stderr


def test_deaths_of_the_recorder_and_of_the_batcher_lose_nothing_that_follows(recorded: Recorded) -> None:
    row = np.zeros((1, 16), np.int32)
    for name in ("shoal recorder", "shoal batcher"):
        (pid,) = [pid for pid in await_standby(recorded.server) if title(pid) == name]
        os.kill(pid, signal.SIGKILL)
        ids = {f"after {name} {number}" for number in range(5)}
        for request_id in ids:
            infer(recorded.server, "simple", {"INPUT0": row, "INPUT1": row}, request_id=request_id)
        wait_until(partial(has_recorded, recorded.folder, ids))


def test_a_recording_of_a_storm_replays_to_equal_bits(recorded: Recorded) -> None:
    """Instances and batchers are killed while clients ask; what was answered meanwhile is answered so again."""
    server, row = recorded.server, np.arange(16, dtype=np.int32).reshape(1, 16)
    answered = set[str]()

    def ask(number: int) -> None:
        request_id = f"storm {number}"
        try:
            found = infer(server, "simple", {"INPUT0": row * number, "INPUT1": row}, request_id=request_id)
        except (InferenceServerException, OSError):
            return  # what was executing it has died
        assert found["OUTPUT0"].tolist() == (row * number + row).tolist()
        answered.add(request_id)

    with ThreadPoolExecutor(8) as pool:
        for blow in range(6):
            is_batcher = bool(blow % 2)
            wanted = "shoal batcher" if is_batcher else "shoal worker simple_0_0"
            (pid,) = [
                pid for pid in await_standby(server) if title(pid).startswith(wanted) and "standby" not in title(pid)
            ]
            asked = [pool.submit(ask, 40 * blow + number) for number in range(40)]
            os.kill(pid, signal.SIGKILL)
            for each in asked:
                each.result()
            ask(1000 + blow)  # waits until the successor answers
    infer(server, "simple", {"INPUT0": row, "INPUT1": row}, request_id="calm")
    wait_until(lambda: has_recorded(recorded.folder, {"calm", *answered}))
    found = {each.number: each for each in Recording(recorded.folder) if each.id.startswith("storm")}
    ended = {number for number, each in found.items() if each.outcome is Outcome.OK}
    assert {found[number].id for number in ended} == answered
    asked_again = ("--against", server.client_socket, "--model", "simple", "--speed", "0", "--json")
    told = json.loads(run_here("replay", recorded.folder, *asked_again).stdout)
    assert told["requests"] > len(ended) > 120
    assert [each for each in told["differences"] if each["number"] in ended] == []


def test_what_the_disk_refuses_is_counted(recorded: Recorded) -> None:
    """The last test: nothing is recorded any more."""
    recorded.folder.rename(recorded.folder.parent / "moved")
    recorded.folder.write_text("no folder")
    (pid,) = [pid for pid in await_standby(recorded.server) if title(pid) == "shoal recorder"]
    os.kill(pid, signal.SIGKILL)  # the next one begins a file
    row = np.zeros((1, 16), np.int32)
    for _ in range(5):
        infer(recorded.server, "simple", {"INPUT0": row, "INPUT1": row})
    wait_until(lambda: samples(recorded.server.metrics_port)["shoal_record_lost_total"] >= 5)
    assert recorded.server.read_log(b"requests cannot be recorded")
