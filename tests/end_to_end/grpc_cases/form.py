"""What a case of HTTP's tables is in gRPC: the call, and the whole answer that must come back. Pure.

Where both protocols say the same, the answer is the case's own; where gRPC has a sentence of its own, sentences.py has
it. What only HTTP can say has no form, and an HttpOnlyError says why.
"""

import base64
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.end_to_end.grpc_cases import infer
from tests.end_to_end.grpc_cases.http_only import ALLOWED, ENCODING, JSON, NO_FIELD, NO_RPC, HttpOnlyError
from tests.end_to_end.grpc_cases.sentences import LATE, SENTENCES
from tests.end_to_end.http_cases.case import Answer, Case

Message = Any
pb: Any = service_pb2
configs: Any = model_config_pb2
SERVICE = "inference.GRPCInferenceService"

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
#: Sentences about what a message does not have: JSON's types and limits, parameters for binary data.
_OF_JSON = re.compile(r"JSON|attempt to|creating Triton parameter|http-max-input-size|binary_data")
_ENCODING = {"Content-Encoding", "Accept-Encoding", "Content-Type"}


class Refusal(NamedTuple):
    """A call's status and details."""

    status: grpc.StatusCode
    sentence: str


class Form(NamedTuple):
    """A call and its answer, a message or a refusal. `version`: which one's answer was there and could not be given."""

    id: str
    rpc: str
    request: Message
    answer: Message
    metadata: tuple[tuple[str, str], ...]
    version: str

    @property
    def path(self) -> str:
        """The call's `:path`."""
        return f"/{SERVICE}/{self.rpc}"

    @property
    def streamed(self) -> Message:
        """The ModelStreamInferResponse in which this answer to a ModelInferRequest comes."""
        streamed = pb.ModelStreamInferResponse()
        if isinstance(self.answer, Refusal):
            streamed.error_message = self.answer.sentence
            said = streamed.infer_response
            said.id, said.model_name = self.request.id, self.request.model_name
            said.model_version = self.version or self.request.model_version
            if self.version:  # the model has answered
                said.parameters["triton_final_response"].bool_param = True
        else:
            streamed.infer_response.CopyFrom(self.answer)
            streamed.infer_response.parameters["triton_final_response"].bool_param = True
        return streamed


class Rpc(NamedTuple):
    """What a method and a path mean; the path's groups are fields of the request, `fill` adds what the body says."""

    method: str
    path: str
    name: str
    fill: Callable[[Message, Case], None]
    response: Callable[[Answer], Any]  # of its fields, or itself


def forms_of(case: Case) -> list[Form]:
    """The calls that ask what the case asks, at least one. Raises HttpOnlyError."""
    rpc, fields = _find(case)
    if _ENCODING & case.headers.keys():
        raise HttpOnlyError(ENCODING)
    requests = list(infer.requests(case, fields)) if rpc.name == "ModelInfer" else [("", _request(rpc, case, fields))]
    # What is not loaded is not ready: over gRPC that is no error. Nor is a name that would lead out of a path.
    refusal = None if rpc.name == "ModelReady" else _refusal(case)
    answer = refusal or _response(rpc, case.answer)
    metadata = tuple((name.lower(), value) for name, value in case.headers.items() if name != infer.LENGTH)
    version = LATE.get(case.id, "")
    return [Form(case.id + suffix, rpc.name, request, answer, metadata, version) for suffix, request in requests]


def _refusal(case: Case) -> Refusal | None:
    if case.id in SENTENCES:
        own = SENTENCES[case.id]
        if own is None:
            raise HttpOnlyError(ALLOWED)
        return Refusal(*own)
    if not case.answer.body.startswith(b'{"error":'):
        return None
    sentence = json.loads(case.answer.body)["error"]
    if _OF_JSON.search(sentence):
        raise HttpOnlyError(JSON)
    return Refusal(_STATUS[case.answer.status], sentence)


def _request(rpc: Rpc, case: Case, fields: dict[str, str]) -> Message:
    request = getattr(pb, f"{rpc.name}Request")(**fields)
    try:
        rpc.fill(request, case)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HttpOnlyError(NO_FIELD) from error
    return request


def _response(rpc: Rpc, answer: Answer) -> Message:
    made = rpc.response(answer)
    return getattr(pb, f"{rpc.name}Response")(**made) if isinstance(made, dict) else made


# ---------------------------------------------------------------------------------------------------------------
# Requests


def _body(case: Case) -> dict[str, Any]:
    try:
        value = json.loads(case.body or b"{}")
    except ValueError:
        raise HttpOnlyError(JSON) from None
    if not isinstance(value, dict):
        raise HttpOnlyError(JSON)
    return value


def _plain(request: Message, _case: Case) -> None:
    """All is said by the path."""


def _index(request: Message, case: Case) -> None:
    ready = _body(case).get("ready", False)
    if not isinstance(ready, bool):
        raise TypeError(ready)
    request.ready = ready


_KINDS = {bool: "bool_param", int: "int64_param", str: "string_param"}


def _control(request: Message, case: Case) -> None:
    for name, value in _body(case).get("parameters", {}).items():
        if name.startswith("file:") and isinstance(value, str):
            request.parameters[name].bytes_param = base64.b64decode(value, validate=True)
        else:
            setattr(request.parameters[name], _KINDS[type(value)], value)


def _unload(request: Message, case: Case) -> None:
    if isinstance(_body(case).get("parameters", {}), dict):
        _control(request, case)


def _trace(request: Message, case: Case) -> None:
    for name, value in _body(case).items():
        request.settings[name].value.extend([] if value is None else [value] if isinstance(value, str) else value)


def _log(request: Message, case: Case) -> None:
    for name, value in _body(case).items():
        field = "uint32_param" if type(value) is int else _KINDS[type(value)]
        setattr(request.settings[name], field, value)


def _region(request: Message, case: Case) -> None:
    for name, value in _body(case).items():
        setattr(request, name, base64.b64decode(value["b64"]) if name == "raw_handle" else value)


# ---------------------------------------------------------------------------------------------------------------
# Responses


def _nothing(_answer: Answer) -> dict[str, Any]:
    return {}


def _json(answer: Answer) -> Any:
    return json.loads(answer.body)


def _config(answer: Answer) -> dict[str, Any]:
    return {"config": json_format.ParseDict(_json(answer), configs.ModelConfig())}


def _trace_settings(answer: Answer) -> dict[str, Any]:
    told = _json(answer).items()
    return {"settings": {name: {"value": [value] if isinstance(value, str) else value} for name, value in told}}


def _log_settings(answer: Answer) -> dict[str, Any]:
    fields = {**_KINDS, int: "uint32_param"}
    return {"settings": {name: {fields[type(value)]: value} for name, value in _json(answer).items()}}


# ---------------------------------------------------------------------------------------------------------------
# The table


_MODEL = "/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = "/v2/repository(?:/(?P<repository_name>[^/]+))?"
_OF_ONE = f"{_REPOSITORY}/models/(?P<model_name>[^/]+)"
_REGION = "/v2/{}sharedmemory/region/(?P<name>[^/]+)"
_RPCS = (
    Rpc("GET", "/v2/health/live", "ServerLive", _plain, lambda answer: {"live": answer.status == 200}),
    Rpc("GET", "/v2/health/ready", "ServerReady", _plain, lambda answer: {"ready": answer.status == 200}),
    Rpc("GET", f"{_MODEL}/ready", "ModelReady", _plain, lambda answer: {"ready": answer.status == 200}),
    Rpc("GET", "/v2", "ServerMetadata", _plain, _json),
    Rpc("GET", _MODEL, "ModelMetadata", _plain, _json),
    Rpc("GET", f"{_MODEL}/config", "ModelConfig", _plain, _config),
    Rpc("GET", f"{_MODEL}/stats", "ModelStatistics", _plain, _json),
    Rpc("POST", f"{_MODEL}/infer", "ModelInfer", _plain, infer.response),
    Rpc("POST", f"{_REPOSITORY}/index", "RepositoryIndex", _index, lambda answer: {"models": _json(answer)}),
    Rpc("POST", f"{_OF_ONE}/load", "RepositoryModelLoad", _control, _nothing),
    Rpc("POST", f"{_OF_ONE}/unload", "RepositoryModelUnload", _unload, _nothing),
    Rpc("GET", "/v2/trace/setting", "TraceSetting", _plain, _trace_settings),
    Rpc("POST", "/v2/trace/setting", "TraceSetting", _trace, _trace_settings),
    Rpc("GET", "/v2/models/(?P<model_name>[^/]+)/trace/setting", "TraceSetting", _plain, _trace_settings),
    Rpc("POST", "/v2/models/(?P<model_name>[^/]+)/trace/setting", "TraceSetting", _trace, _trace_settings),
    Rpc("GET", "/v2/logging", "LogSettings", _plain, _log_settings),
    Rpc("POST", "/v2/logging", "LogSettings", _log, _log_settings),
    *[
        rpc
        for kind, word in (("system", "System"), ("cuda", "Cuda"))
        for rpc in (
            Rpc("GET", f"/v2/{kind}sharedmemory/status", f"{word}SharedMemoryStatus", _plain, _nothing),
            Rpc("GET", f"{_REGION.format(kind)}/status", f"{word}SharedMemoryStatus", _plain, _nothing),
            Rpc("POST", f"{_REGION.format(kind)}/register", f"{word}SharedMemoryRegister", _region, _nothing),
            Rpc("POST", f"{_REGION.format(kind)}/unregister", f"{word}SharedMemoryUnregister", _plain, _nothing),
            Rpc("POST", f"/v2/{kind}sharedmemory/unregister", f"{word}SharedMemoryUnregister", _plain, _nothing),
        )
    ],
)


def _find(case: Case) -> tuple[Rpc, dict[str, str]]:
    for rpc in _RPCS:
        found = re.fullmatch(rpc.path, case.path)
        if found and rpc.method == case.method:
            return rpc, {name: unquote(value) for name, value in found.groupdict().items() if value is not None}
    raise HttpOnlyError(NO_RPC)
