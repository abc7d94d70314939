"""Deadlines, disconnects and refusals as clients meet them, over HTTP and gRPC.

`held` writes down what it executes and stands still in request 100 until its gate is opened, or until it is told that
nobody waits any more: what is sent meanwhile queues up. `steady` and `queueing` take 20 ms for an execution. Known from
executions of one row, it is what each of many rows is thought to take.
"""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch
from tests.end_to_end.figures import metric, wait_for_pending
from tests.end_to_end.raw_client import Client
from tests.end_to_end.repositories import add_model, python_model
from tests.end_to_end.server import DEADLINE_S, Server, serving, signal_worker, wait_until

#: A request to a model, with a number.
Asked = Callable[[str, int], bytes]
HOLD = 100
#: So long is a deadline that is to pass: far longer than a request is on its way.
SOON_S = 2.0
#: At 20 ms each 80 s, which is later than any deadline and timeout here.
MANY_ROWS = 4000
TENSORS = """
    input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
    instance_group { count: 1 kind: KIND_CPU }
"""
HELD = python_model("""
    def initialize(self, args):
        self.path = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        number = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
        self.tell(number)
        while number == 100 and not os.path.exists(f"{self.path}/gate"):
            if request.is_cancelled():
                self.tell("cancelled")
                break
            time.sleep(0.005)  # Triton's API can be asked, not waited on
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])]

    def tell(self, what):
        with open(f"{self.path}/told", "a") as file:
            file.write(f"{what}\\n")
""")
CALLER = python_model("""
    def execute(self, requests):
        (request,) = requests
        call = pb_utils.InferenceRequest(model_name="held", requested_output_names=["Y"], inputs=request.inputs())
        response = call.exec()
        if response.has_error():
            return [pb_utils.InferenceResponse(error=response.error())]
        return [pb_utils.InferenceResponse(response.output_tensors())]
""")
ENSEMBLE = """
    platform: "ensemble"
    input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
    ensemble_scheduling { step { model_name: "held" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""
STEADY = f"""
    backend: "identity" {TENSORS}
    max_batch_size: {MANY_ROWS}
    parameters {{ key: "execute_delay_ms" value: {{ string_value: "20" }} }}
"""


class Story:
    """The server, and what happens to its models."""

    def __init__(self, server: Server, repository: Path, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self.pool = pool
        self._held = repository / "held"
        self._clients: list[triton_grpc.InferenceServerClient] = []
        self._local = threading.local()

    def ask(self, model: str, number: int, timeout_s: float | None = None, rows: int = 0) -> int:
        """Over gRPC, a connection for each thread; the answer. `rows` is for models that have batches."""
        if not hasattr(self._local, "client"):
            self._local.client = triton_grpc.InferenceServerClient(f"127.0.0.1:{self.server.grpc_port}")
            self._clients.append(self._local.client)
        array = np.full((rows, 1) if rows else 1, number, np.int32)
        tensor = triton_grpc.InferInput("X", list(array.shape), "INT32")
        tensor.set_data_from_numpy(array)
        result = self._local.client.infer(model, [tensor], client_timeout=timeout_s)
        answer = None if result is None else result.as_numpy("Y")
        assert answer is not None
        return int(answer.flat[0])

    def send(self, model: str, number: int, timeout_s: float | None = None, rows: int = 0) -> "Future[int]":
        """The same, meanwhile."""
        return self.pool.submit(self.ask, model, number, timeout_s, rows)

    def post(self, model: str, number: int, rows: int) -> tuple[int, dict[str, str], Any]:
        """Over HTTP; status, headers, body."""
        reply = fetch(self.server.http_port, f"/v2/models/{model}/infer", body(number, rows))
        return reply.status, dict(reply.headers.items()), reply.json

    def hold(self) -> "Future[int]":
        """The instance of `held` stands still when this returns."""
        count = len(self.told())
        held = self.send("held", HOLD)
        self.wait_for_told(count + 1)
        return held

    def let_go(self) -> None:
        """The gate opens until nothing waits any more, and closes again."""
        (self._held / "gate").touch()
        wait_for_pending(self.server, "held", 0)
        assert self.ask("held", 1) == 1
        (self._held / "gate").unlink()

    def told(self) -> list[str]:
        path = self._held / "told"
        return path.read_text().split() if path.exists() else []

    def wait_for_told(self, count: int) -> str:
        """What it says after so much."""
        wait_until(lambda: len(self.told()) >= count, self.told)
        return self.told()[count - 1]

    def failures(self, reason: str, model: str = "held") -> float:
        return metric(self.server, "nv_inference_request_failure", model=model, reason=reason)

    def num_gone(self) -> float:
        """Requests that have left the queue of `held`; a client that does not wait any more says so, too."""
        return self.failures("REJECTED") + self.failures("CANCELED")

    def wait_for_failures(self, reason: str, count: float) -> None:
        wait_until(lambda: self.failures(reason) >= count, lambda: self.failures(reason))
        assert self.failures(reason) == count

    def close(self) -> None:
        for client in self._clients:
            client.close()


def body(number: int, rows: int = 0) -> bytes:
    shape, data = [rows, 1] if rows else [1], [number] * (rows or 1)
    return json.dumps({"inputs": [{"name": "X", "datatype": "INT32", "shape": shape, "data": data}]}).encode()


def post(model: str, number: int) -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body(number))}\r\n\r\n"
    return head.encode() + body(number)


def post_chunked(model: str, number: int) -> bytes:
    """The same by the road."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body(number)), body(number))


def post_generate(model: str, number: int) -> bytes:
    """The same without a tensor's trappings, by the road."""
    flat = b'{"X": %d}' % number
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(flat)}\r\n\r\n"
    return head.encode() + flat


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    repository = tmp_path_factory.mktemp("models")
    timeout = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 } }"
    models = {
        "held": f'backend: "python" {TENSORS}',
        "caller": f'backend: "python" {TENSORS}'.replace("count: 1", "count: 2"),
        "whole": ENSEMBLE,
        "steady": STEADY,
        "queueing": f"{STEADY} {timeout}",
    }
    for name, config in models.items():
        add_model(repository, name, config)
    (repository / "held" / "1" / "model.py").write_text(HELD)
    (repository / "caller" / "1" / "model.py").write_text(CALLER)
    with serving(repository, "--allow-grpc=true") as server, ThreadPoolExecutor(24) as pool:
        story = Story(server, repository, pool)
        try:
            yield story
            assert server.stop() == 0
        finally:
            story.close()


def refusal(answer: "Future[int]") -> tuple[str, str]:
    error = answer.exception(DEADLINE_S)
    assert isinstance(error, InferenceServerException)
    return str(error.status()), str(error.message())


@pytest.mark.parametrize("model", ["held", "whole", "caller"])
def test_a_queued_request_leaves_at_its_deadline_though_the_instance_stands_still(story: Story, model: str) -> None:
    """Whoever asks for it: a client, an ensemble, or a model that calls another one."""
    held, before = story.hold(), story.num_gone()
    late = story.send(model, 7, timeout_s=SOON_S)
    assert refusal(late)[0] in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.UNAVAILABLE")
    wait_until(lambda: story.num_gone() == before + 1, story.num_gone)
    assert metric(story.server, "nv_inference_pending_request_count", model="held") == 0
    assert not held.done()
    story.let_go()
    assert held.result(DEADLINE_S) == HOLD
    assert "7" not in story.told()


@pytest.mark.parametrize(("model", "asked"), [("held", post), ("whole", post), ("held", post_chunked)])
def test_what_a_client_of_http_has_queued_is_dropped_when_it_hangs_up(story: Story, model: str, asked: Asked) -> None:
    held, before = story.hold(), story.failures("CANCELED")
    leaving = Client(story.server).send(asked(model, 7))
    staying = Client(story.server).send(asked(model, 8)).finish()
    wait_for_pending(story.server, "held", 2)
    leaving.socket.close()  # no reset: it has read all there was
    story.wait_for_failures("CANCELED", before + 1)
    story.let_go()
    reply = staying.reply()  # it has only closed its side
    assert (reply.status, json.loads(reply.body)["outputs"][0]["data"]) == (200, [8])
    staying.socket.close()
    assert held.result(DEADLINE_S) == HOLD
    assert "7" not in story.told()


@pytest.mark.parametrize(
    ("model", "asked"),
    [("held", post), ("whole", post), ("caller", post), ("held", post_chunked), ("held", post_generate)],
)
def test_a_model_at_work_hears_that_its_client_has_hung_up(story: Story, model: str, asked: Asked) -> None:
    count = len(story.told())
    client = Client(story.server).send(asked(model, HOLD))
    assert story.wait_for_told(count + 1) == str(HOLD)
    client.socket.close()
    assert story.wait_for_told(count + 2) == "cancelled"


def test_a_cancelled_call_of_grpc_leaves_the_queue(story: Story) -> None:
    held, before = story.hold(), story.failures("CANCELED")
    with grpc.insecure_channel(f"127.0.0.1:{story.server.grpc_port}") as channel:
        tensor = triton_grpc.InferInput("X", [1], "INT32")
        tensor.set_data_from_numpy(np.array([7], np.int32))
        service: Any = triton_grpc.service_pb2  # its messages are made when it is loaded
        request = service.ModelInferRequest(model_name="held", inputs=[tensor._get_tensor()])
        request.raw_input_contents.append(tensor._get_content())
        call = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(request)
        wait_for_pending(story.server, "held", 1)
        call.cancel()
        story.wait_for_failures("CANCELED", before + 1)
    story.let_go()
    assert held.result(DEADLINE_S) == HOLD


@contextmanager
def stopped(story: Story, model: str) -> Iterator[None]:
    """The model's instance ends no execution meanwhile."""
    signal_worker(story.server, model, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_worker(story.server, model, signal.SIGCONT)


def test_who_would_be_late_is_refused_at_once_over_grpc(story: Story) -> None:
    """Of two, whoever comes first is executed, and the other one would have to wait for it."""
    for number in range(6):
        assert story.ask("steady", number, DEADLINE_S, rows=1) == number
    with stopped(story, "steady"):
        sent = [story.send("steady", number, DEADLINE_S, MANY_ROWS) for number in range(2)]
        (refused,), (executed,) = wait(sent, DEADLINE_S, FIRST_COMPLETED)
        status, message = refusal(refused)
    assert (status, "model 'steady' is overloaded: it needs about " in message) == ("StatusCode.UNAVAILABLE", True)
    assert executed.result(DEADLINE_S) == sent.index(executed)


def test_who_would_wait_too_long_is_refused_at_once_over_http(story: Story) -> None:
    for number in range(6):
        assert story.post("queueing", number, 1)[0] == 200
    with stopped(story, "queueing"):
        sent = [story.pool.submit(story.post, "queueing", number, MANY_ROWS) for number in range(2)]
        (refused,), (executed,) = wait(sent, DEADLINE_S, FIRST_COMPLETED)
        status, headers, told = refused.result()
    assert status == 503
    assert int(headers["Retry-After"]) >= 1
    assert told["error"].startswith("[request id: <id_unknown>] model 'queueing' is overloaded: it needs about ")
    assert executed.result(DEADLINE_S)[0] == 200
