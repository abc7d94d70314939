"""A front end's state with models in every situation, its counters in a real segment, certificates, and no process but
this one."""

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.frontend.prepared import PreparedRequest, block_nbytes, write_block
from shoal.frontend.response import Response
from shoal.frontend.road.app import create_app
from shoal.frontend.road.endpoints import Endpoints
from shoal.frontend.road.transport import ModelResponse, StreamedResponse, Transport
from shoal.frontend.router import HTTP, answer
from shoal.frontend.state import ServerState
from shoal.frontend.tracing import TracedRequest
from shoal.request import InferResponse, unpack_request
from shoal.shm import segment
from shoal.shm.counters import GEOMETRY, CounterTable, CounterTableView
from shoal.shm.layout import COUNTERS, unpack_span
from shoal.shm.segment import Segment, SegmentView
from tests.certificates import Certificates, make_certificates
from tests.frontend.lane_star import Star
from tests.messages import model_message
from tests.star.conftest import make_entry

__all__ = ["make_entry"]  # one version of a model as a front end knows it


def tensor(name: str, data_type: str, dims: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, **more}


SIMPLE = {
    "name": "simple",
    "platform": "onnxruntime_onnx",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [tensor("INPUT0", "TYPE_INT32", [16]), tensor("INPUT1", "TYPE_INT32", [16])],
    "output": [tensor("OUTPUT0", "TYPE_INT32", [16]), tensor("OUTPUT1", "TYPE_INT32", [16])],
    "metric_tags": {},
    "dynamic_batching": {"max_queue_delay_microseconds": 9007199254740993},
}
ECHO = {
    "name": "écho b",
    "platform": "",
    "backend": "identity",
    "max_batch_size": 0,
    "input": [tensor("TEXT", "TYPE_STRING", [-1, 2], reshape={"shape": [-1]})],
    "output": [tensor("TEXT", "TYPE_STRING", [-1, 2])],
    "metric_tags": {"team": 'a"b\\c\nd'},
}
LOG_SETTINGS = {"log_verbose": 0, "log_info": True, "log_warning": True, "log_error": True, "log_format": "default"}
STREAM = {**ECHO, "name": "stream", "metric_tags": {}, "model_transaction_policy": {"decoupled": True}}


@pytest.fixture
def make_message() -> Any:
    return model_message


@pytest.fixture(scope="session")
def _memory() -> tuple[Segment, SegmentView]:
    fd = segment.create(COUNTERS, 1, GEOMETRY, sealed=False)
    view = SegmentView.attach(segment.read_only(fd))
    return Segment.attach(fd), view


@pytest.fixture
def counters(_memory: tuple[Segment, SegmentView]) -> CounterTable:
    """The batcher's side of the counters that `state` reads; rows 0 to 9 are zero."""
    table = CounterTable(_memory[0])
    for index in range(10):
        table.row(index)
    return table


@pytest.fixture
def state(_memory: tuple[Segment, SegmentView], counters: CounterTable) -> ServerState:
    """Started, with `simple` (1 and 3 READY, 2 LOADING), `écho b`, `stream`, `asleep`, `gone`, `loading`, `broken`."""
    state = ServerState(
        server_id="triton",
        started=True,
        max_request_bytes=1000,
        endpoints={
            "10.0.0.1:8000": "http",
            "10.0.0.1:8002": "metrics",
            "10.0.0.1:8080": "sagemaker",
            "10.0.0.1:8081": "vertex-ai",
            "10.0.0.2:8000": "metrics",
        },
        sagemaker_default_model="simple",
        vertex_ai_default_model="simple",
        vertex_ai_predict_route="/predict",
        vertex_ai_health_route="/health",
        log_settings=LOG_SETTINGS,
        counters=CounterTableView(_memory[1]),
    )
    for message in (
        model_message("simple", 1, 1, SIMPLE),
        model_message("simple", 3, 3, SIMPLE),
        model_message("simple", 2, 2, SIMPLE, state="LOADING", num_instances_up=0),
        model_message("écho b", 1, 4, ECHO),
        model_message("stream", 1, 5, STREAM),
        model_message("asleep", 7, 6, {**SIMPLE, "name": "asleep"}, num_instances_up=0),
        model_message("gone", 1, 7, None, state="UNAVAILABLE", reason="unloaded", num_instances_up=0),
        model_message("loading", 1, 8, None, state="LOADING", num_instances_up=0),
        model_message("broken", -1, 9, None, row=-1, state="UNAVAILABLE", reason="Internal: no", num_instances_up=0),
    ):
        state.models.apply(message)
    return state


#: What a supervisor without instances and front ends tells for /metrics.
NO_GAUGES: dict[str, Any] = {"instances": [], "front_ends": [], "shared_bytes": 4096, "num_takeovers": 0}


class EchoTransport:
    """A model that answers each input as the output of the same place, through the real block and header formats.

    And a supervisor that answers what the test put into `answers` for a verb.
    """

    def __init__(self) -> None:
        self.error: ShoalError | None = None
        self.num_asked = 0
        self.num_released = self.num_sent = 0
        self.rename = {"INPUT0": "OUTPUT0", "INPUT1": "OUTPUT1"}
        self.answers: dict[str, Any] = {"gauges": NO_GAUGES}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> ModelResponse:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        block = memoryview(bytearray(block_nbytes(prepared)))
        offset, nbytes = unpack_span(write_block(prepared, block))
        asked = unpack_request(block[offset : offset + nbytes], len(block))
        outputs = tuple(ref._replace(name=self.rename.get(ref.name, ref.name)) for ref in asked.inputs)
        return ModelResponse(InferResponse(outputs, {}), block, self._release, self._send)

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None
    ) -> Generator[StreamedResponse, None, None]:
        yield StreamedResponse(self.infer(prepared, trace), None, is_final=True)

    def several(self) -> Any:
        raise AssertionError("no workflow is asked here")

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        self.asked.append((verb, arguments))
        answer = self.answers[verb]
        if isinstance(answer, ShoalError):
            raise answer
        return answer

    def _release(self) -> None:
        self.num_released += 1

    def _send(self, response: Response) -> Response:
        self._release()
        self.num_sent += 1
        return response._replace(chunks=tuple(map(bytes, response.chunks)))


@pytest.fixture
def transport() -> EchoTransport:
    return EchoTransport()


def dispatch(
    state: ServerState, transport: Transport, method: str, target: str, headers: Mapping[str, str], body: memoryview
) -> Response:
    """The response to a request, as a server without a lane and Flask would make it; its sender calls its `close`."""
    found = HTTP.admit(state, method, target, headers)
    return found if isinstance(found, Response) else answer(found, state, transport, headers, body)


class Client:
    """Asks the handlers, straight or through Flask; both ways give (status, headers, body) without Content-Length."""

    def __init__(self, way: str, state: ServerState, transport: EchoTransport) -> None:
        self.way = way
        self._state = state
        self._transport = transport
        self._flask = create_app(Endpoints(state, transport)).test_client()

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        if self.way == "dispatch":
            lower = {name.lower(): value for name, value in (headers or {}).items()}
            response = dispatch(self._state, self._transport, method, path, lower, memoryview(body))
            sent = b"".join([*response.chunks, *(response.stream or ())])
            if response.close is not None:
                response.close()
            return response.status, list(response.headers), sent
        with self._flask.open(
            method=method, data=body or None, headers=headers, environ_overrides={"RAW_URI": path, "PATH_INFO": "/x"}
        ) as reply:
            sent = reply.get_data()
            got = reply.headers.to_wsgi_list()
        is_stream = ("Content-Type", "text/event-stream; charset=utf-8") in got
        assert (("Content-Length", str(len(sent))) in got) is not is_stream or method == "HEAD"
        return reply.status_code, [header for header in got if header[0] != "Content-Length"], sent


@pytest.fixture(params=["dispatch", "flask"])
def client(request: pytest.FixtureRequest, state: ServerState, transport: EchoTransport) -> Client:
    return Client(request.param, state, transport)


@pytest.fixture
def star() -> Iterator[Star]:
    """A lane's side of the star."""
    made = Star()
    yield made
    made.bell.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A server's and a client's, of one authority."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
