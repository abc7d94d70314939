"""generate and generate_stream: flat JSON against identity models of every kind."""

from collections.abc import Mapping
from typing import Any

from tests.end_to_end.http_cases.case import EMPTY, JSON, Answer, Case, compact, error, get, given, infer, inputs

UNKNOWN = "[request id: <id_unknown>] "
SHAPE = error(400, "The schema can not convert input 'A' to tensor with proper shape")
INVALID = "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}


def flat(model: str, *, version: str = "1", **members: Any) -> dict[str, Any]:
    """An answer, its keys in order."""
    return dict(sorted((members | {"model_name": model, "model_version": version}).items()))


def case(
    id_: str, model: str, request: Any, answer: Answer, kind: str = "generate", headers: Mapping[str, str] = EMPTY
) -> Case:
    body = request if isinstance(request, bytes) else compact(request)
    return Case(f"{kind}-{id_}", "POST", f"/v2/models/{model}/{kind}", answer, body, headers)


def answered(id_: str, model: str, request: Any, value: dict[str, Any], path: str = "") -> list[Case]:
    """As JSON, and as the only event of a stream."""
    return [
        case(id_, path or model, request, Answer(200, compact(value), JSON)),
        case(id_, path or model, request, Answer(200, b"data: " + compact(value) + b"\n\n", EVENTS), "generate_stream"),
    ]


def refused(id_: str, model: str, request: Any, answer: Answer, headers: Mapping[str, str] = EMPTY) -> list[Case]:
    return [case(id_, model, request, answer, kind, headers) for kind in ("generate", "generate_stream")]


ANSWERED = [
    *answered("scalar", "word", {"A": "hé"}, flat("word", OUT_A="hé")),
    *answered("byte-order-mark", "word", b'\xef\xbb\xbf{"A":"a"}', flat("word", OUT_A="a")),
    *answered("list-of-one", "word", {"A": ["a"]}, flat("word", OUT_A="a")),
    *answered("id", "word", {"A": "a", "id": "7"}, flat("word", OUT_A="a", id="7")),
    *answered("colons", "word", {"A": "a: b, {}: c"}, flat("word", OUT_A="a: b, {}: c")),
    *answered("parameters", "word", {"A": "a", "x": 1, "y": 0.5, "z": True, "stop": "."}, flat("word", OUT_A="a")),
    *answered("nested", "word", {"parameters": {"A": "a", "stream": True}}, flat("word", OUT_A="a")),
    *answered("fixed", "fixed", {"A": [1, 2, 3, 4, 5, 6]}, flat("fixed", OUT_A=[1, 2, 3, 4, 5, 6])),
    *answered("innermost", "grid", {"A": [1.5, 2, -3]}, flat("grid", OUT_A=[1.5, 2.0, -3.0])),
    *answered("outer", "column", {"A": [1, 2, 3, 4]}, flat("column", OUT_A=[1, 2, 3, 4])),
    *answered("no-elements", "column", {"A": []}, flat("column", OUT_A=[])),
    *answered("batch", "reshaped", {"A": [1, 2, 3, 4, 5, 6, 7, 8]}, flat("reshaped", OUT_A=[1, 2, 3, 4, 5, 6, 7, 8])),
    *answered("two-inputs", "batched", {"A": [1, 2], "parameters": {"B": [3, 4, 5]}},
              flat("batched", OUT_A=[1.0, 2.0], OUT_B=[3, 4, 5])),
    *answered("latest", "versions", {"A": 5}, flat("versions", OUT_A=5, version="3")),
    *answered("version", "versions", {"A": 5}, flat("versions", OUT_A=5), path="versions/versions/1"),
]  # fmt: skip

REFUSED = [
    *refused("unknown-model", "nobody", b"{", error(404, "Request for unknown model: 'nobody' is not found")),
    *refused("unknown-version", "versions/versions/2", b"{",
             error(404, "Request for unknown model: 'versions' version 2 is not found")),
    *refused("encoding", "word", b"{", error(400, "Unsupported content-encoding, only 'identity' is supported."),
             {"Content-Encoding": "gzip"}),
    *refused("empty", "word", b"", error(500, "failed to parse the request JSON buffer: The document is empty. at 0")),
    *refused("no-object", "word", [], error(500, "attempt to get members for non-object")),
    *refused("shape", "fixed", {"A": [1, 2, 3]}, SHAPE),
    *refused("shape-of-a-column", "column", {"A": 1}, SHAPE),
    *refused("no-tensor", "word", {"x": 1},
             error(400, f"{UNKNOWN}expected 1 inputs but got 0 inputs for model 'word'. Got input(s) [], but missing "
                        "required input(s) ['A']. Please provide all required input(s).")),
    *refused("batch-too-large", "reshaped", {"A": [1] * 20},
             error(400, f"{UNKNOWN}inference request batch-size must be <= 4 for 'reshaped'")),
    *refused("batches-differ", "batched", {"A": [1, 2], "B": [1, 2, 3, 4, 5, 6]},
             error(400, f"{UNKNOWN}input 'B' batch size does not match other inputs for 'batched'")),
    *refused("type", "fixed", {"A": [1, 2, 3, 4, 5, 6.0]},
             error(500, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer")),
    *refused("number-for-a-string", "word", {"A": 1},
             error(500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string")),
    *refused("half", "types", {"FP16": [1, 2]},
             error(400, "receiving FP16 data via JSON is not supported. Please use the binary data format for input "
                        "FP16")),
    *refused("parameter", "word", {"A": "a", "x": {}}, error(400, INVALID)),
    *refused("nested-parameter", "word", {"A": "a", "parameters": {"x": None}},
             error(400, f"Converting keyword: 'parameters': {INVALID}")),
    *refused("parameters-no-object", "word", {"A": "a", "parameters": 1},
             error(500, "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object")),
    *refused("twice", "word", {"A": "a", "parameters": {"A": "b"}},
             error(400, f"Converting keyword: 'parameters': {UNKNOWN}input 'A' already exists in request")),
    *refused("key-twice", "word", b'{"A":"a","x":1,"A":"b"}',
             error(400, f"{UNKNOWN}input 'A' already exists in request")),
    *refused("key-twice-behind-byte-order-mark", "word", b'\xef\xbb\xbf{"A":"a","A":"b"}',
             error(400, f"{UNKNOWN}input 'A' already exists in request")),
    *refused("key-twice-escaped", "word", b'{"A":"a: b","\\u0041":"b","id":"7"}',
             error(400, "[request id: 7] input 'A' already exists in request")),
    *refused("key-twice-nested", "word", b'{"A":"a","parameters":{"x":1, "x" :2}}',
             error(400, f"{UNKNOWN}parameter 'x' already exists in request")),
    *refused("object-twice", "word", b'{"parameters":{"A":"a"},"parameters":{"x":1}}',
             error(400, f"{UNKNOWN}parameter 'parameters' already exists in request")),
    *refused("id-no-string", "word", {"A": "a", "id": 7},
             error(500, "Unable to parse 'id': attempt to access JSON non-string as string")),
    get("generate-get", "/v2/models/word/generate", error(405, "Method Not Allowed", Allow="POST")),
    # The same model by the ordinary way, on the same connection.
    infer("infer-beside-generate", "word", inputs(given("A", "BYTES", [1], ["a"])),
          Answer(200, compact({"model_name": "word", "model_version": "1", "outputs": [given("OUT_A", "BYTES", [1],
                 ["a"])]}), JSON)),
]  # fmt: skip

CASES = [*ANSWERED, *REFUSED]
