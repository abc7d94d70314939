"""The open inference protocol under the name that TorchServe has for its service.

Its messages are those of Triton's protocol, byte for byte, in a package of another name. An inference becomes the JSON
body that the envelope `kservev2` takes, BYTES as base64, and that envelope's answer becomes a message again. Rpcs that
name a model run on the road, since they may wait; lanes answer the others.
"""

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from shoal.errors import ShoalError, UnsupportedError
from shoal.frontend.call import HandlerCall
from shoal.frontend.grpc.messages import service as pb
from shoal.frontend.grpc.service import GrpcCall, Handler, Message, Method, Waits, always, never
from shoal.frontend.grpc.torchserve.errors import CallError, failed, managed, refused
from shoal.frontend.grpc.torchserve.messages import OPEN_INFERENCE
from shoal.frontend.torchserve import errors
from shoal.frontend.torchserve.inference_api import find_version
from shoal.frontend.torchserve.models import version_text, versions_of
from shoal.frontend.torchserve.predictions import Asked, answered, description, element_of, new_id, prepare

_INTERNAL = 13
#: By datatype, the field of InferTensorContents that has the elements of an input, and of an output.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_JSON = "application/json"


def _server_live(_call: GrpcCall, _request: Message) -> Message:
    return pb.ServerLiveResponse(live=True)


def _server_ready(_call: GrpcCall, _request: Message) -> Message:
    return pb.ServerReadyResponse(ready=True)


def _server_metadata(_call: GrpcCall, _request: Message) -> Message:
    raise UnsupportedError(f"Method {OPEN_INFERENCE}.GRPCInferenceService/ServerMetadata is unimplemented")


def _model_ready(call: GrpcCall, request: Message) -> Message:
    """Whether a version of a model has as many workers as it should have."""
    _check_name(request.name, "name")
    asked = HandlerCall(call.state, call.road, {}, memoryview(b""), request.name, request.version or None, "")
    try:
        entry = find_version(asked, request.name)
    except errors.NoWorkerError:
        return pb.ModelReadyResponse(ready=False)
    except ShoalError as error:
        raise managed(error) from None
    return pb.ModelReadyResponse(ready=entry.num_instances_up >= entry.num_instances)


def _model_metadata(call: GrpcCall, request: Message) -> Message:
    """A model's name and versions; an archive does not say which tensors it takes."""
    _check_name(request.name, "model_name")
    asked = HandlerCall(call.state, call.road, {}, memoryview(b""), request.name, request.version or None, "")
    try:
        find_version(asked, request.name)
    except errors.NoWorkerError:
        pass
    except ShoalError as error:
        raise managed(error) from None
    versions = [version_text(entry) for entry in versions_of(call.state, request.name)]
    return pb.ModelMetadataResponse(name=request.name, versions=versions)


def _check_name(name: str, parameter: str) -> None:
    if not name:
        raise refused(errors.refused(400, "BadRequestException", f"Parameter {parameter} is required."), "", None)


def _model_infer(call: GrpcCall, request: Message) -> Message:
    name, version = request.model_name, request.model_version or None
    _check_name(name, "model_name")
    document = {"id": request.id, "model_name": name, "inputs": [_input(each) for each in request.inputs]}
    request_id = new_id()
    body = orjson.dumps(document)
    asked = HandlerCall(call.state, call.road, {}, memoryview(b""), name, version, "")
    try:
        entry = find_version(asked, name)
        described = description(Asked(), _JSON, {}, request_id, [("body", _JSON, body)])
        prepared = prepare(entry, request_id, described, element_of([body]))
    except ShoalError as error:
        raise refused(error, name, version) from None
    try:
        reply = call.road.infer(prepared)
        try:
            answer = bytes(answered(reply.response, reply.block).body)
        finally:
            reply.release()
    except ShoalError as error:
        raise failed(error, name, version) from None
    return _rendered(answer)


def _input(tensor: Message) -> dict[str, Any]:
    field = _CONTENTS.get(tensor.datatype)
    given: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
    if field is not None:
        elements = list(getattr(tensor.contents, field))
        given["data"] = (
            [base64.b64encode(each).decode() for each in elements] if tensor.datatype == "BYTES" else elements
        )
    return given


def _rendered(answer: bytes) -> Message:
    """The message for the JSON with which the envelope answers. Raises CallError for an answer that is no such JSON."""
    try:
        told: Any = orjson.loads(answer)
        response = pb.ModelInferResponse(
            id=str(told.get("id") or ""),
            model_name=str(told.get("model_name") or ""),
            model_version=str(told.get("model_version") or ""),
        )
        for output in told["outputs"]:
            tensor = response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
            elements = output["data"]
            if output["datatype"] == "BYTES":
                elements = [each.encode() if isinstance(each, str) else bytes(each) for each in elements]
            getattr(tensor.contents, _CONTENTS[output["datatype"]]).extend(elements)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        sentence = "the model's answer is not that of the envelope kservev2: start with service_envelope=kservev2"
        raise CallError(_INTERNAL, f"{sentence} ({type(error).__name__}: {error})") from error
    return response


def _method(name: str, handler: Handler, waits: Waits, model: str = "") -> Method:
    path = f"/{OPEN_INFERENCE}.GRPCInferenceService/{name}"
    return Method(path, getattr(pb, f"{name}Request"), handler, "", waits, model, "inference", "torchserve-grpc")


METHODS: Mapping[str, Method] = {
    method.path: method
    for method in (
        _method("ServerLive", _server_live, never),
        _method("ServerReady", _server_ready, never),
        _method("ServerMetadata", _server_metadata, never),
        _method("ModelReady", _model_ready, always, "name"),
        _method("ModelMetadata", _model_metadata, always, "name"),
        _method("ModelInfer", _model_infer, always, "model_name"),
    )
}
