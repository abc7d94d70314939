"""The Python backend through a real server and Triton's client: models as their authors write them."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.end_to_end.asking import outputs, tensors
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end

HEAD = "import asyncio\nimport json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
X_TO_Y = (
    'input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_FP32 dims: -1 } '
    'output { name: "Z" data_type: TYPE_STRING dims: -1 }'
)
#: What `auto_complete_config` has to fill: dims and datatypes.
OPEN_X_TO_Y = 'input { name: "X" optional: true } output { name: "Y" }'
STRINGS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()
            upper = np.array([word.decode().upper() for word in words.ravel()], dtype=object).reshape(words.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("UPPER", upper)]))
        return responses
"""
#: Does what the request's parameter `do` says.
OBEDIENT = """
class TritonPythonModel:
    def execute(self, requests):
        return [getattr(self, json.loads(request.parameters())["do"])(request) for request in requests]

    def texts(self, request):
        y, values = request.inputs()[0].as_numpy(), np.array([1, 2.5, None, True, "word", b"bytes"], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y), pb_utils.Tensor("Z", values)])

    def writes(self, request):
        x = request.inputs()[0].as_numpy()
        x *= 2
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
"""
#: Returns nothing; the second request has the first, which was returned unanswered, answered by its sender.
LATER = """
class TritonPythonModel:
    first = None

    def execute(self, requests):
        for request in requests:
            if self.first is None:
                self.first = request
                continue
            first, self.first = self.first, None
            for each in (first, request):
                each.get_response_sender().send(pb_utils.InferenceResponse(
                    [pb_utils.Tensor("Y", each.inputs()[0].as_numpy())]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
#: The same of a list, and of a coroutine.
LATER_IN_LIST = LATER + "        return [None for _ in requests]\n"
LATER_ASYNC = LATER.replace("def execute", "async def execute")
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("no weights")
"""
WRONG = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(1)
        return auto_complete_model_config
"""
COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        for add in (auto_complete_model_config.add_input, auto_complete_model_config.add_output):
            add({{"name": "X" if add == auto_complete_model_config.add_input else "Y",
                 "data_type": "TYPE_FP32", "dims": [3]}})
        auto_complete_model_config.set_model_transaction_policy({{"decoupled": {decoupled}}})
        return auto_complete_model_config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
                for request in requests]
"""


def add_model(repository: Path, name: str, code: str, config: str) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(HEAD + textwrap.dedent(code))
    (directory.parent / "config.pbtxt").write_text(f'backend: "python" {config}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    strings = "TYPE_STRING dims: -1 }"
    add_model(
        repository,
        "strings",
        STRINGS,
        f'input {{ name: "WORDS" data_type: {strings} output {{ name: "UPPER" data_type: {strings}',
    )
    add_model(repository, "obedient", OBEDIENT, X_TO_Y)
    for name, code in (("later", LATER), ("later_in_list", LATER_IN_LIST), ("later_async", LATER_ASYNC)):
        add_model(repository, name, code, X_TO_Y)
    add_model(repository, "broken", BROKEN, X_TO_Y)
    add_model(repository, "wrong", WRONG, f"max_batch_size: 4 {X_TO_Y}")
    explicit = "model_transaction_policy { decoupled: false }"
    add_model(repository, "flips", COMPLETES.format(decoupled=True), f"{X_TO_Y} {explicit}".replace("-1", "3"))
    add_model(repository, "completes", COMPLETES.format(decoupled=False), OPEN_X_TO_Y)
    with serving_to_the_end(repository, "--exit-on-error=false") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url, concurrency=4) as client:
        yield client


def do(client: triton.InferenceServerClient, what: str, *values: float) -> triton.InferResult:
    return client.infer("obedient", tensors({"X": np.array(values, np.float32)}), parameters={"do": what})


def test_what_is_named_and_left_open_is_completed(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("completes")
    for field, optional in (("input", True), ("output", None)):
        (tensor,) = config[field]
        found = tensor["data_type"], tensor["dims"], tensor.get("optional")
        assert found == ("TYPE_FP32", [3], optional)
    assert config["model_transaction_policy"] == {"decoupled": False}
    result = client.infer("completes", tensors({"X": np.ones(3, np.float32)}))
    assert outputs(result)["Y"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "words", [["abc", "é", "", "x" * 100], [], [f"word {number}" for number in range(10_000)]], ids=len
)
def test_strings(client: triton.InferenceServerClient, words: list[str]) -> None:
    result = client.infer("strings", tensors({"WORDS": np.array(words, dtype=object)}))
    assert outputs(result)["UPPER"].tolist() == [word.upper().encode() for word in words]


@pytest.mark.parametrize("model", ["later", "later_in_list", "later_async"])
def test_execute_may_return_nothing_and_a_sender_answer_later(client: triton.InferenceServerClient, model: str) -> None:
    for _ in range(2):
        pending = [client.async_infer(model, tensors({"X": np.array([value], np.float32)})) for value in (1.0, 2.0)]
        assert [outputs(each.get_result(timeout=DEADLINE_S))["Y"].tolist() for each in pending] == [[1.0], [2.0]]


def test_elements_that_are_no_strings_are_answered_as_their_text(client: triton.InferenceServerClient) -> None:
    found = outputs(do(client, "texts", 1))["Z"].tolist()
    assert found == [b"1", b"2.5", b"None", b"True", b"word", b"bytes"]


def test_a_model_that_writes_into_its_inputs(client: triton.InferenceServerClient, server: Server) -> None:
    for _ in range(2):
        assert outputs(do(client, "writes", 1, 2))["Y"].tolist() == [2, 4]
    assert server.read_log(b"model instance 'obedient_0' writes into its inputs")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "Internal: RuntimeError: no weights\n\nAt:\n  "),
        (
            "wrong",
            "Internal: ValueError: configuration specified max_batch_size 4, but in auto-complete-config function for "
            "model 'wrong' specified max_batch_size 1\n\nAt:\n  ",
        ),
        (
            "flips",
            "Internal: ValueError: trying to change decoupled property in auto-complete-config for model 'flips', "
            "which is already set to 'False'.\n\nAt:\n  ",
        ),
    ],
)
def test_why_a_model_does_not_load(client: triton.InferenceServerClient, name: str, reason: str) -> None:
    (row,) = [row for row in client.get_model_repository_index() if row["name"] == name]
    assert (row["state"], row["reason"].startswith(reason)) == ("UNAVAILABLE", True), row
