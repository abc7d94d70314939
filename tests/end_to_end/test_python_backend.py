"""The Python backend through a real server and Triton's client: models as their authors write them."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.server import DEADLINE_S, Server, serving

HEAD = "import asyncio\nimport json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
X_TO_Y = (
    'input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_FP32 dims: -1 } '
    'output { name: "Z" data_type: TYPE_STRING dims: -1 }'
)
#: What `auto_complete_config` has to fill: dims and datatypes.
OPEN_X_TO_Y = 'input { name: "X" optional: true } output { name: "Y" }'
ADD_SUB = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        for name in ("INPUT0", "INPUT1"):
            auto_complete_model_config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in ("OUTPUT0", "OUTPUT1"):
            auto_complete_model_config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.set_max_batch_size(8)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.dtype = pb_utils.triton_string_to_numpy(
            pb_utils.get_output_config_by_name(config, "OUTPUT0")["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[
                pb_utils.Tensor("OUTPUT0", (in_0 + in_1).astype(self.dtype)),
                pb_utils.Tensor("OUTPUT1", (in_0 - in_1).astype(self.dtype))]))
        return responses
"""
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

    def codes(self, request):
        code = getattr(pb_utils.TritonError, json.loads(request.parameters())["code"])
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("an error of the model's", code))

    def raises(self, request):
        raise KeyError("nothing")

    def nothing(self, request):
        return None

    def taken(self, request):
        request.get_response_sender()
        return None

    def both(self, request):
        x = request.inputs()[0].as_numpy()
        asked = json.dumps(request.requested_output_names())
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", x), pb_utils.Tensor("Z", np.array([asked], dtype=object))], parameters={"n": 1})

    def texts(self, request):
        y, values = request.inputs()[0].as_numpy(), np.array([1, 2.5, None, True, "word", b"bytes"], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y), pb_utils.Tensor("Z", values)])

    def writes(self, request):
        x = request.inputs()[0].as_numpy()
        x *= 2
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])

    def dlpack(self, request):
        x = np.from_dlpack(request.inputs()[0])
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", x + 1)])
"""
#: Answers when as many requests wait in it as the parameter `together` says.
TOGETHER = """
class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []

    async def execute(self, requests):
        arrived = asyncio.Event()
        self.waiting.append(arrived)
        if len(self.waiting) == 2:
            for each in self.waiting:
                each.set()
        await arrived.wait()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
                for request in requests]
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
#: Answers X[0] times, from a thread of its own.
REPEAT = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.repeat, args=(request, request.get_response_sender())).start()

    def repeat(self, request, sender):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        for number in range(int(x[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + number)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FORGETFUL = """
class TritonPythonModel:
    def execute(self, requests):
        [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())]) for request in requests]
"""
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


def add_model(repository: Path, name: str, code: str, config: str | None) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(HEAD + textwrap.dedent(code))
    if config is not None:
        (directory.parent / "config.pbtxt").write_text(f'backend: "python" {config}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "add_sub", ADD_SUB, None)
    strings = "TYPE_STRING dims: -1 }"
    add_model(
        repository,
        "strings",
        STRINGS,
        f'input {{ name: "WORDS" data_type: {strings} output {{ name: "UPPER" data_type: {strings}',
    )
    add_model(repository, "obedient", OBEDIENT, X_TO_Y)
    add_model(repository, "together", TOGETHER, X_TO_Y)
    for name, code in (("later", LATER), ("later_in_list", LATER_IN_LIST), ("later_async", LATER_ASYNC)):
        add_model(repository, name, code, X_TO_Y)
    add_model(repository, "forgetful", FORGETFUL, X_TO_Y)
    add_model(repository, "repeat", REPEAT, f"model_transaction_policy {{ decoupled: true }} {X_TO_Y}")
    add_model(repository, "broken", BROKEN, X_TO_Y)
    add_model(repository, "wrong", WRONG, f"max_batch_size: 4 {X_TO_Y}")
    explicit = "model_transaction_policy { decoupled: false }"
    add_model(repository, "flips", COMPLETES.format(decoupled=True), f"{X_TO_Y} {explicit}".replace("-1", "3"))
    add_model(repository, "completes", COMPLETES.format(decoupled=False), OPEN_X_TO_Y)
    with serving(repository, "--exit-on-error=false") as server:
        yield server
        assert server.stop() == 0, server.log.decode()


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url, concurrency=4) as client:
        yield client


def given(name: str, array: Any) -> triton.InferInput:
    tensor = triton.InferInput(name, array.shape, "BYTES" if array.dtype == object else "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def array(result: triton.InferResult, name: str) -> Any:
    found = result.as_numpy(name)
    assert found is not None
    return found


def do(client: triton.InferenceServerClient, what: str, *values: float, **options: Any) -> triton.InferResult:
    parameters = {"do": what, **options.pop("parameters", {})}
    return client.infer("obedient", [given("X", np.array(values, np.float32))], parameters=parameters, **options)


def test_add_sub_without_a_configuration(client: triton.InferenceServerClient) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = client.infer("add_sub", [given("INPUT0", rows), given("INPUT1", rows + 1)])
    assert array(result, "OUTPUT0").tolist() == (2 * rows + 1).tolist()
    assert array(result, "OUTPUT1").tolist() == np.full((2, 4), -1).tolist()
    config = client.get_model_config("add_sub")
    assert (config["backend"], config["max_batch_size"], [each["name"] for each in config["input"]]) == (
        "python", 8, ["INPUT0", "INPUT1"],
    )  # fmt: skip
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]


def test_what_is_named_and_left_open_is_completed(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("completes")
    for field, optional in (("input", True), ("output", None)):
        (tensor,) = config[field]
        found = tensor["data_type"], tensor["dims"], tensor.get("optional")
        assert found == ("TYPE_FP32", [3], optional)
    assert config["model_transaction_policy"] == {"decoupled": False}
    result = client.infer("completes", [given("X", np.ones(3, np.float32))])
    assert array(result, "Y").tolist() == [1, 1, 1]


def test_strings(client: triton.InferenceServerClient) -> None:
    words = np.array([["abc", "é"], ["", "x" * 100]], dtype=object).ravel()
    result = client.infer("strings", [given("WORDS", words)])
    assert array(result, "UPPER").tolist() == [b"ABC", "É".encode(), b"", b"X" * 100]


@pytest.mark.parametrize("size", [0, 10_000])
def test_no_strings_and_many(client: triton.InferenceServerClient, size: int) -> None:
    words = np.array([f"word {number}" for number in range(size)], dtype=object)
    result = client.infer("strings", [given("WORDS", words)])
    assert array(result, "UPPER").tolist() == [f"WORD {number}".encode() for number in range(size)]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNKNOWN", "400"), ("INTERNAL", "500"), ("NOT_FOUND", "404"), ("INVALID_ARG", "400"), ("UNAVAILABLE", "503"),
        ("UNSUPPORTED", "501"), ("ALREADY_EXISTS", "400"), ("CANCELLED", "400"),
    ],
)  # fmt: skip
def test_a_code_is_a_status(client: triton.InferenceServerClient, code: str, status: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        do(client, "codes", 1, parameters={"code": code})
    assert (caught.value.status(), caught.value.message()) == (status, "an error of the model's")


def test_an_exception_is_told_with_its_traceback(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        do(client, "raises", 1)
    message = caught.value.message()
    start = "Failed to process the request(s) for model 'obedient_0', message: KeyError: 'nothing'\n\nAt:\n  /"
    assert message.startswith(start)
    frames = re.findall(r"^  ?/?\S*obedient/1/model\.py\(\d+\): (\w+)$", "  /" + message[len(start) :], re.MULTILINE)
    assert (frames[0], frames[-1]) == ("raises", "execute")  # the innermost first


@pytest.mark.parametrize(
    ("model", "do", "sentence"),
    [
        (
            "obedient",
            "nothing",
            "Failed to process the request(s) for model 'obedient_0', message: Expected an 'InferenceResponse' object "
            "in the execute function return list, found type '<class 'NoneType'>'.",
        ),
        ("obedient", "taken", "The model dropped the response sender of a request without an answer."),
        (
            "forgetful",
            "",
            "Failed to process the request(s) for model 'forgetful_0', message: Expected a list in the execute return, "
            "found type '<class 'NoneType'>'.",
        ),
    ],
)
def test_what_nobody_can_answer_any_more_fails(
    client: triton.InferenceServerClient, model: str, do: str, sentence: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [given("X", np.ones(1, np.float32))], parameters={"do": do})
    assert (caught.value.status(), caught.value.message()) == ("500", sentence)


@pytest.mark.parametrize("model", ["later", "later_in_list", "later_async"])
def test_execute_may_return_nothing_and_a_sender_answer_later(client: triton.InferenceServerClient, model: str) -> None:
    for _ in range(2):
        pending = [client.async_infer(model, [given("X", np.array([value], np.float32))]) for value in (1.0, 2.0)]
        assert [array(each.get_result(timeout=DEADLINE_S), "Y").tolist() for each in pending] == [[1.0], [2.0]]


def test_requested_outputs_and_parameters(client: triton.InferenceServerClient) -> None:
    result = do(client, "both", 1, 2)
    assert array(result, "Y").tolist() == [1, 2]
    assert json.loads(array(result, "Z")[0]) == ["Y", "Z"]
    assert result.get_response()["parameters"] == {"n": 1}
    result = do(client, "both", 1, outputs=[triton.InferRequestedOutput("Z")])
    assert (json.loads(array(result, "Z")[0]), result.as_numpy("Y")) == (["Z"], None)


def test_elements_that_are_no_strings_are_answered_as_their_text(client: triton.InferenceServerClient) -> None:
    found = array(do(client, "texts", 1), "Z").tolist()
    assert found == [b"1", b"2.5", b"None", b"True", b"word", b"bytes"]


def test_empty_tensors_and_other_frameworks(client: triton.InferenceServerClient) -> None:
    assert array(do(client, "both"), "Y").tolist() == []
    assert array(do(client, "dlpack", 1, 2), "Y").tolist() == [2, 3]


def test_a_model_that_writes_into_its_inputs(client: triton.InferenceServerClient, server: Server) -> None:
    for _ in range(2):
        assert array(do(client, "writes", 1, 2), "Y").tolist() == [2, 4]
    assert server.read_log(b"model instance 'obedient_0' writes into its inputs")


def test_coroutines_wait_beside_each_other(client: triton.InferenceServerClient) -> None:
    first, second = (
        client.async_infer("together", [given("X", np.array([value], np.float32))]) for value in (1.0, 2.0)
    )
    assert (array(first.get_result(), "Y").tolist(), array(second.get_result(), "Y").tolist()) == ([1.0], [2.0])


@pytest.mark.parametrize("times", [0, 1, 5])
def test_a_decoupled_model_answers_any_number_of_times(server: Server, times: int) -> None:
    url = f"http://{server.url}/v2/models/repeat/generate_stream"
    with urlopen(Request(url, json.dumps({"X": [times]}).encode()), timeout=DEADLINE_S) as reply:
        events = [json.loads(line.removeprefix(b"data: ")) for line in reply if line.strip()]
    assert [event["Y"] for event in events] == [times + number for number in range(times)]


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
