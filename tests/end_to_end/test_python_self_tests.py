"""Models without inputs, which test themselves where they run, as Triton's own QA has them; through a whole server.

Each method `test_…` of such a model is a test; its answer says what has gone wrong.
"""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.server import DEADLINE_S, Server, serving

HEAD = """
import json
import traceback
import numpy as np
import triton_python_backend_utils as pb_utils

"""
#: Runs the method of the request's parameter `test`; the output is "" or what it has raised.
SELF_TEST = """

class TritonPythonModel(Tests):
    def execute(self, requests):
        return [self.run(json.loads(request.parameters())) for request in requests]

    def run(self, parameters):
        told = ""
        try:
            getattr(self, parameters.pop("test"))(**parameters)
        except Exception:
            told = traceback.format_exc()
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([told], object))])
"""
OUTPUT = 'output { name: "TOLD" data_type: TYPE_STRING dims: 1 }'
PLAIN = """
class Tests:
    def test_nothing(self):
        pass
"""
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
                for request in requests]
"""
X_TO_Y = """
    input { name: "X" data_type: TYPE_FP32 dims: -1 }
    output { name: "Y" data_type: TYPE_FP32 dims: -1 }
"""


def add_model(repository: Path, name: str, code: str, config: str | None) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(HEAD + dedent(code))
    if config is not None:
        (directory.parent / "config.pbtxt").write_text(f'backend: "python" {config}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "no_inputs", PLAIN + SELF_TEST, OUTPUT)
    add_model(repository, "no_tensors", PLAIN + SELF_TEST, "")
    add_model(repository, "no_configuration", PLAIN + SELF_TEST, None)
    add_model(repository, "batched", PLAIN + SELF_TEST, f"max_batch_size: 4 dynamic_batching {{}} {OUTPUT}")
    add_model(repository, "double", DOUBLE, X_TO_Y)
    with serving(repository, "--grpc-port=0") as started:
        yield started


def told(server: Server, model: str, test: str, **parameters: str | int) -> str:
    """What a model says of one of its tests, asked over HTTP."""
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        answer = client.infer(model, [], parameters={"test": test, **parameters}).as_numpy("TOLD")
    assert answer is not None
    text: str = answer.ravel()[0].decode()
    return text


@pytest.mark.parametrize(
    ("model", "outputs"), [("no_inputs", ["TOLD"]), ("batched", ["TOLD"]), ("no_tensors", []), ("no_configuration", [])]
)
def test_a_model_without_inputs_answers(server: Server, model: str, outputs: list[str]) -> None:
    """With the outputs that its configuration lists, as in Triton."""
    parameters = {"test": "test_nothing"}
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        answer = client.infer(model, [], parameters=parameters)
        assert [each["name"] for each in answer.get_response().get("outputs", [])] == outputs
        metadata = client.get_model_metadata(model)
        assert [metadata["inputs"], [each["name"] for each in metadata["outputs"]]] == [[], outputs]
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client:
        answers = grpc_client.infer(model, [], parameters=parameters, client_timeout=DEADLINE_S)
        assert [each.name for each in answers.get_response().outputs] == outputs
    generated = requests.post(f"http://{server.url}/v2/models/{model}/generate", json=parameters, timeout=DEADLINE_S)
    assert generated.status_code == 200, generated.text
    assert ("TOLD" in generated.json()) == bool(outputs)


def test_an_input_that_the_model_has_not_is_refused(server: Server) -> None:
    given = tritonclient.http.InferInput("X", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
    with (
        tritonclient.http.InferenceServerClient(server.url) as client,
        pytest.raises(InferenceServerException, match="expected 0 inputs but got 1 inputs for model 'no_inputs'"),
    ):
        client.infer("no_inputs", [given])
