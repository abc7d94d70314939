"""frontend/grpc/tunnel.py: calls through a socketpair and gunicorn's own parser to the application, and back."""

import gzip
import re
import socket
from collections.abc import Mapping
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.parser import RequestParser

from shoal.errors import (
    InternalError,
)
from shoal.frontend.grpc.messages import service as pb
from shoal.frontend.grpc.tunnel import pack_head, unpack_head
from shoal.frontend.road.app import create_app
from shoal.frontend.road.endpoints import Endpoints
from shoal.frontend.state import ServerState
from shoal.frontend.upload_budget import UploadBudget
from shoal.grpc_settings import GrpcSettings
from tests.frontend.conftest import EchoTransport

create: Any = wsgi.create  # whose type hints are of an older version
RPC = "/inference.GRPCInferenceService/"


def pass_through(state: ServerState, transport: EchoTransport, request: bytes) -> bytes:
    """What the road's process does with a lane's connection, in this thread; its answer until it closes."""
    lane, road = socket.socketpair()
    with lane, road:
        lane.sendall(request)
        lane.shutdown(socket.SHUT_WR)
        config: Any = Config()
        parsed = next(RequestParser(config, road, road.getpeername()))
        reply, environ = create(parsed, road, road.getpeername(), road.getsockname(), config)
        body: Any = create_app(Endpoints(state, transport))(environ, reply.start_response)
        for piece in body:
            reply.write(piece)
        reply.close()
        body.close()
        road.close()
        with lane.makefile("rb") as answer:
            return answer.read()


class Tunnel:
    """A lane's end."""

    def __init__(self, state: ServerState, transport: EchoTransport) -> None:
        self.state, self.transport = state, transport
        self.metadata: Mapping[str, str] = {":path": "/x", "user-agent": "grpc"}
        self.peer = "127.0.0.1"
        self.encoding = "identity"

    def call(self, name: str, fields: Mapping[str, Any]) -> tuple[int, str, bytes]:
        """gRPC's status and message, and the response."""
        message = getattr(pb, f"{name}Request")(**fields).SerializeToString()
        if self.encoding == "gzip":
            message = gzip.compress(message)
        head = pack_head(RPC + name, self.peer, self.metadata, len(message), self.encoding)
        received = pass_through(self.state, self.transport, head + message)
        told = unpack_head(received)
        assert told is not None
        response = received[told.nbytes :]
        assert told.status or len(response) == told.response_nbytes
        return told.status, told.message, response

    def ask(self, name: str, /, **fields: Any) -> Any:
        status, sentence, response = self.call(name, fields)
        assert not status, sentence
        return getattr(pb, f"{name}Response").FromString(response)

    def refusal(self, name: str, /, **fields: Any) -> tuple[int, str]:
        status, sentence, _ = self.call(name, fields)
        return status, sentence


@pytest.fixture
def tunnel(state: ServerState, transport: EchoTransport) -> Tunnel:
    state.model_control_mode = "explicit"
    transport.answers |= {"load": None, "index": [{"name": "écho b"}]}
    return Tunnel(state, transport)


def test_a_call_that_waits(tunnel: Tunnel) -> None:
    assert tunnel.ask("RepositoryIndex").models[0].name == "écho b"
    tunnel.ask("RepositoryModelLoad", model_name="m")
    assert tunnel.transport.asked[1][1]["model"] == "m"


def test_errors_arrive_as_they_are(tunnel: Tunnel) -> None:
    tunnel.transport.answers["load"] = InternalError("failed to load 'é%',\r\n500: failed")
    assert tunnel.refusal("RepositoryModelLoad", model_name="m") == (
        13,
        "failed to load 'é%',\r\n500: failed",
    )
    assert tunnel.refusal("ModelMetadata", name="none") == (
        5,
        "Request for unknown model: 'none' is not found",
    )


def test_who_asks_is_whom_the_lane_names(tunnel: Tunnel) -> None:
    tunnel.peer = "10.0.0.7"
    tunnel.metadata = {"x-shoal-peer": "127.0.0.1", "transfer-encoding": "chunked", "content-length": "0"}
    assert tunnel.refusal("RepositoryModelLoad", model_name="m")[0] == 7
    tunnel.peer, tunnel.metadata = "127.0.0.1", {"via": "proxy"}
    assert tunnel.refusal("RepositoryModelLoad", model_name="m")[0] == 7


def test_metadata_keep_their_names(tunnel: Tunnel) -> None:
    tunnel.state.grpc = GrpcSettings(
        restricted_protocol={"model-repository": ("triton-grpc-protocol-under_score", "v")}
    )
    tunnel.metadata = {"triton-grpc-protocol-under_score": "v"}
    tunnel.ask("RepositoryIndex")


def infer_fields(model: str, *names: str) -> dict[str, Any]:
    return {
        "model_name": model,
        "id": "é",
        "inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in names],
        "raw_input_contents": [bytes(range(64))] * len(names),
    }


def test_an_inference_that_no_slab_takes(tunnel: Tunnel) -> None:
    tunnel.state.max_request_bytes = 10000
    answer = tunnel.ask("ModelInfer", **infer_fields("simple", "INPUT0", "INPUT1"))
    assert (answer.id, answer.model_version, answer.outputs[1].name) == ("é", "3", "OUTPUT1")
    assert list(answer.raw_output_contents) == [bytes(range(64))] * 2
    assert (tunnel.transport.num_released, tunnel.transport.num_sent) == (1, 1)
    assert tunnel.refusal("ModelInfer", model_name="stream") == (
        12, "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )  # fmt: skip
    tunnel.state.exiting = True
    assert tunnel.refusal("ModelInfer", model_name="simple")[0] == 14


def test_a_message_stays_compressed_on_its_way(tunnel: Tunnel) -> None:
    tunnel.encoding = "gzip"
    assert tunnel.ask("ModelInfer", **infer_fields("simple", "INPUT0", "INPUT1")).model_name == "simple"
    tunnel.encoding = "br"
    assert tunnel.refusal("RepositoryIndex") == (12, "Compression algorithm 'br' is not supported.")


@pytest.mark.parametrize("name", ["ModelInfer", "RepositoryIndex"])
def test_what_expands_too_much_is_refused(tunnel: Tunnel, name: str) -> None:
    """Within the bounds of a body over HTTP."""
    tunnel.state.max_request_bytes = 1 << 30
    tunnel.encoding = "gzip"
    zeros = {"repository_name": "0" * (1 << 21)} if name == "RepositoryIndex" else {"id": "0" * (1 << 21)}
    status, sentence = tunnel.refusal(name, **zeros)
    assert status == 8
    assert re.fullmatch(
        r"the request body of \d+ bytes has more than 1048576 bytes when decompressed, which is 100 times as many, or "
        "1 MiB. Send it uncompressed, or raise --max-expansion",
        sentence,
    )
    assert tunnel.state.upload_budget.nbytes == 0
    tunnel.state.max_expansion = 0
    tunnel.state.upload_budget = UploadBudget(1 << 20)
    status, sentence = tunnel.refusal(name, **zeros)
    assert (status, sentence.partition(" are used up")[0]) == (
        14, "the 1048576 bytes that requests may take while they arrive and are read"
    )  # fmt: skip


def test_a_message_counts_as_long_as_its_request(tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    answer = tunnel.transport.infer

    def infer(*arguments: Any) -> Any:
        counted.append(tunnel.state.upload_budget.nbytes)
        return answer(*arguments)

    monkeypatch.setattr(tunnel.transport, "infer", infer)
    tunnel.encoding = "gzip"
    fields = infer_fields("simple", "INPUT0", "INPUT1")
    tunnel.ask("ModelInfer", **fields)
    assert counted == [len(pb.ModelInferRequest(**fields).SerializeToString())]
    assert tunnel.state.upload_budget.nbytes == 0


def test_what_is_too_long_is_refused_unread(tunnel: Tunnel) -> None:
    refusal = tunnel.refusal("ModelInfer", **infer_fields("simple", *["INPUT0"] * 20))
    assert refusal == (13, "the front end that answers this call says 400 BAD REQUEST")


@pytest.mark.parametrize(
    "received", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"]
)
def test_a_head_that_is_not_whole(received: bytes) -> None:
    assert unpack_head(received) is None


def test_no_client_reaches_it(state: ServerState, transport: EchoTransport) -> None:
    head = pack_head(RPC + "RepositoryIndex", "127.0.0.1", {}, 0)
    with create_app(Endpoints(state, transport)).test_client() as client:
        found = client.post(RPC + "RepositoryIndex", data=head.partition(b"\r\n\r\n")[2])
        assert (found.status_code, found.get_json()) == (404, {"error": "Not Found"})
