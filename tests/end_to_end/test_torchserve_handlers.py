"""Handlers as users write them, in archives that the command `torchserve` serves: asked over HTTP with `requests`, and
over gRPC with the stubs of TorchServe's files. Those that import torch, or a handler of TorchServe's that does, are in
test_torchserve_built_ins.py.

And what becomes of handlers that fail and of archives that cannot be served, with TorchServe's status and message.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.test_torchserve_backend import (
    ASYNC,
    CLASS,
    FAILING,
    FUNCTION,
    IMPORT_ERROR,
    METRICS,
    STREAM,
)
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve_command
from tests.end_to_end.torchserve_stubs import INFERENCE, Stub
from tests.repository.torchserve.archives import mar

#: Of the server's metrics three, of handlers' those that METRICS makes but for `plain` and `oops`; and one that a
#: handler finds in `context.metrics`, another that none has a value for.
METRICS_FILE = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"
ts_metrics:
  counter:
    - {name: Requests2XX, unit: Count, dimensions: [*level, Hostname]}
    - {name: ts_inference_requests_total, unit: Count, dimensions: [model_name, model_version, hostname]}
  gauge:
    - {name: QueueTime, unit: Milliseconds, dimensions: [*level, Hostname]}
model_metrics:
  counter:
    - {name: seen_things, unit: count, dimensions: [Kind, *model_name, *level]}
  gauge:
    - {name: thinking, unit: ms, dimensions: [*level, Stage, *model_name]}
    - {name: idle, unit: s, dimensions: [*model_name, *level]}
  histogram:
    - {name: sizes, unit: MB, dimensions: [*model_name, *level]}
    - {name: declared, unit: ms, dimensions: [*model_name, *level]}
"""
DECLARED = """
from ts.metrics.metric_type_enum import MetricTypes


class Declared:
    def initialize(self, context):
        self.metric = context.metrics.get_metric("declared", MetricTypes.HISTOGRAM)

    def handle(self, data, context):
        self.metric.add_or_update(3, [context.model_name, "Model"])
        return ["measured"] * len(data)
"""
#: Waits for as long as TorchServe lets a batch take.
ENDLESS = "import time\n\n\ndef handle(data, context):\n    while data:\n        time.sleep(1)\n"
PROPERTIES = "default_workers_per_model=1\nload_models=all\nmetrics_mode=prometheus\nmetrics_config={file}\n"


def write(store: Path, name: str, code: str, more: dict[str, str] | None = None, yaml: str = "", **model: Any) -> None:
    """An archive of a handler."""
    files = {"h.py": code, **(more or {}), **({"c.yaml": yaml} if yaml else {})}
    described = {"name": name, "handler": "h.py", **({"configFile": "c.yaml"} if yaml else {}), **model}
    mar(store / f"{name}-{described.get('version', '1.0')}.mar", files, **described)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store, directory = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("server")
    write(store, "function", FUNCTION, {"greeting.txt": "hello"})
    write(store, "class", CLASS, {"sibling.py": "def shout(word):\n    return word.upper()\n"})
    for name, code in (
        ("stream", STREAM), ("counting", METRICS), ("declared", DECLARED), ("failing", FAILING),
    ):  # fmt: skip
        write(store, name, code)
    write(store, "waiting", ASYNC, yaml="asyncCommunication: true\n")
    write(store, "endless", ENDLESS, yaml="responseTimeout: 1\n")
    (directory / "metrics.yaml").write_text(METRICS_FILE)
    properties = PROPERTIES.format(file=directory / "metrics.yaml")
    with torchserve_command(directory, store, properties, "--enable-model-api", "--dt") as served:
        # Registered by tests, so not loaded at start.
        write(store, "class", IMPORT_ERROR, version="2.0")
        write(store, "headless", FUNCTION, handler=None)
        (store / "damaged-1.0.mar").write_bytes((store / "function-1.0.mar").read_bytes()[:-100])
        yield served


@pytest.fixture(scope="module")
def stub(served: TorchServe) -> Iterator[Stub]:
    with Stub(served.grpc_inference_port, INFERENCE) as stub:
        yield stub


@pytest.fixture(scope="module")
def http() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def post(http: requests.Session, served: TorchServe, path: str, body: Any = b"", **more: Any) -> requests.Response:
    return http.post(f"http://127.0.0.1:{served.inference_port}/{path}", body, timeout=DEADLINE_S, **more)


def test_a_function(served: TorchServe, http: requests.Session, stub: Stub) -> None:
    fields = {"X-Mode": "fast", "Content-Type": "application/json"}
    response = post(http, served, "predictions/function", b'{"a": 1}', headers=fields)
    told = response.json()
    assert (told["greeting"], told["got"], told["mode"]) == ("hello", {"a": 1}, "fast")
    assert (response.status_code, told["id"]) == (200, response.headers["x-request-id"])
    told = json.loads(stub.ask("Predictions", model_name="function", input={"data": b"abc"}).prediction)
    assert (told["greeting"], told["got"], told["name"]) == ("hello", "abc", "function")


def test_a_class_and_a_status_of_its_own_for_a_request(served: TorchServe, http: requests.Session, stub: Stub) -> None:
    assert post(http, served, "predictions/class", b"a").content == b"A"
    absent = post(http, served, "predictions/class", b"absent")
    assert (absent.status_code, absent.reason, absent.content) == (404, "nothing here", b"ABSENT")
    assert (absent.headers["x-why"], absent.headers["content-type"]) == ("gone", "text/plain")
    assert stub.ask("Predictions", model_name="class", input={"body": b"absent"}).prediction == b"ABSENT"


def test_parts(served: TorchServe, http: requests.Session, stub: Stub) -> None:
    with post(http, served, "predictions/stream", stream=True) as response:
        assert (response.headers["ts_stream_next"], response.headers["content-type"]) == ("true", "text/event-stream")
        assert b"".join(response.iter_content(None)) == b"one two three"
    parts = stub.stream("StreamPredictions", model_name="stream", input={"body": b""})
    assert [each.prediction for each in parts] == [b"one ", b"two ", b"three"]


def test_coroutines(served: TorchServe, http: requests.Session, stub: Stub) -> None:
    with ThreadPoolExecutor(2) as pool:  # each waits until the other is there
        first = pool.submit(post, http, served, "predictions/waiting", b"a")
        second = stub.ask("Predictions", model_name="waiting", input={"body": b"b"}).prediction
        response = first.result(DEADLINE_S)
    assert response.content == b"a" + response.headers["x-request-id"].encode()
    assert (response.headers["x-word"], second[:1]) == ("a", b"b")


def test_metrics_of_handlers_as_metrics_yaml_declares_them(
    served: TorchServe, http: requests.Session, stub: Stub
) -> None:
    assert post(http, served, "predictions/counting", b"a").content == b"counted"
    assert stub.ask("Predictions", model_name="counting", input={"body": b"b"}).prediction == b"counted"
    assert post(http, served, "predictions/declared", b"a").content == b"measured"
    page = http.get(f"http://127.0.0.1:{served.metrics_port}/metrics", timeout=DEADLINE_S).text
    types = dict(line.split()[2:] for line in page.splitlines() if line.startswith("# TYPE"))
    assert types == {
        "Requests2XX": "counter", "ts_inference_requests_total": "counter", "QueueTime": "gauge",
        "seen_things": "counter", "thinking": "gauge", "idle": "gauge", "sizes": "histogram", "declared": "histogram",
    }  # fmt: skip
    assert "# HELP idle Torchserve prometheus gauge metric with unit: Seconds\n" in page
    samples = {line.partition("{")[0]: line.rpartition(" ")[2] for line in page.splitlines() if line[0] != "#"}
    assert (samples["seen_things"], samples["sizes_count"], samples["declared_count"]) == ("4", "2", "1")
    (thinking,) = [line for line in page.splitlines() if line.startswith("thinking{")]
    for label in ('Level="Model"', 'ModelName="counting"', 'Stage="first"'):
        assert label in thinking


#: What a handler does → status and message. Both that end their worker come last.
FAILURES = [
    ("raise", 503, "Prediction failed"),
    ("memory", 507, "Out of resources"),
    ("cuda", 507, "Out of resources"),
    ("prediction", 404, "no such thing"),
    ("too large", 507, "too large"),
    ("dict", 503, "Invalid model predict output"),
    ("short", 503, "number of batch response mismatched"),
    ("set", 503, "Unsupported model output data type."),
    ("element", 503, "Prediction failed"),
    ("exit", 500, "Worker died."),
    ("die", 500, "Worker died."),
]


@pytest.mark.parametrize(("word", "status", "message"), FAILURES)
def test_a_handler_that_fails(served: TorchServe, http: requests.Session, word: str, status: int, message: str) -> None:
    response = post(http, served, "predictions/failing", word.encode())
    expected = {"code": status, "type": "InternalServerException", "message": message}
    assert (response.status_code, response.json()) == (status, expected)
    assert post(http, served, "predictions/failing", b"well").content == b"alive"


def test_a_batch_that_takes_too_long_ends_its_worker(served: TorchServe, http: requests.Session) -> None:
    response = post(http, served, "predictions/endless", b"x")
    expected = {"code": 500, "type": "InternalServerException", "message": "Worker died."}
    assert (response.status_code, response.json()) == (500, expected)


#: Query of a registration → status, type, and what the message says.
REFUSED = [
    ("url=damaged-1.0.mar", 400, "InvalidModelException", ["is damaged"]),
    ("url=headless-1.0.mar&initial_workers=1", 400, "InvalidModelException", ["handler"]),
    (
        "url=class-2.0.mar&initial_workers=1", 500, "InternalServerException",
        # The first, real error, and where it is; not that of a built-in handler of this name.
        ["Failed to start workers for model class version: 2.0. ", "h.py(3): <module>",
         "ModuleNotFoundError: No module named 'nothing_of_this_name'"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("query", "status", "kind", "words"), REFUSED)
def test_an_archive_that_cannot_be_served_leaves_nothing_and_the_old_version_serves(
    served: TorchServe, http: requests.Session, query: str, status: int, kind: str, words: list[str]
) -> None:
    models = f"http://127.0.0.1:{served.management_port}/models"
    before = http.get(models, timeout=DEADLINE_S).json()
    refused = http.post(f"{models}?{query}", timeout=DEADLINE_S)
    assert (refused.status_code, refused.json()["type"]) == (status, kind), refused.text
    for each in words:
        assert each in refused.json()["message"]
    assert http.get(models, timeout=DEADLINE_S).json() == before
    assert http.get(f"{models}/class/2.0", timeout=DEADLINE_S).status_code == 404
    assert post(http, served, "predictions/class", b"a").content == b"A"
