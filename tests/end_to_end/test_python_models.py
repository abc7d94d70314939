"""Python models as authors write them for Triton (tests/models/python), driven by Triton's clients; and those of
docs/python_models.md, by the commands there, whose output is compared. One server has them all."""

import http.client
import json
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch, tensors
from tests.end_to_end.figures import exposition
from tests.end_to_end.raw_client import Client, post
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end, wait_until

Array = np.ndarray[Any, np.dtype[Any]]
MODELS = Path(__file__).parents[1] / "models" / "python"
LEFT, RIGHT = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, -30, 0.5], np.float32)
SUM, DIFFERENCE = LEFT + RIGHT, LEFT - RIGHT


PAGE = (Path(__file__).parents[2] / "docs" / "python_models.md").read_text()
FILES = re.findall(r"^`(models/\S+)`:\n\n```\w+\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
#: A fenced command and the fenced output that follows it.
EXAMPLES = re.findall(r"```(sh|python)\n((?:(?!```).)*)```\n\n```(?:json|text)\n((?:(?!```).)*)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files of the page lie as it says."""
    root = tmp_path_factory.mktemp("page")
    for name, content in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """All of them."""
    assert "shoal serve --model-repository models\n" in PAGE
    with serving_to_the_end([MODELS, folder / "models"]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(
        server.url, concurrency=8, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S
    ) as opened:
        yield opened


def output(result: triton.InferResult, name: str) -> Array:
    array: Array | None = result.as_numpy(name)
    assert array is not None, f"no output '{name}'"
    return array


def text(*words: str) -> Array:
    return np.array([word.encode() for word in words], np.object_)


def refusal(client: triton.InferenceServerClient, model: str, inputs: dict[str, Array]) -> tuple[str | None, str]:
    """Status and sentence of what must not be answered otherwise."""
    with pytest.raises(InferenceServerException) as refused:
        client.infer(model, tensors(inputs))
    return refused.value.status(), refused.value.message() or ""


# --- generate and generate_stream ---


def generate(server: Server, model: str, body: dict[str, Any], verb: str = "generate_stream") -> tuple[int, str, bytes]:
    """Status, content type and body of an answer that is read to its end."""
    reply = fetch(server.http_port, f"/v2/models/{model}/{verb}", body)
    return reply.status, reply.headers["Content-Type"], reply.body


def events(server: Server, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The server-sent events of a stream."""
    status, content_type, data = generate(server, model, body)
    assert (status, content_type) == (200, "text/event-stream; charset=utf-8"), data
    *found, end = data.decode().split("\n\n")
    assert end == ""
    return [json.loads(event.removeprefix("data: ")) for event in found]


@pytest.mark.parametrize(("code", "status"), [("NOT_FOUND", 404), ("UNAVAILABLE", 503), ("", 500)])
def test_an_error_that_comes_first_is_an_event_under_its_own_status(server: Server, code: str, status: int) -> None:
    sentence = f"error code: {code}" if code else "no code"
    event = b'{"error":"%s"}' % sentence.encode()
    stream = (status, "text/event-stream; charset=utf-8", b"data: " + event + b"\n\n")
    assert generate(server, "error_codes", {"CODE": code}) == stream
    assert generate(server, "error_codes", {"CODE": code}, "generate") == (status, "application/json", event)


# --- tensors ---


@pytest.mark.parametrize(
    "model",
    ["add_sub", "bls_async", "dlpack_numpy", "dlpack_torch"],
)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_sum_and_difference(client: triton.InferenceServerClient, model: str, binary: bool) -> None:
    inputs = tensors({"INPUT0": LEFT, "INPUT1": RIGHT}, binary=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
    for _ in range(3):  # what a model does to its inputs stays its own
        result = client.infer(model, inputs, outputs=outputs)
        assert output(result, "OUTPUT0").tolist() == SUM.tolist()
        assert output(result, "OUTPUT1").tolist() == DIFFERENCE.tolist()


def test_answers_of_many_requests_at_once_are_their_own(client: triton.InferenceServerClient) -> None:
    for model in ("add_sub", "bls_async"):
        sent = [client.async_infer(model, tensors({"INPUT0": LEFT + number, "INPUT1": RIGHT})) for number in range(32)]
        for number, request in enumerate(sent):
            result = request.get_result(timeout=DEADLINE_S)
            assert output(result, "OUTPUT0").tolist() == (SUM + number).tolist()
            assert output(result, "OUTPUT1").tolist() == (DIFFERENCE + number).tolist()


def test_preprocessing_tokenizes_with_a_module_and_a_file_of_its_own(client: triton.InferenceServerClient) -> None:
    texts = text("The school swims in a school", "GRÜNES 魚 xylophone")[:, np.newaxis]
    result = client.infer("preprocessing", tensors({"TEXT": texts}))
    assert output(result, "INPUT_IDS").tolist() == [[2, 4, 9, 6, 7, 10, 11, 9, 3], [2, 12, 13, 14, 1, 3, 0, 0, 0]]
    assert output(result, "INPUT_IDS").dtype == np.int32
    tokens = [token.decode() for token in output(result, "TOKENS")[1]]
    assert tokens == ["[CLS]", "grün", "##es", "魚", "[UNK]", "[SEP]", "[PAD]", "[PAD]", "[PAD]"]


@pytest.mark.parametrize(
    ("requested", "computed"),
    [
        (["MEAN", "EXTREMES", "SORTED", "COMPUTED"], ["MEAN", "EXTREMES", "SORTED"]),
        (["SORTED", "COMPUTED"], ["MEAN", "SORTED"]),
        (["EXTREMES"], None),
        ([], ["MEAN", "EXTREMES", "SORTED"]),
    ],
)
def test_only_requested_outputs_are_answered(
    client: triton.InferenceServerClient, requested: list[str], computed: list[str] | None
) -> None:
    outputs = [triton.InferRequestedOutput(name) for name in requested]
    result = client.infer("multi_output", tensors({"VALUES": LEFT}), outputs=outputs or None)
    answered = {tensor["name"] for tensor in result.get_response()["outputs"]}
    assert answered == set(requested or ["MEAN", "EXTREMES", "SORTED", "COMPUTED"])
    expected = {"MEAN": [2.5], "EXTREMES": [1, 4], "SORTED": [4, 3, 2, 1]}
    for name in answered & set(expected):
        assert output(result, name).tolist() == expected[name]
    if computed is not None:
        assert [name.decode() for name in output(result, "COMPUTED")] == computed


# --- configuration and parameters ---


def test_auto_complete_says_what_no_configuration_says(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("auto_complete")
    assert (config["backend"], config["max_batch_size"]) == ("python", 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    shapes = {each["name"]: (each["data_type"], each["dims"]) for each in (*config["input"], *config["output"])}
    assert shapes == dict.fromkeys(("INPUT0", "INPUT1", "OUTPUT0"), ("TYPE_FP32", [4]))
    left = LEFT[np.newaxis]
    assert output(client.infer("auto_complete", tensors({"INPUT0": left})), "OUTPUT0").tolist() == [[2, 3, 4, 5]]
    result = client.infer("auto_complete", tensors({"INPUT0": left, "INPUT1": left}))
    assert output(result, "OUTPUT0").tolist() == [[2, 4, 6, 8]]


def test_parameters_reach_the_model_and_come_back(client: triton.InferenceServerClient) -> None:
    result = client.infer(
        "parameters",
        tensors({"IN": np.array([1], np.int32)}),
        request_id="seven",
        sequence_id=7,
        sequence_start=True,
        parameters={"text": "grün", "number": -5, "yes": True},
    )
    assert [key.decode() for key in output(result, "KEYS")] == ["number", "text", "yes"]
    assert output(result, "REQUEST_ID").tolist() == [b"seven"]
    assert result.get_response()["parameters"] == {
        "text": "grün", "number": -5, "yes": True, "correlation_id": 7, "handled": True
    }  # fmt: skip


# --- errors ---


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNKNOWN", "400"),
        ("INTERNAL", "500"),
        ("NOT_FOUND", "404"),
        ("INVALID_ARG", "400"),
        ("UNAVAILABLE", "503"),
        ("UNSUPPORTED", "501"),
        ("ALREADY_EXISTS", "400"),
        ("CANCELLED", "400"),
        ("", "500"),
    ],
)
def test_each_code_is_its_status(client: triton.InferenceServerClient, code: str, status: str) -> None:
    assert refusal(client, "error_codes", {"CODE": text(code)}) == (
        status, f"error code: {code}" if code else "no code",
    )  # fmt: skip


def test_an_exception_is_told_with_where_it_came_from(client: triton.InferenceServerClient) -> None:
    status, sentence = refusal(client, "error_codes", {"CODE": text("EXCEPTION")})
    assert status == "500"
    start = (
        "Failed to process the request(s) for model 'error_codes_0_0', message: ValueError: "
        "something the author did not think of\n\nAt:\n  "
    )
    assert sentence.startswith(start)
    assert re.fullmatch(r"/.*/1/model\.py\(\d+\): execute\n", sentence.removeprefix(start))


def test_fewer_responses_than_requests_are_counted(client: triton.InferenceServerClient) -> None:
    status, sentence = refusal(client, "error_codes", {"CODE": text("TOO_FEW")})
    assert status == "500"
    assert sentence.endswith(
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
    )


# --- decoupled ---


def test_repeat_streams_each_element_after_its_delay(server: Server) -> None:
    request = {"IN": [4, 2, 0, 1], "DELAY": [1, 20, 3, 4], "WAIT": 5}
    start = time.monotonic()
    found = events(server, "repeat", {**request, "id": "stream"})
    assert time.monotonic() - start >= 0.028
    assert [(event["IDX"], event["OUT"]) for event in found] == [(0, 4), (1, 2), (2, 0), (3, 1)]
    assert {(event["model_name"], event["model_version"], event["id"]) for event in found} == {
        ("repeat", "1", "stream")
    }


def test_streams_of_one_instance_overlap(server: Server) -> None:
    """Each of five has begun before any goes on, which is long after."""
    body = json.dumps({"IN": [7, 8], "DELAY": [0, 5000], "WAIT": 0})
    with ExitStack() as stack:
        streams = []
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
            stack.callback(connection.close)
            connection.request("POST", "/v2/models/repeat/generate_stream", body)
            streams.append(connection)
        responses = [stack.enter_context(each.getresponse()) for each in streams]
        first = [json.loads(each.readline().removeprefix(b"data: "))["OUT"] for each in responses]
        assert first == [7] * 5
        assert not select.select(responses, [], [], 0)[0]


@pytest.mark.parametrize("number", [0, 1, 3, 300])
def test_square_sends_any_number_of_responses(server: Server, number: int) -> None:
    assert [event["OUT"] for event in events(server, "square", {"IN": number})] == [number] * number


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(server: Server) -> None:
    first, last = events(server, "square", {"IN": -1})
    assert first["OUT"] == -1
    assert last == {"error": "cannot send fewer than no responses"}


def test_generate_wants_exactly_one_response(server: Server) -> None:
    status, _, body = generate(server, "square", {"IN": 1}, "generate")
    assert (status, json.loads(body)["OUT"]) == (200, 1)
    for number in (0, 2):
        status, _, body = generate(server, "square", {"IN": number}, "generate")
        assert status == 500
        assert json.loads(body)["error"] == (
            "generate expects model to produce exactly 1 response, "
            "use generate stream for model that generates various number of responses"
        )


def test_infer_refuses_decoupled_models(client: triton.InferenceServerClient) -> None:
    status, sentence = refusal(client, "square", {"IN": np.array([1], np.int32)})
    assert (status, sentence) == ("501", "HTTP end point doesn't support models with decoupled transaction policy")


# --- BLS ---


def test_bls_calls_the_model_that_the_request_names(client: triton.InferenceServerClient) -> None:
    inputs = {"INPUT0": LEFT, "INPUT1": RIGHT}
    for model in ("add_sub", "bls_async", "dlpack_numpy"):
        result = client.infer("bls_sync", tensors({"MODEL_NAME": text(model), **inputs}))
        assert output(result, "OUTPUT0").tolist() == SUM.tolist()
        assert output(result, "OUTPUT1").tolist() == DIFFERENCE.tolist()


@pytest.mark.parametrize(
    ("model", "part"), [("nobody", "nobody"), ("multi_output", "multi_output"), ("square", "decoupled=True")]
)
def test_bls_errors_come_back_as_responses(client: triton.InferenceServerClient, model: str, part: str) -> None:
    inputs = {"MODEL_NAME": text(model), "INPUT0": LEFT, "INPUT1": RIGHT}
    status, sentence = refusal(client, "bls_sync", inputs)
    assert status == "500"
    assert sentence.startswith(
        "Failed to process the request(s) for model 'bls_sync_0_0', message: TritonModelException: "
    )
    assert part in sentence


@pytest.mark.parametrize("number", [0, 1, 7, 100])
def test_bls_iterates_the_responses_of_a_decoupled_model(client: triton.InferenceServerClient, number: int) -> None:
    inputs = tensors({"IN": np.array([number], np.int32)})
    result = client.infer("bls_decoupled", inputs)
    assert (output(result, "SUM").tolist(), output(result, "COUNT").tolist()) == ([number**2], [number])
    assert output(client.infer("bls_decoupled_async", inputs), "SUM").tolist() == [2 * number**2]


def test_bls_hears_of_an_error_in_the_middle_of_a_stream(client: triton.InferenceServerClient) -> None:
    status, sentence = refusal(client, "bls_decoupled", {"IN": np.array([-1], np.int32)})
    assert status == "500"
    assert "cannot send fewer than no responses" in sentence


# --- metrics, log, cancellation ---


def test_custom_metrics_are_shown(server: Server, client: triton.InferenceServerClient) -> None:
    counts = [
        output(client.infer("custom_metrics", tensors({"VALUE": np.array([value])})), "COUNT").tolist()
        for value in (0.5, 7.0, 1000.0, 42.5)
    ]
    assert counts == [[1], [2], [3], [4]]
    labels = 'model="custom_metrics",version="1"'
    expected = [
        "# HELP example_requests Requests that the model has seen",
        "# TYPE example_requests counter",
        f"example_requests{{{labels}}} 4",
        f"example_last_value{{{labels}}} 42.5",
        "# TYPE example_values histogram",
        f'example_values_bucket{{{labels},le="1"}} 1',
        f'example_values_bucket{{{labels},le="10"}} 2',
        f'example_values_bucket{{{labels},le="100"}} 3',
        f'example_values_bucket{{{labels},le="+Inf"}} 4',
        f"example_values_sum{{{labels}}} 1050",
        f"example_values_count{{{labels}}} 4",
    ]

    def missing() -> set[str]:
        return set(expected) - {line.removesuffix(".0") for line in exposition(server).splitlines()}

    wait_until(lambda: not missing(), lambda: (missing(), exposition(server)))  # they arrive soon after the answer


def test_the_logger_logs_at_its_levels_with_file_and_line(server: Server, client: triton.InferenceServerClient) -> None:
    assert server.read_log(b'"logging is initialized"')
    start = len(server.log)
    counts = [
        output(client.infer("logging", tensors({"MESSAGE": text(word)})), "COUNT").tolist() for word in ("one", "two")
    ]
    assert counts == [[1], [2]]
    assert server.read_log(b'"info two"', start=start)
    assert server.read_log(b'"specific two"', start=start)
    lines = server.log[start:].decode().splitlines()
    for letter, message in [("I", "plain one"), ("E", "specific two"), ("I", "info one"), ("W", "warning one")]:
        [line] = [line for line in lines if message in line]
        assert re.fullmatch(rf'{letter}\d{{4}} \S+ \d+ model\.py:\d+\] "{message}"', line)
    assert not any("verbose" in line or "warning two" in line for line in lines)


def test_a_client_that_goes_away_cancels_its_request(server: Server, client: triton.InferenceServerClient) -> None:
    result = client.infer("request_cancellation", tensors({"MAX_WAIT_S": np.array([0.01], np.float32)}))
    assert output(result, "WAITED_S")[0] >= 0.01

    start = len(server.log)
    body = b'{"id":"lost","inputs":[{"name":"MAX_WAIT_S","datatype":"FP32","shape":[1],"data":[60]}]}'
    with Client(server) as gone:
        gone.send(post("request_cancellation", body))
        assert server.read_log(b"working on 'lost'", start=start)
        gone.socket.shutdown(socket.SHUT_RDWR)
    assert server.read_log(b"'lost' was cancelled", DEADLINE_S / 2, start=start)


def test_the_page_shows_three_models_and_four_examples() -> None:
    assert len(FILES) == 6
    assert [language for language, _, _ in EXAMPLES] == ["sh", "sh", "sh", "python"]


@pytest.mark.parametrize(("language", "code", "output"), EXAMPLES)
def test_example_prints_what_the_page_shows(
    server: Server, folder: Path, language: str, code: str, output: str
) -> None:
    code = code.replace("localhost:8000", server.url)
    command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout
    if output.startswith("{"):
        assert json.loads(printed) == json.loads(output)
    else:
        assert printed == output
