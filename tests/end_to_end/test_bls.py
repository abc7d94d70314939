"""Models that ask other models, written as users of Triton's Python backend write them, through a whole server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import requests

from tests.end_to_end.repositories import config_text
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, serving

HEAD = """
import asyncio, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils


def ask(model, tensor, outputs=("Y",), **more):
    tensor = pb_utils.Tensor("X", tensor) if isinstance(tensor, np.ndarray) else tensor
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=[tensor], **more
    )


def checked(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response


def answer(tensor):
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("Y", tensor)])


def x_of(request):
    return pb_utils.get_input_tensor_by_name(request, "X")


def y_of(response):
    return pb_utils.get_output_tensor_by_name(checked(response), "Y")
"""

DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(x_of(request).as_numpy() * 2) for request in requests]
"""
#: A tensor of the request and one of a response are passed on as they are.
CHAIN = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            first = y_of(ask("double", x_of(request)).exec())
            second = pb_utils.Tensor("X", first.as_numpy())
            first._name = "X"
            by_copy, by_reference = ask("double", second).exec(), ask("double", first, outputs=()).exec()
            responses.append(answer(y_of(by_copy).as_numpy() + y_of(by_reference).as_numpy()))
        return responses
"""
GATHER = """
class TritonPythonModel:
    async def execute(self, requests):
        calls = [ask("double", x_of(request)).async_exec() for request in requests for _ in range(3)]
        found = [y_of(response).as_numpy() for response in await asyncio.gather(*calls)]
        return [answer(sum(found[3 * index : 3 * index + 3])) for index in range(len(requests))]
"""
REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, values = request.get_response_sender(), x_of(request).as_numpy()
            for value in values.tolist():
                sender.send(answer(np.array([value], np.float32)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ITERATE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            total = np.zeros(1, np.float32)
            for response in ask("repeat", x_of(request)).exec(decoupled=True):
                if len(response.output_tensors()) > 0:
                    total = total + y_of(response).as_numpy()
            responses.append(answer(total))
        return responses
"""
THREADS = """
class TritonPythonModel:
    def execute(self, requests):
        found = {}

        def call(number, x):
            found[number] = y_of(ask("double", x).exec()).as_numpy()

        x = x_of(requests[0]).as_numpy().copy()
        threads = [threading.Thread(target=call, args=(number, x + number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answer(sum(found.values())) for _ in requests]
"""
#: Tells in words what became of calls that fail.
ERRORS = """
class TritonPythonModel:
    def execute(self, requests):
        mode = int(x_of(requests[0]).as_numpy()[0])
        x = np.ones(1, np.float32)
        if mode == 0:
            request = ask("none", x)
        elif mode == 1:
            request = ask("double", x, outputs=("Z",))
        elif mode == 2:
            request = ask("double", x.astype(np.int32))
        elif mode == 3:
            request = ask("repeat", x)
        elif mode == 4:
            request = ask("broken", x)
        else:
            request = ask("selfish", x)
        response = request.exec()
        assert response.has_error() and response.output_tensors() == []
        error = response.error()
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{int(error.code())}: {error.message()}"))]
"""
BROKEN = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("it is broken", pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
SELFISH = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(y_of(ask("selfish", x_of(request)).exec()).as_numpy()) for request in requests]
"""
EAGER = """
class TritonPythonModel:
    def initialize(self, args):
        try:
            ask("double", np.ones(1, np.float32)).exec()
        except pb_utils.TritonModelException as error:
            self.sentence = str(error)

    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(self.sentence)) for _ in requests]
"""
LOADER = """
class TritonPythonModel:
    def execute(self, requests):
        x = x_of(requests[0]).as_numpy()
        assert not pb_utils.is_model_ready("late")
        early = ask("late", x).exec()
        assert early.error().message().endswith("Model 'late' is not ready."), early.error().message()
        pb_utils.load_model("late")
        assert pb_utils.is_model_ready("late") and pb_utils.is_model_ready("late", "1")
        y = y_of(ask("late", x).exec()).as_numpy()
        pb_utils.unload_model("late")
        assert not pb_utils.is_model_ready("late", "1")
        try:
            pb_utils.load_model("none")
        except pb_utils.TritonModelException as error:
            assert "failed to load 'none'" in str(error), str(error)
        else:
            raise AssertionError("loaded what is not there")
        return [answer(y)]
"""
WISHES = """
class TritonPythonModel:
    def execute(self, requests):
        request = ask(
            "mirror", x_of(requests[0]), request_id="r1", correlation_id=7, flags=3, timeout=5_000_000,
            parameters={"colour": "red", "number": 3},
        )
        return [answer(y_of(request.exec()).as_numpy())]
"""
MIRROR = """
import json

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            assert request.request_id() == "r1" and request.correlation_id() == 7 and request.flags() == 3
            assert request.timeout() == 5_000_000
            assert json.loads(request.parameters()) == {"colour": "red", "number": 3, "traceparent": "00-ab-cd-01"}
        return [answer(x_of(request).as_numpy()) for request in requests]
"""
#: Answers its requests when four wait in it.
FOUR = """
class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []

    def execute(self, requests):
        self.waiting += [(request.get_response_sender(), x_of(request).as_numpy().copy()) for request in requests]
        while len(self.waiting) >= 4:
            for sender, x in self.waiting[:4]:
                sender.send(answer(x))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            del self.waiting[:4]
"""
#: Iterates as Triton's QA does: without `async`, over what it has awaited.
AWAIT_ITERATOR = """
class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            found = [each for each in await ask("four", x_of(request)).async_exec(decoupled=True)]
            responses.append(answer(y_of(found[0]).as_numpy()))
        return responses
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def write(root: Path, name: str, source: str, *, batch: int = 0, more: str = "") -> None:
    directory = root / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(HEAD + dedent(source))
    (directory.parent / "config.pbtxt").write_text(config_text("python", "X FP32 -1", "Y FP32 -1", more, rows=batch))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    write(root, "double", DOUBLE)
    write(root, "chain", CHAIN)
    write(root, "gather", GATHER)
    write(root, "repeat", REPEAT, more=DECOUPLED)
    write(root, "iterate", ITERATE)
    write(root, "threads", THREADS)
    write(root, "errors", ERRORS)
    write(root, "broken", BROKEN)
    write(root, "selfish", SELFISH)
    write(root, "eager", EAGER)
    write(root, "wishes", WISHES)
    write(root, "mirror", MIRROR)
    write(root, "loader", LOADER)
    write(root, "late", DOUBLE)
    write(root, "four", FOUR, more=DECOUPLED)
    write(root, "await_iterator", AWAIT_ITERATOR)
    flags = [f"--load-model={each.name}" for each in root.iterdir() if each.name != "late"]
    flags += ["--model-control-mode=explicit", "--http-header-forward-pattern=traceparent"]
    with serving(root, *flags) as started:
        yield started


def infer(server: Server, model: str, *values: float, headers: dict[str, str] | None = None, **parameters: int) -> Any:
    tensor = {"name": "X", "shape": [len(values)], "datatype": "FP32", "data": list(values)}
    body: dict[str, Any] = {"inputs": [tensor], "parameters": parameters}
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/infer"
    response = requests.post(url, json=body, headers=headers, timeout=DEADLINE_S)
    found = response.json()
    return found["outputs"][0]["data"] if response.ok else found["error"]


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        ("chain", [1, 2], [8, 16]),
        ("gather", [1, 2], [6, 12]),
        ("iterate", [1, 2, 3], [6]),
        ("threads", [1], [72]),
        ("loader", [3], [6]),
    ],
)
def test_a_pipeline(server: Server, model: str, values: list[float], expected: list[float]) -> None:
    assert infer(server, model, *values) == expected


def test_awaiting_a_decoupled_call_leaves_the_event_loop_to_others(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(infer, server, "await_iterator", value) for value in (1, 2, 3, 4)]
        assert [each.result() for each in asked] == [[1], [2], [3], [4]]


@pytest.mark.parametrize("model", ["chain", "gather"])
def test_large_tensors_are_lent(server: Server, model: str) -> None:
    values = np.arange(100_000, dtype=np.float32)
    factor = {"chain": 8, "gather": 6}[model]
    for _ in range(3):
        assert infer(server, model, *values.tolist()) == (values * factor).tolist()


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (
            0,
            "4: Model none - Error when running inference: Failed for execute the inference request. Model 'none' is "
            "not ready.",
        ),
        (1, "3: Model double - Error when running inference: unexpected inference output 'Z' for model 'double'"),
        (
            2,
            "3: Model double - Error when running inference: [request id: <id_unknown>] inference input 'X' data-type "
            "is 'INT32', but model 'double' expects 'FP32'",
        ),
        (
            3,
            "1: Model repeat - Error when running inference: Model repeat is using the decoupled. The current BLS "
            "request call doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' "
            "argument to the 'exec' or 'async_exec' calls for decoupled models.'",
        ),
        (4, "4: it is broken"),
    ],
)
def test_what_fails_is_a_response_with_an_error(server: Server, mode: int, sentence: str) -> None:
    assert infer(server, "errors", mode) == sentence


def test_a_model_that_waits_for_itself_is_told_so(server: Server) -> None:
    """When the time is up that its client gives it, which is long before the server gives up."""
    told = infer(server, "selfish", 1, timeout=1_000_000)
    assert "model 'selfish' has called itself, and its only instance waits for that call" in told


def test_calls_before_initialize_has_finished_are_refused(server: Server) -> None:
    assert infer(server, "eager", 1) == "BLS is only supported during the 'execute' function."


def test_what_a_call_says_and_inherits_arrives(server: Server) -> None:
    assert infer(server, "wishes", 1, headers={"traceparent": "00-ab-cd-01"}) == [1]


def test_nothing_is_left(server: Server) -> None:
    server.ledger_once(lambda ledger: not imbalances(ledger))
