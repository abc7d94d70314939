"""Handlers as users write them, on the backend `torchserve`, asked over Triton's protocol."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch, tensors
from tests.end_to_end.server import DEADLINE_S, Server, samples, serving_to_the_end
from tests.end_to_end.torchserve_models import add_handler

FUNCTION = """
import json

_state = None


def handle(data, context):
    global _state
    if data is None:
        _state = open("greeting.txt").read()
        return None
    answers = []
    for index, row in enumerate(data):
        body = row.get("data") or row.get("body")
        body = bytes(body).decode() if isinstance(body, bytearray) else body
        answers.append({
            "greeting": _state,
            "got": body,
            "mode": context.get_request_header(index, "x-mode"),
            "id": context.get_request_id(index),
            "name": context.model_name,
        })
    return answers
"""

CLASS = """
import logging
import os

from sibling import shout

logger = logging.getLogger(__name__)


class Echo:
    def __init__(self):
        self.initialized = False

    def initialize(self, context):
        self.manifest = context.manifest
        self.properties = context.system_properties
        assert os.getcwd() == self.properties["model_dir"]
        self.initialized = True
        logger.info("the echo of %s is ready", context.model_name)

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            word = row["body"].decode()
            if word == "absent":
                context.set_response_status(404, "nothing here", index)
                context.set_response_header(index, "x-why", "gone")
                context.set_response_content_type(index, "text/plain")
            answers.append(shout(word))
        return answers
"""


STREAM = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return
    for index in range(len(data)):
        context.set_response_content_type(index, "text/event-stream")
    for word in ("one ", "two "):
        send_intermediate_predict_response([word] * len(data), context.request_ids, "more", 200, context)
    return ["three"] * len(data)
"""

METRICS = """
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class Counting:
    def initialize(self, context):
        metrics = context.metrics
        self.seen = metrics.add_metric_to_cache("seen_things", "count", ["Kind", "ModelName", "Level"])
        metrics.add_metric_to_cache("sizes", "MB", [], MetricTypes.HISTOGRAM)

    def handle(self, data, context):
        metrics = context.metrics
        for index, row in enumerate(data):
            self.seen.add_or_update(2, ["thing", context.model_name, "Model"])
            metrics.add_time("thinking", 1.5, index, "ms", [Dimension("Stage", "first")])
            metrics.add_counter("plain", 1, index)
            metrics.add_percent("fill", 40)
            metrics.add_size("weight", 3, None, "kB")
            metrics.add_error("oops", "a text")
            metrics.get_metric("sizes", MetricTypes.HISTOGRAM).add_or_update(0.2, [])
        return [b"counted"] * len(data)
"""

#: Does what it is asked to.
FAILING = """
import asyncio
import os
import sys

from ts.service import PredictionException


class Failing:
    def initialize(self, context):
        self.properties = context.system_properties

    def handle(self, data, context):
        word = bytes(data[0]["body"]).decode()
        if word == "element":
            return [ValueError("one alone") if bytes(row["body"]) == b"element" else "fine" for row in data]
        if word == "raise":
            raise ValueError("boom")
        if word == "cancel":
            raise asyncio.CancelledError("given up")
        if word == "memory":
            raise MemoryError
        if word == "cuda":
            raise RuntimeError("CUDA was mentioned")
        if word == "prediction":
            raise PredictionException("no such thing", 404)
        if word == "too large":
            raise PredictionException("too large", 413)
        if word == "dict":
            return {"a": 1}
        if word == "short":
            return []
        if word == "set":
            return [{1, 2}]
        if word == "exit":
            sys.exit(3)
        if word == "die":
            os._exit(3)
        return ["alive"] * len(data)
"""

MICRO = """
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class Halves(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self, micro_batch_size=2, parallelism={"preprocess": 2})

    def initialize(self, context):
        self.context = context
        self.initialized = True

    def preprocess(self, data):
        return [bytes(row["body"]).decode() for row in data]

    def inference(self, data):
        return [f"{word}{self.handle.get_micro_batch_idx()}" for word in data]

    def postprocess(self, data):
        return data
"""

ASYNC = """
import asyncio


class Waiting:
    def initialize(self, context):
        self.met = None

    async def handle(self, data, context):
        if self.met is None:
            self.met = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None
        word = bytes(data[0]["body"]).decode()
        if word == "fail":
            raise ValueError("not this one")
        if self.met is not None:
            await self.met.wait()  # until another request is here, too
        context.set_response_header(0, "x-word", word)
        return [word + context.get_request_id(0)]
"""

DESCRIBED = """
from ts.torch_handler.base_handler import BaseHandler


class Described(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def describe_handle(self):
        return {"answers": "to everything"}

    def preprocess(self, data):
        return data

    def inference(self, data):
        return ["predicted"] * len(data)

    def postprocess(self, data):
        return data

    def get_insights(self, preprocessed, raw, target):
        return [{"target": target}]
"""

ENVELOPED = """
def handle(data, context):
    if data is None:
        return
    return [{"got": str(each)} for each in data] if isinstance(data, list) else data
"""

IMPORT_ERROR = "import json\n\nimport nothing_of_this_name\n\n\ndef handle(data, context):\n    pass\n"
SEVERAL = """
class Model:
    pass


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return ["chosen"] * len(data)
"""
BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "no_class": ("x = 1\n", {}, "needs a function 'handle', or one class"),
    "import_error": (IMPORT_ERROR, {}, "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    "no_such_file": ("", {"handler": "absent.py"}, "No module named 'absent'"),
    "no_handler": ("", {"handler": ""}, "has no handler"),
    "failing_start": (
        "class A:\n    def initialize(self, context):\n        1 / 0\n    def handle(self, d, c):\n        pass\n",
        {},
        "ZeroDivisionError: division by zero",
    ),
    "no_envelope": (
        ENVELOPED,
        {"parameters": {"ts_service_envelope": "paper"}},
        "there is no request envelope 'paper'",
    ),
    "coroutine": ("async def handle(data, context):\n    pass\n", {}, "set 'asyncCommunication: true'"),
    "bad_yaml": (ENVELOPED, {"yaml": "a: ["}, "is no YAML file"),
}
DECOUPLED = "model_transaction_policy { decoupled: true }"


def write_models(repository: Path) -> Path:
    """A model per handler."""
    (add_handler(repository, "function", FUNCTION) / "greeting.txt").write_text("hello")
    (add_handler(repository, "class", CLASS) / "sibling.py").write_text("def shout(word):\n    return word.upper()\n")
    for name, code in (
        ("stream", STREAM), ("counting", METRICS), ("failing", FAILING), ("described", DESCRIBED),
        ("several", SEVERAL), ("micro", MICRO),
    ):  # fmt: skip
        add_handler(repository, name, code)
    add_handler(repository, "decoupled", STREAM, more=DECOUPLED)
    add_handler(repository, "waiting", ASYNC, yaml="asyncCommunication: true\n")
    for name in ("body", "json", "kserve", "kservev2"):
        add_handler(repository, f"enveloped_{name}", ENVELOPED, parameters={"ts_service_envelope": name})
    for name, (code, options, _) in BROKEN.items():
        add_handler(repository, name, code, **options)
    return repository


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--exit-on-error=false", "--strict-readiness=false", "--grpc-port=0")
    with serving_to_the_end(write_models(tmp_path_factory.mktemp("store")), *flags) as server:
        yield server


def predict(server: Server, model: str, *bodies: bytes, about: Any = None) -> tuple[list[bytes], Any]:
    """The bodies of a model's answers, one for each of these, and the response's parameter `ts`."""
    parameters = None if about is None else {"ts": json.dumps(about)}
    data = np.array([[body] for body in bodies], object)
    with tritonclient.http.InferenceServerClient(
        server.url, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S
    ) as client:
        result = client.infer(model, tensors({"data": data}), parameters=parameters)
    returned = result.get_response().get("parameters", {})
    told = json.loads(returned["ts"]) if "ts" in returned else None
    prediction = result.as_numpy("prediction")
    assert prediction is not None
    assert prediction.shape == (len(bodies), 1)
    return [*prediction[:, 0]], told


def refusal(server: Server, model: str, body: bytes = b"", about: Any = None) -> str:
    """The error of a prediction that fails."""
    with pytest.raises(InferenceServerException) as raised:
        predict(server, model, body, about=about)
    return str(raised.value.message())


def test_a_function_initialises_itself_once_and_gets_dicts(server: Server) -> None:
    [body], told = predict(server, "function", b"abc")
    answer = json.loads(body)
    assert (answer["greeting"], answer["got"], answer["name"]) == ("hello", "abc", "function")
    assert told is None


def test_the_parameter_carries_content_type_headers_and_id(server: Server) -> None:
    about = {"content_type": "application/json", "headers": {"X-Mode": "fast"}, "request_id": "r-1"}
    [body], _ = predict(server, "function", b'{"a": 1}', about=about)
    answer = json.loads(body)
    assert (answer["got"], answer["mode"], answer["id"]) == ({"a": 1}, "fast", "r-1")


def test_each_row_is_a_request_of_the_batch(server: Server) -> None:
    bodies, _ = predict(server, "class", b"a", b"b", b"c")
    assert bodies == [b"A", b"B", b"C"]


def test_status_and_headers_are_a_parameter_of_the_response(server: Server) -> None:
    [body], told = predict(server, "class", b"absent")
    assert body == b"ABSENT"
    headers = {"x-why": "gone", "content-type": "text/plain"}
    assert told == {"status": 404, "phrase": "nothing here", "headers": headers}


def test_the_root_logger_writes_to_the_servers_log(server: Server) -> None:
    assert server.read_log(b"the echo of class is ready\n")


def test_parts_are_joined_where_the_model_is_not_decoupled(server: Server) -> None:
    [body], told = predict(server, "stream", b"")
    assert body == b"one two three"
    assert told["headers"] == {"content-type": "text/event-stream", "ts_stream_next": "true"}


def test_parts_are_responses_where_the_model_is_decoupled(server: Server) -> None:
    received: SimpleQueue[Any] = SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: received.put((result, error)))
        inputs = tensors({"data": np.array([[b"x"]], object)}, api=tritonclient.grpc)
        client.async_stream_infer("decoupled", inputs)
        parts = [received.get(timeout=DEADLINE_S) for _ in range(3)]
        client.stop_stream()
    assert [error for _, error in parts] == [None] * 3
    assert [result.as_numpy("prediction")[0, 0] for result, _ in parts] == [b"one ", b"two ", b"three"]
    told = [result.get_response().parameters["ts"].string_param for result, _ in parts]
    assert json.loads(told[0])["headers"]["ts_stream_next"] == "true"
    assert told[1:] == ["", ""]  # the head of a stream comes with its first part alone


def test_metrics_of_a_handler_are_the_servers(server: Server) -> None:
    predict(server, "counting", b"a", b"b")
    own = 'Level="Model",ModelName="counting"'
    found = {name: value for name, value in samples(server.metrics_port).items() if 'ModelName="counting"' in name}
    assert found.pop(f"PredictionTime{{{own}}}") >= 0
    sizes = {name: found.pop(name) for name in tuple(found) if name.startswith("sizes_")}
    assert sizes[f"sizes_count{{{own}}}"] == 2
    assert found == {
        f'seen_things{{Kind="thing",{own}}}': 4,
        f'thinking{{{own},Stage="first"}}': 1.5,
        f"plain{{{own}}}": 2,
        f"fill{{{own}}}": 40,
        f"weight{{{own}}}": 3,
        f"oops{{{own}}}": 2,
    }


FAILURES = [
    ("raise", "503:InternalServerException:Prediction failed", "Prediction failed: ValueError: boom"),
    ("cancel", "503:InternalServerException:Prediction failed", "Prediction failed: CancelledError: given up"),
    ("memory", "507:InternalServerException:Out of resources", "Out of resources: MemoryError"),
    ("cuda", "507:InternalServerException:Out of resources", "CUDA was mentioned"),
    ("prediction", "404:InternalServerException:no such thing", "no such thing"),
    ("dict", "503:InternalServerException:Invalid model predict output", "must return a list"),
    ("short", "503:InternalServerException:number of batch response mismatched", "0 elements for a batch of 1"),
    ("set", "503:InternalServerException:Unsupported model output data type.", "element of type set"),
    ("element", "503:InternalServerException:Prediction failed", "one alone"),
]


@pytest.mark.parametrize(("word", "theirs", "others"), FAILURES)
def test_a_failure_has_torchserves_words_or_its_cause(server: Server, word: str, theirs: str, others: str) -> None:
    assert refusal(server, "failing", word.encode(), {"content_type": ""}) == f"ts:{theirs}"
    assert others in refusal(server, "failing", word.encode())
    assert predict(server, "failing", b"well")[0] == [b"alive"]


@pytest.mark.parametrize("word", [b"exit", b"die"])
def test_a_handler_that_ends_its_worker_fails_its_request_and_is_back(server: Server, word: bytes) -> None:
    start = len(server.log)
    assert "failing_0_0" in refusal(server, "failing", word)
    assert server.read_log(b"instance 'failing_0_0' of model 'failing' is up again", start=start)
    assert predict(server, "failing", b"well")[0] == [b"alive"]


def test_of_several_classes_the_one_that_handles_is_taken(server: Server) -> None:
    assert predict(server, "several", b"x")[0] == [b"chosen"]


def test_a_micro_batch_has_its_part_of_the_requests_in_their_order(server: Server) -> None:
    assert predict(server, "micro", b"a", b"b", b"c")[0] == [b"a0", b"b0", b"c1"]


def test_descriptions_explanations_and_predictions_are_told_apart(server: Server) -> None:
    assert json.loads(predict(server, "described", b"", about={"describe": "True"})[0][0]) == {
        "answers": "to everything"
    }
    fields = {"fields": [["target", "", 1], ["data", "", 1]], "explain": "True"}
    assert json.loads(predict(server, "described", b"3x", about=fields)[0][0]) == {"target": 3}
    assert predict(server, "described", b"x", about={"explain": "False"})[0] == [b"predicted"]


def test_coroutines_wait_beside_each_other(server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(predict, server, "waiting", word, about={"request_id": "!"}) for word in (b"a", b"b")]
        answers = [each.result() for each in asked]
    assert answers == [([b"a!"], answers[0][1]), ([b"b!"], answers[1][1])]
    assert [told["headers"] for _, told in answers] == [{"x-word": "a"}, {"x-word": "b"}]
    assert "not this one" in refusal(server, "waiting", b"fail")


ENVELOPES = [
    ("body", b"x", {"got": "bytearray(b'x')"}),
    ("json", b'{"instances": [1, {"b64": "YQ=="}, {"b": {"b64": "YQ=="}}]}',
     {"predictions": [{"got": "1"}, {"got": "b'a'"}, {"got": "{'b': b'a'}"}]}),
    ("kserve", b'{"instances": [1, 2]}', {"predictions": [{"got": "1"}, {"got": "2"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "answer"), ENVELOPES)
def test_an_envelope_is_put_around_a_handler(server: Server, name: str, body: bytes, answer: Any) -> None:
    assert json.loads(predict(server, f"enveloped_{name}", body)[0][0]) == answer


def test_the_envelope_of_kserves_second_protocol(server: Server) -> None:
    inputs = [
        {"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]},
        {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"]},
    ]
    [body], _ = predict(server, "enveloped_kservev2", json.dumps({"id": "7", "inputs": inputs}).encode())
    answer = json.loads(body)
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "enveloped_kservev2", "1.0")
    assert answer["outputs"] == [
        {"name": "a", "datatype": "BYTES", "data": [{"got": "[[1 2]]"}], "shape": [1]},
        {"name": "b", "datatype": "BYTES", "data": [{"got": "x"}], "shape": [1]},
    ]
    assert "Prediction failed" in refusal(server, "enveloped_kservev2", b"[]")


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_cannot_be_loaded_says_why(server: Server, name: str) -> None:
    index = fetch(server.http_port, "/v2/repository/index", {}).json
    [entry] = [each for each in index if each["name"] == name]
    assert entry["state"] == "UNAVAILABLE"
    assert BROKEN[name][2] in entry["reason"]
