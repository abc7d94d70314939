"""What the examples of Triton's client repository ask of the sample models, and runs of their table; see
triton_examples.py."""

import asyncio
import queue
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server
from tests.end_to_end.triton_examples import EXAMPLES, LEFT_OUT, MODELS, control_server, differences, run

APIS = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}
ROOT = Path(__file__).parents[2]
messages: Any = service_pb2
Sequence = tuple[str, int | str, list[int]]  # model, correlation id, numbers
VALUES = [11, 7, 5, 3, 2, 0, 1]


def address(server: Server, api: str) -> str:
    return f"127.0.0.1:{server.grpc_port}" if api.startswith("grpc") else server.url


def call(server: Server, api: str, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    """Make calls of one client of this API, one after the other: their results, or what they raised."""

    async def call_asynchronously() -> list[Any]:
        async with APIS[api].InferenceServerClient(address(server, api)) as client:
            results: list[Any] = []
            for name, arguments, more in calls:
                try:
                    results.append(await getattr(client, name)(*arguments, **more))
                except InferenceServerException as error:
                    results.append(error)
            return results

    if api.endswith("aio"):
        return asyncio.run(call_asynchronously())
    results: list[Any] = []
    with APIS[api].InferenceServerClient(address(server, api)) as client:
        for name, arguments, more in calls:
            try:
                results.append(getattr(client, name)(*arguments, **more))
            except InferenceServerException as error:
                results.append(error)
    return results


def sequences(*, dyna: bool, start: int) -> list[Sequence]:
    """The three of the examples: two with a number for their id and one with a string."""
    names = ("simple_dyna_sequence", "simple_string_dyna_sequence") if dyna else ("simple_sequence",) * 2
    negative = [-each for each in VALUES]
    text = str(start + 2) if dyna else str(uuid.uuid4())
    return [(names[0], start, [0, *VALUES]), (names[0], start + 1, [100, *negative]), (names[1], text, [20, *negative])]


def expected(sequence: Sequence) -> list[int]:
    """The answers: a sequence's first number plus one, the others as they are, and what the dynamic models add."""
    model, key, numbers = sequence
    if model == "simple_string_dyna_sequence":
        sums = [int(each) for each in np.cumsum(numbers)]
        return [*sums[:-1], sums[-1] + int(key)]
    answers = [numbers[0] + 1, *numbers[1:]]
    if model == "simple_dyna_sequence":
        answers[-1] += int(key)
    return answers


def requests(api: Any, sequence: Sequence) -> Iterator[dict[str, Any]]:
    """The arguments of the inferences of a sequence."""
    model, key, numbers = sequence
    for index, number in enumerate(numbers):
        tensor = api.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[number]], np.int32))
        yield {
            "model_name": model,
            "inputs": [tensor],
            "outputs": [api.InferRequestedOutput("OUTPUT")],
            "request_id": f"{key}_{index}",
            "sequence_id": key,
            "sequence_start": index == 0,
            "sequence_end": index == len(numbers) - 1,
        }


@pytest.mark.parametrize("dyna", [False, True], ids=["direct", "dyna"])
@pytest.mark.parametrize("api", APIS)
def test_sequences_one_request_after_the_other(samples: Server, api: str, dyna: bool) -> None:
    for sequence in sequences(dyna=dyna, start=1000 + 10 * list(APIS).index(api)):
        results = call(samples, api, [("infer", (), each) for each in requests(APIS[api], sequence)])
        assert [each.as_numpy("OUTPUT").tolist() for each in results] == [[[each]] for each in expected(sequence)]


def stream(server: Server, sent: list[Sequence]) -> Iterator[Any]:
    """All requests of these sequences on one stream, and what comes back."""
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(address(server, "grpc")) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for sequence in sent:
            for each in requests(tritonclient.grpc, sequence):
                client.async_stream_infer(**each)
        for sequence in sent:
            for _ in sequence[2]:
                yield answers.get(timeout=DEADLINE_S)


def stream_asynchronously(server: Server, sent: list[Sequence]) -> Iterator[Any]:
    """The same with asyncio's client."""

    async def given() -> AsyncIterator[dict[str, Any]]:
        for sequence in sent:
            for each in requests(tritonclient.grpc.aio, sequence):
                yield each

    async def collect() -> list[Any]:
        async with tritonclient.grpc.aio.InferenceServerClient(address(server, "grpc")) as client:
            answers: Any = client.stream_infer(given())
            return [error or result async for result, error in answers]

    yield from asyncio.run(collect())


@pytest.mark.parametrize("dyna", [False, True], ids=["direct", "dyna"])
@pytest.mark.parametrize("way", [stream, stream_asynchronously])
def test_sequences_on_a_stream(
    samples: Server, way: Callable[[Server, list[Sequence]], Iterator[Any]], dyna: bool
) -> None:
    sent = sequences(dyna=dyna, start=2000 if way is stream else 3000)
    answers: dict[str, list[int]] = {str(key): [] for _, key, _ in sent}
    for result in way(samples, sent):
        assert not isinstance(result, InferenceServerException), result
        answers[result.get_response().id.rpartition("_")[0]].append(int(result.as_numpy("OUTPUT")[0, 0]))
    assert answers == {str(sequence[1]): expected(sequence) for sequence in sent}


def test_as_many_answers_as_numbers(samples: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    inputs = []
    for name, values, dtype in ("IN", [100, 101, 102], np.int32), ("DELAY", [1, 1, 1], np.uint32), ("WAIT", [1], "u4"):
        array = np.array(values, dtype)
        tensor = tritonclient.grpc.InferInput(name, [len(values)], "INT32" if name == "IN" else "UINT32")
        inputs.append(tensor.set_data_from_numpy(array))
    with tritonclient.grpc.InferenceServerClient(address(samples, "grpc")) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("repeat_int32", inputs, outputs=[tritonclient.grpc.InferRequestedOutput("OUT")])
        found = [answers.get(timeout=DEADLINE_S).as_numpy("OUT").tolist() for _ in range(3)]
    assert found == [[100], [101], [102]]


@pytest.fixture(scope="module")
def controlled() -> Iterator[Server]:
    """A server in explicit mode on eight models, as the newest of the examples of model control expects."""
    with control_server(8) as server:
        yield server
        assert server.stop() == 0, server.log.decode()


@pytest.mark.parametrize("api", APIS)
def test_model_control(controlled: Server, api: str) -> None:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("get_model_repository_index", (), {}),
        ("load_model", ("simple",), {}),
        ("is_model_ready", ("simple",), {}),
        ("load_model", ("simple",), {"config": '"parameters": {"config": {{"max_batch_size": "16"}}}'}),
        ("load_model", ("simple",), {"config": '{"max_batch_size":"16"}'}),
        ("get_model_config", ("simple",), {}),
        ("unload_model", ("simple",), {}),
        ("is_model_ready", ("simple",), {}),
        ("load_model", ("simple",), {"config": "{}", "files": {"file:" + "A" * 256: b"a"}}),
        ("is_server_live", (), {}),
        ("load_model", ("wrong_model_name",), {}),
    ]
    index, loaded, ready, wrong, right, config, unloaded, still, long_path, live, unknown = call(controlled, api, calls)
    over_grpc = api.startswith("grpc")
    assert sorted(
        each.name if over_grpc else each["name"] for each in (index.models if over_grpc else index)
    ) == sorted(MODELS)
    assert (loaded, ready, right, unloaded, still, live) == (None, True, None, None, False, True)
    assert (config.config.max_batch_size if over_grpc else config["max_batch_size"]) == 16
    assert "nvalid config override" in wrong.message()
    assert "Invalid file path" in long_path.message()
    assert "failed to load" in unknown.message()


def test_the_table_names_no_example_twice_and_no_model_that_is_no_sample() -> None:
    assert not EXAMPLES.keys() & LEFT_OUT.keys()
    assert all((SAMPLES / model / "config.pbtxt").exists() for model in MODELS)


def test_the_table_is_compared_with_the_directory(tmp_path: Path) -> None:
    first, *others = [*EXAMPLES, *LEFT_OUT]
    for name in (*others, "new_client.py", "CMakeLists.txt"):
        (tmp_path / name).touch()
    assert [each.partition(" ")[0] for each in differences(tmp_path)] == [f"{first}:", "new_client.py:"]


@pytest.mark.parametrize("is_relative", [True, False])
def test_the_directory_of_the_examples_is_the_caller_s(tmp_path: Path, is_relative: bool) -> None:
    directory = tmp_path / "examples"
    directory.mkdir()
    command = [ROOT / "scripts" / "triton-examples", directory.name if is_relative else directory]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2
    assert f"none of the examples lies in {directory};" in done.stderr


PROGRAM = """
import argparse, tritonclient.http
parser = argparse.ArgumentParser()
parser.add_argument("-u")
client = tritonclient.http.InferenceServerClient(parser.parse_args().u)
{check}
"""


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("assert client.is_model_ready('simple'); print('PASS')", ""),
        ("assert client.is_model_ready('wrong'); print('PASS')", "status 1"),
        ("if client.is_model_ready('wrong'): print('PASS')", "did not print PASS"),
    ],
)
def test_an_example_passes_or_says_why(samples: Server, tmp_path: Path, check: str, fault: str) -> None:
    (tmp_path / "example.py").write_text(PROGRAM.format(check=check))
    assert run(tmp_path / "example.py", ("-u", "{http}"), samples).partition(":")[0] == fault
