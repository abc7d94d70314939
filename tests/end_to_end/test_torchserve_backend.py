"""Handlers as users write them, on the backend `torchserve`, asked over Triton's protocol."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import tensors
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end
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


def write_models(repository: Any) -> Any:
    """A model per handler."""
    (add_handler(repository, "function", FUNCTION) / "greeting.txt").write_text("hello")
    (add_handler(repository, "class", CLASS) / "sibling.py").write_text("def shout(word):\n    return word.upper()\n")
    return repository


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_to_the_end(write_models(tmp_path_factory.mktemp("store"))) as server:
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
