"""Requests and answers of gRPC: Triton's messages, as tritonclient has them."""

from array import array
from collections.abc import Mapping
from typing import Any

from bench.workloads import BenchModel, Request

SERVICE = "/inference.GRPCInferenceService/"
METHOD = SERVICE + "ModelInfer"
#: The prefix of each message: whether it is compressed, and its length.
PREFIX_BYTES = 5
#: Options of every channel of grpcio.
CHANNEL = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection per channel: a failed one delays no other
]


def channel(port: int) -> Any:
    """A channel of grpcio to a server on this machine, with a connection of its own."""
    import grpc

    return grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL)


def grpc_request(model: BenchModel, _encoding: str = "", request_id: str = "") -> Request:
    """An inference with raw tensors, uncompressed; the body has gRPC's prefix."""
    import tritonclient.grpc.service_pb2 as service

    message: Any = service.ModelInferRequest(model_name=model.name, id=request_id)
    raw = model.values.tobytes()
    for name in model.input_names:
        message.inputs.add(name=name, datatype=model.datatype, shape=model.shape)
        message.raw_input_contents.append(raw)
    packed: bytes = message.SerializeToString()
    headers = {"te": "trailers", "content-type": "application/grpc"}
    return Request(METHOD, headers, prefixed(packed))


def grpc_answer(_headers: Mapping[str, str], body: bytes) -> "array[float]":
    """The output tensors of a ModelInferResponse, joined."""
    import tritonclient.grpc.service_pb2 as service

    response: Any = service.ModelInferResponse.FromString(body)
    return array("f", b"".join(response.raw_output_contents))


def prefixed(packed: bytes) -> bytes:
    """A message with gRPC's prefix, uncompressed."""
    return b"\0" + len(packed).to_bytes(PREFIX_BYTES - 1, "big") + packed


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1): length (3 bytes), type, flags, stream, payload."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
