"""frontend/grpc/road.py: grpcio's server in this process, its clients beside it; the real port is another test's."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from shoal.control import Channel
from shoal.errors import InternalError
from shoal.frontend.grpc.messages import HealthCheckRequest, HealthCheckResponse
from shoal.frontend.grpc.messages import service as pb
from shoal.frontend.grpc.road import RoadService, listen, peer_of, server_options
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.road.transport import ModelResponse, Waiter
from shoal.frontend.state import ServerState
from shoal.frontend.tracing import TracedRequest, changed
from shoal.grpc_settings import GrpcSettings
from shoal.messages.to_client import TraceSettingsChanged
from shoal.tracer.settings import GLOBAL, TIMESTAMPS, TraceSetting
from tests.frontend.conftest import EchoTransport
from tests.frontend.grpc.certificates import self_signed
from tests.messages import receive

RPC = "/inference.GRPCInferenceService/"
DEADLINE_S = 10


class Transport(EchoTransport):
    """The road's is told where replies come in."""

    def infer(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None, waiter: Waiter | None = None
    ) -> ModelResponse:
        assert waiter is not None
        return super().infer(prepared, trace)


@pytest.fixture
def transport() -> Transport:
    return Transport()


@contextmanager
def serving(state: ServerState, transport: Any) -> Iterator[int]:
    """The port."""
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, [RoadService(state, transport)], options=server_options(state))
        port = listen(server, state.grpc, "127.0.0.1:0")
        server.start()
        yield port
        server.stop(None).wait()


@pytest.fixture
def channel(state: ServerState, transport: Transport) -> Iterator[Any]:
    state.model_control_mode = "explicit"
    state.max_request_bytes = 1 << 20
    with serving(state, transport) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened


def ask(channel: Any, name: str, /, metadata: Mapping[str, str] | None = None, **fields: Any) -> Any:
    rpc = channel.unary_unary(
        RPC + name,
        getattr(pb, f"{name}Request").SerializeToString,
        getattr(pb, f"{name}Response").FromString,
    )
    return rpc(getattr(pb, f"{name}Request")(**fields), metadata=tuple((metadata or {}).items()), timeout=DEADLINE_S)


def refusal(channel: Any, name: str, /, **fields: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as raised:
        ask(channel, name, **fields)
    return raised.value.code().name, raised.value.details() or ""


def test_calls_and_refusals(channel: Any, transport: Transport) -> None:
    assert ask(channel, "ServerMetadata").name == "triton"
    transport.answers["load"] = InternalError("é%" * 8000)
    status, sentence = refusal(channel, "RepositoryModelLoad", model_name="m")
    assert (status, sentence[:4], 500 < len(sentence) < 8000) == ("INTERNAL", "é%é%", True)
    assert refusal(channel, "ModelMetadata", name="none") == (
        "NOT_FOUND",
        "Request for unknown model: 'none' is not found",
    )
    assert refusal(channel, "RepositoryModelLoad", metadata={"via": "x"}, model_name="m")[0] == "PERMISSION_DENIED"
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/grpc.health.v1.Health/Watch")(b"", timeout=DEADLINE_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_fault_of_ours_is_logged_and_told(
    channel: Any, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    transport.answers.clear()
    with caplog.at_level(logging.ERROR, "shoal"):
        found = refusal(channel, "RepositoryIndex")
    assert found == ("INTERNAL", "the front end failed with KeyError; the server's log has the details")
    assert [record.message for record in caplog.records] == [f"no answer to {RPC}RepositoryIndex"]


def infer_fields(nbytes: int = 64) -> dict[str, Any]:
    inputs = [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, nbytes // 4]} for n in range(2)]
    return {"model_name": "simple", "inputs": inputs, "raw_input_contents": [bytes(range(64)) * (nbytes // 64)] * 2}


def test_an_inference(channel: Any, transport: Transport) -> None:
    assert list(ask(channel, "ModelInfer", **infer_fields()).raw_output_contents) == [bytes(range(64))] * 2
    assert transport.num_released == 1
    assert refusal(channel, "ModelInfer", **infer_fields(128))[0] == "INVALID_ARGUMENT"
    assert refusal(channel, "ModelInfer", **infer_fields(1 << 20))[0] == "RESOURCE_EXHAUSTED"  # grpcio's own


def test_the_answer_ends_a_trace(state: ServerState, transport: Transport, channel: Any) -> None:
    receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiving.settimeout(DEADLINE_S)
    with receiving, sending:
        setting = asdict(TraceSetting(TIMESTAMPS, rate=1, file="x"))
        told = TraceSettingsChanged({GLOBAL: setting}, os.dup(sending.fileno()))
        state.tracing = changed(None, told, state.models.names)
        assert state.tracing is not None
        ask(channel, "ModelInfer", **infer_fields())
        stamps = receive(Channel(receiving))[0].trace[5]
        # The transport of the test knows no batcher: its time points are missing.
        assert [bool(stamp) for stamp in stamps] == [True, True] + [False] * 7 + [True, True]
        state.tracing.outlet.close()


def test_restrictions_are_for_streams_as_well(state: ServerState, transport: Transport) -> None:
    key = "triton-grpc-protocol-infer"
    state.grpc = replace(state.grpc, restricted_protocol={"inference": (key, "v")})
    channel: Any
    with serving(state, transport) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        sentence = f"This protocol is restricted, expecting header '{key}'"
        assert refusal(channel, "ModelInfer", **infer_fields()) == ("UNAVAILABLE", sentence)
        ask(channel, "ModelInfer", {key: "v"}, **infer_fields())
        with pytest.raises(grpc.RpcError) as raised:
            list(channel.stream_stream(RPC + "ModelStreamInfer")(iter([b""]), timeout=DEADLINE_S))
        assert (raised.value.code().name, raised.value.details()) == ("UNAVAILABLE", sentence)


def test_health_and_reflection_for_clients_of_theirs(state: ServerState, channel: Any) -> None:
    state.strict_readiness = False
    check = channel.unary_unary("/grpc.health.v1.Health/Check", None, HealthCheckResponse.FromString)
    request = HealthCheckRequest(service="simple").SerializeToString()
    assert check(request, timeout=DEADLINE_S).status == HealthCheckResponse.SERVING
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "inference.GRPCInferenceService" in database.get_services()
    file = database.FindFileContainingSymbol("inference.GRPCInferenceService")
    assert len(file.service[0].method) == 20


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.7:50000", "10.0.0.7"), ("ipv6:%5Bfe80::1%5D:5", "fe80::1"), ("ipv6:[::1]:5", "::1"), ("unix:", "")],
)
def test_the_clients_address(peer: str, address: str) -> None:
    class Context:
        def peer(self) -> str:
            return peer

    assert peer_of(Context()) == address


def test_settings_by_grpcios_names(state: ServerState) -> None:
    options = dict(server_options(state))
    assert options["grpc.so_reuseport"] == 1
    assert options["grpc.max_receive_message_length"] == 1000
    assert options["grpc.keepalive_time_ms"] == 7_200_000
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 300_000
    assert "grpc.max_connection_age_ms" not in options
    state.grpc = GrpcSettings(max_connection_age=5, max_connection_age_grace=6, keepalive_permit_without_calls=True)
    options = dict(server_options(state))
    assert (options["grpc.max_connection_age_ms"], options["grpc.max_connection_age_grace_ms"]) == (5, 6)
    assert options["grpc.keepalive_permit_without_calls"] == 1


def test_tls(state: ServerState, transport: Transport, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    certificate = cert.read_bytes()
    state.grpc = GrpcSettings(use_ssl=True, server_cert=str(cert), server_key=str(key))
    with serving(state, transport) as port:
        with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(certificate)) as channel:
            assert ask(channel, "ServerLive").live
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            assert refusal(channel, "ServerLive")[0] == "UNAVAILABLE"
    state.grpc = replace(state.grpc, use_ssl_mutual=True, root_cert=str(cert))
    with serving(state, transport) as port:
        with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(certificate)) as channel:
            assert refusal(channel, "ServerLive")[0] == "UNAVAILABLE"
        mutual = grpc.ssl_channel_credentials(certificate, key.read_bytes(), certificate)
        with grpc.secure_channel(f"localhost:{port}", mutual) as channel:
            assert ask(channel, "ServerLive").live
