"""What is asked over gRPC, and what an answer means: Triton's messages, as tritonclient ships them."""

from array import array
from collections.abc import Mapping
from typing import Any

import tritonclient.grpc.service_pb2 as service

from scripts.benchmark.workloads import Model, Request

METHOD = "/inference.GRPCInferenceService/ModelInfer"
#: In front of each message: whether it is compressed, and its length.
PREFIX_BYTES = 5


def grpc_request(model: Model, _encoding: str = "") -> Request:
    """An inference with raw tensors, uncompressed; its body as gRPC sends it."""
    message: Any = service.ModelInferRequest(model_name=model.name)
    raw = model.values.tobytes()
    for name in model.input_names:
        message.inputs.add(name=name, datatype=model.datatype, shape=model.shape)
        message.raw_input_contents.append(raw)
    packed: bytes = message.SerializeToString()
    headers = {"te": "trailers", "content-type": "application/grpc"}
    return Request(METHOD, headers, b"\0" + len(packed).to_bytes(4, "big") + packed)


def grpc_answer(_headers: Mapping[str, str], body: bytes) -> "array[float]":
    """The output tensors of a ModelInferResponse, joined."""
    response: Any = service.ModelInferResponse.FromString(body)
    return array("f", b"".join(response.raw_output_contents))
