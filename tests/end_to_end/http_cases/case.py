"""One case of the table: a request as it goes over the wire, and the whole answer that must come back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = {"Content-Type": "application/json"}
EMPTY: dict[str, str] = {}
#: How Triton's core begins a refusal of a request that has no id.
UNKNOWN = "[request id: <id_unknown>] "


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and those headers that matter; a Content-Type that is not named must not be there."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """`closes`: the server ends the connection after this answer."""

    id: str
    method: str
    path: str
    answer: Answer
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False


def compact(value: Any) -> bytes:
    """JSON as the server prints it: no spaces, UTF-8 as it is."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def success(value: Any = None) -> Answer:
    """200 with this JSON, or without a body and a type."""
    return Answer(200, b"", EMPTY) if value is None else Answer(200, compact(value), JSON)


def error(status: int, sentence: str, **headers: str) -> Answer:
    """The status and exactly `{"error":"…"}`."""
    return Answer(status, compact({"error": sentence}), JSON | {key.replace("_", "-"): headers[key] for key in headers})


def mixed(value: Any, *tensors: bytes) -> Answer:
    """200 with JSON and, behind it, binary tensors."""
    text = compact(value)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    return Answer(200, b"".join((text, *tensors)), headers)


def get(id_: str, path: str, answer: Answer, **headers: str) -> Case:
    """A GET without a body."""
    return Case(id_, "GET", path, answer, headers=headers)


def infer(
    id_: str,
    model: str,
    request: Any,
    answer: Answer,
    tail: bytes | None = None,
    headers: Mapping[str, str] = EMPTY,
    closes: bool = False,
) -> Case:
    """A POST to the model's `/infer`; a `request` of bytes is sent as it is, `tail` is what follows the JSON."""
    body = request if isinstance(request, bytes) else compact(request)
    sent = dict(headers)
    if tail is not None:
        sent = {"Inference-Header-Content-Length": str(len(body))} | sent
        body += tail
    path = model if model.startswith("/") else f"/v2/models/{model}/infer"
    return Case(id_, "POST", path, answer, body, sent, closes)


def given(name: str, datatype: str, shape: list[Any], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """An input or an output, with `data` or with `parameters` or neither."""
    value: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        value["parameters"] = parameters
    if data is not None:
        value["data"] = data
    return value


def inputs(*tensors: Any, **more: Any) -> dict[str, Any]:
    """A request."""
    return {**more, "inputs": list(tensors)}


def outputs(model: str, *tensors: Any, version: str = "1", **more: Any) -> dict[str, Any]:
    """A response; `more` is `id`, which comes first."""
    return {**more, "model_name": model, "model_version": version, "outputs": list(tensors)}
