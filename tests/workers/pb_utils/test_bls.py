"""bls.py: waiting for responses of other models, in threads and coroutines, over a runtime that a test plays."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from triton_python_backend_utils import (
    InferenceRequest,
    InferenceResponse,
    ResponseIterator,
    Tensor,
    TritonModelException,
    get_model_dir,
    is_model_ready,
    load_model,
    runtime,
    unload_model,
)
from triton_python_backend_utils.model_request import ModelRequest
from triton_python_backend_utils.runtime import OnResponse, Runtime


class Server(Runtime):
    """Answers in a thread of its own what it is told to."""

    model_dir = "/models/m/1"
    can_call_models = True

    def __init__(self) -> None:
        self.answers: list[tuple[InferenceResponse | None, bool]] = []
        self.num_cancelled = 0
        self.said: list[tuple[object, ...]] = []

    def submit(self, request: ModelRequest, decoupled: bool, on_response: OnResponse) -> Callable[[], None]:
        self.said.append((request._model_name, decoupled))
        threading.Thread(target=self._answer, args=(on_response,)).start()
        return self._cancel

    def _answer(self, on_response: OnResponse) -> None:
        for answer in self.answers:
            on_response(*answer)

    def _cancel(self) -> None:
        self.num_cancelled += 1

    def load_model(self, name: str, config: str, files: dict[str, bytes] | None) -> None:
        self.said.append(("load", name, config, files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self.said.append(("unload", name, unload_dependents))

    def is_model_ready(self, name: str, version: str) -> bool:
        return (name, version) == ("m", "2")

    def log(self, level: str, message: str, file: str, line: int) -> None:
        self.said.append((level, message, file, line))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    runtime.set_runtime(made)
    yield made
    runtime.set_runtime(None)


def request() -> InferenceRequest:
    return InferenceRequest(inputs=[], requested_output_names=[], model_name="other")


def response(value: int) -> InferenceResponse:
    return InferenceResponse([Tensor("Y", np.array(value))])


def values(responses: list[InferenceResponse]) -> list[int]:
    return [int(tensor.as_numpy()) for each in responses for tensor in each.output_tensors()]


def test_exec_waits_for_the_response(server: Server) -> None:
    server.answers = [(response(1), True)]
    answer = request().exec()
    assert isinstance(answer, InferenceResponse)
    assert values([answer]) == [1]
    assert server.said == [("other", False)]


def test_a_decoupled_call_is_iterated_over_as_often_as_one_likes(server: Server) -> None:
    server.answers = [(response(1), False), (response(2), False), (None, True)]
    responses = request().exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    assert [len(each.output_tensors()) for each in responses] == [1, 1, 0]  # the last is empty, as in Triton
    assert values(list(responses)) == [1, 2]
    with pytest.raises(StopIteration):
        responses.next()


def test_coroutines_wait_beside_each_other(server: Server) -> None:
    server.answers = [(response(3), True)]

    async def both() -> list[InferenceResponse]:
        answers = await asyncio.gather(request().async_exec(), request().async_exec())
        return [answer for answer in answers if isinstance(answer, InferenceResponse)]

    assert values(asyncio.run(both())) == [3, 3]


def test_a_decoupled_call_in_a_coroutine(server: Server) -> None:
    server.answers = [(response(1), False), (response(2), True)]

    async def iterate() -> list[InferenceResponse]:
        responses = await request().async_exec(decoupled=True)
        assert isinstance(responses, ResponseIterator)
        return [each async for each in responses]

    assert values(asyncio.run(iterate())) == [1, 2]


def test_a_coroutine_that_is_cancelled_cancels_its_call(server: Server) -> None:
    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request().async_exec(), 0)
        task = asyncio.ensure_future(request().async_exec())
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert server.num_cancelled >= 1


def test_cancel_is_for_what_runs(server: Server) -> None:
    server.answers = [(response(1), True)]
    responses = request().exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    list(responses)
    responses.cancel()
    assert server.num_cancelled == 0


def test_no_other_model_is_asked_before_initialize_is_over(server: Server) -> None:
    server.can_call_models = False
    with pytest.raises(TritonModelException, match=r"^BLS is only supported during the 'execute' function\.$"):
        request().exec()
    assert server.said == []


def test_models_are_loaded_by_the_server(server: Server) -> None:
    load_model("m")
    load_model("m", config="{}", files={"file:1/model.onnx": b"x"})
    unload_model("m", unload_dependents=True)
    assert server.said == [
        ("load", "m", "", None), ("load", "m", "{}", {"file:1/model.onnx": b"x"}), ("unload", "m", True),
    ]  # fmt: skip
    assert (is_model_ready("m", "2"), is_model_ready("m")) == (True, False)
    assert get_model_dir() == "/models/m/1"


@pytest.mark.parametrize(
    "call",
    [lambda: request().exec(), lambda: load_model("m"), lambda: unload_model("m"), lambda: is_model_ready("m"),
     get_model_dir],
)  # fmt: skip
def test_a_plain_interpreter_has_no_server(call: Callable[[], object]) -> None:
    with pytest.raises(TritonModelException, match="needs a running server: this is a plain Python interpreter"):
        call()
