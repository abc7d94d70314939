"""GET /openapi.json: an OpenAPI 3.1 document of this server's HTTP API, with the real names, datatypes and shapes of
the models that are ready. Pure.

Each model has paths of its own, so that a generated client, or a person, sees which tensors the model takes. Paths with
a model's name as a parameter are Triton's protocol, and are left to that protocol's documentation.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from shoal.frontend.call import HandlerCall
from shoal.frontend.openai.models import embedding_model, text_model
from shoal.frontend.page.files import SAFE
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.state import ServerState
from shoal.model_config.signature import Signature, TensorSpec
from shoal.star.models import ModelEntry
from shoal.version import __version__

Schema = dict[str, Any]

_OBJECT: Schema = {"type": "object"}
_ERROR = {"$ref": "#/components/responses/Error"}
#: Datatypes that have no form in JSON (Triton's rule): their tensors are sent as binary data behind the JSON.
_BINARY_ONLY = frozenset({"FP16", "BF16"})
_ELEMENTS: dict[str, Schema] = {
    "BOOL": {"type": "boolean"},
    "FP32": {"type": "number", "format": "float"},
    "FP64": {"type": "number", "format": "double"},
    "BYTES": {"type": "string"},
}


def document(call: HandlerCall) -> Response:
    """The handler of GET /openapi.json: the document for the models that are ready now."""
    headers = (*JSON_CONTENT, ("Cache-Control", "no-store"), *SAFE)
    return Response(200, headers, (orjson.dumps(describe(call.state)),))


def describe(state: ServerState) -> dict[str, Any]:
    """The document of a server in this state."""
    paths: dict[str, Any] = dict(_server_paths())
    names: dict[str, list[ModelEntry]] = {}
    for entry in state.models.ready_entries():
        names.setdefault(entry.name, []).append(entry)
    for name, entries in sorted(names.items()):
        if len({entry.namespace for entry in entries}) > 1 or not _is_text(name):
            continue  # models of several namespaces have this name, or the name is no valid Unicode
        default = next((each for each in entries if each.is_default), entries[-1])
        paths |= _model_paths(f"/v2/models/{_escaped(name)}", default, "")
        if len(entries) > 1:
            for entry in entries:
                version = f"/versions/{entry.version}"
                paths |= _model_paths(f"/v2/models/{_escaped(name)}{version}", entry, version)
    paths |= dict(_openai_paths(state.models.ready_entries()))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Models of {state.server_id}",
            "version": __version__,
            "description": "The models that are ready on this server, with their tensors. The protocol is Triton's: "
            "KServe's v2 inference protocol with its extensions.",
        },
        "servers": [{"url": "./"}],
        "tags": [{"name": "server"}, *({"name": name} for name in sorted(names) if _is_text(name))],
        "paths": paths,
        "components": {
            "schemas": {"Error": _object({"error": {"type": "string", "minLength": 1}}, ["error"])},
            "responses": {
                "Error": {
                    "description": "What is wrong, in one sentence",
                    "content": _json({"$ref": "#/components/schemas/Error"}),
                },
                "OpenAIError": {
                    "description": "What is wrong, as OpenAI's API has it",
                    "content": _json(
                        _object({"error": _object({"message": {"type": "string"}}, ["message"])}, ["error"])
                    ),
                },
            },
        },
    }


def _server_paths() -> Iterator[tuple[str, Any]]:
    for path, method, name, text, schema in (
        ("/v2", "get", "server_metadata", "Name, version and extensions of the server", _OBJECT),
        ("/v2/health/live", "get", "server_live", "Whether the server is alive", None),
        ("/v2/health/ready", "get", "server_ready", "Whether the server and its models are ready", None),
        ("/v2/health/reasons", "get", "server_reasons", "What keeps the server from being ready", _OBJECT),
        ("/v2/models/stats", "get", "statistics", "Statistics of every model that is ready", _OBJECT),
        ("/v2/debug/requests", "get", "requests", "The slowest and the failed of the last five minutes", _OBJECT),
        ("/v2/debug/log", "get", "log", "The last lines of the server's log file", _OBJECT),
        ("/v2/repository/index", "post", "repository_index", "All models and their states", {"type": "array"}),
    ):
        operation = _operation("server", name, text, schema)
        if name == "requests":
            operation["parameters"] = [
                _parameter("model", {"type": "string"}, "Of this model alone"),
                _parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most of either kind"),
            ]
        if name == "log":
            operation["parameters"] = [
                _parameter("lines", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most lines"),
                _parameter("after", {"type": "integer", "minimum": 0}, "The position of an earlier answer"),
            ]
        yield path, {method: operation}


def _openai_paths(entries: Sequence[ModelEntry]) -> Iterator[tuple[str, Any]]:
    """The paths of OpenAI's API; further members of requests are left to OpenAI's documentation."""
    texts = sorted({entry.name for entry in entries if text_model(entry) is not None and _is_text(entry.name)})
    vectors = sorted({entry.name for entry in entries if embedding_model(entry) is not None and _is_text(entry.name)})
    content: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": _OBJECT}]}
    message = _object({"role": {"type": "string"}, "content": content}, ["role", "content"])
    strings: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    stream: Schema = {"type": "boolean"}
    yield "/v1/models", {"get": _openai_operation("models", "Models that OpenAI's clients can ask", None)}
    if texts:
        which: Schema = {"enum": texts}
        chat = _object(
            {"model": which, "messages": {"type": "array", "items": message, "minItems": 1}, "stream": stream},
            ["model", "messages"],
        )
        completion = _object({"model": which, "prompt": strings, "stream": stream}, ["model", "prompt"])
        yield "/v1/chat/completions", {"post": _openai_operation("chat", "Go on with a conversation", chat)}
        yield "/v1/completions", {"post": _openai_operation("completion", "Go on with a text", completion)}
    if vectors:
        embedding = _object({"model": {"enum": vectors}, "input": strings}, ["model", "input"])
        yield "/v1/embeddings", {"post": _openai_operation("embedding", "Turn texts into vectors", embedding)}


def _openai_operation(name: str, text: str, request: Schema | None) -> dict[str, Any]:
    operation = _operation("server", f"openai_{name}", text, _OBJECT)
    operation["responses"]["default"] = {"$ref": "#/components/responses/OpenAIError"}
    return operation if request is None else operation | _body(request)


def _parameter(name: str, schema: Schema, text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}


def _model_paths(path: str, entry: ModelEntry, version: str) -> dict[str, Any]:
    """The paths of one version of a model; `version` is the version's part of the path, "" for the default version."""
    signature, tag = entry.signature, entry.name
    which = f"'{entry.name}'" + (f", version {entry.version}" if version else "")

    def named(verb: str) -> str:
        return f"{verb} {entry.name}{version}"

    paths = {
        path: {"get": _operation(tag, named("metadata"), f"The tensors of {which}", _OBJECT)},
        f"{path}/ready": {"get": _operation(tag, named("ready"), f"Whether {which} is ready", None)},
        f"{path}/config": {"get": _operation(tag, named("config"), f"The configuration of {which}", _OBJECT)},
        f"{path}/stats": {"get": _operation(tag, named("stats"), f"Statistics of {which}", _OBJECT)},
    }
    if not entry.is_decoupled:
        infer = _operation(tag, named("infer"), f"Ask {which}", _infer_response(signature))
        paths[f"{path}/infer"] = {"post": infer | _body(_infer_request(signature))}
    if all(spec.datatype.name not in _BINARY_ONLY for spec in signature.inputs.values()):
        one = _operation(tag, named("generate"), f"Ask {which} in plain JSON", _generate_response(signature))
        many = _operation(tag, named("generate_stream"), f"Ask {which} and get each answer as it comes", None)
        # Without a schema: OpenAPI 3.1 has none for events, and tools differ in what they take a schema here to
        # describe.
        many["responses"]["200"]["content"] = {"text/event-stream": {}}
        request = _body(_generate_request(signature))
        if not entry.is_decoupled:
            paths[f"{path}/generate"] = {"post": one | request}
        paths[f"{path}/generate_stream"] = {"post": many | request}
    return paths


def _operation(tag: str, name: str, text: str, schema: Schema | None) -> dict[str, Any]:
    answer: dict[str, Any] = (
        {"description": "OK"} if schema is None else {"description": "OK", "content": _json(schema)}
    )
    return {"tags": [tag], "operationId": name, "summary": text, "responses": {"200": answer, "default": _ERROR}}


def _body(schema: Schema) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": _json(schema)}}


# --- schemas ---


def _infer_request(signature: Signature) -> Schema:
    inputs = list(signature.inputs.values())
    needed = sum(not spec.optional for spec in inputs)
    listed = {"type": "array", "minItems": needed, "maxItems": len(inputs), **_items(signature, inputs, is_input=True)}
    outputs = {"type": "array", "items": _object({"name": {"enum": list(signature.outputs)}}, ["name"])}
    members = {"id": {"type": "string"}, "parameters": _parameters(signature), "inputs": listed, "outputs": outputs}
    return _object(members, ["inputs", *(["parameters"] if signature.sequences else [])])


def _infer_response(signature: Signature) -> Schema:
    outputs = list(signature.outputs.values())
    text = {"type": "string"}
    members = {
        "model_name": {"const": signature.name},
        "model_version": text,
        "id": text,
        "outputs": {"type": "array", **_items(signature, outputs, is_input=False)},
    }
    return _object(members, ["model_name", "model_version", "outputs"])


def _items(signature: Signature, specs: Sequence[TensorSpec], *, is_input: bool) -> Schema:
    """The schema of a list's elements: each is one of these tensors, in any order."""
    if not specs:
        return {}
    return {"items": {"oneOf": [_tensor(signature, spec, is_input=is_input) for spec in specs]}}


def _tensor(signature: Signature, spec: TensorSpec, *, is_input: bool) -> Schema:
    datatype = spec.datatype.name
    members: dict[str, Schema] = {
        "name": {"const": spec.name},
        # A classification is an output of strings, whatever the tensor's datatype.
        "datatype": {"const": datatype} if is_input else {"enum": sorted({datatype, "BYTES"})},
        "shape": _shape(signature, spec) if is_input else {"type": "array", "items": {"type": "integer"}},
        "parameters": _OBJECT,
    }
    if is_input and datatype in _BINARY_ONLY:
        members["parameters"] = _object({"binary_data_size": {"type": "integer", "minimum": 0}}, ["binary_data_size"])
        return _object(members, ["name", "datatype", "shape", "parameters"])
    members["data"] = {"type": "array", "description": "Elements in row-major order, flat or nested by dimension"}
    if is_input:
        members["data"]["items"] = {"anyOf": [_element(spec), {"type": "array"}]}
    return _object(members, ["name", "datatype", "shape"])


def _shape(signature: Signature, spec: TensorSpec) -> Schema:
    sizes = [{"type": "integer", "minimum": 0} if dim < 0 else {"const": dim} for dim in spec.dims]
    if signature.max_batch_size > 0:
        sizes.insert(0, {"type": "integer", "minimum": 1, "maximum": signature.max_batch_size})
    if not sizes:
        return {"type": "array", "maxItems": 0}
    return {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)}


def _element(spec: TensorSpec) -> Schema:
    datatype = spec.datatype
    if datatype.name in _ELEMENTS:
        return _ELEMENTS[datatype.name]
    bits = 8 * datatype.itemsize
    if datatype.name.startswith("UINT"):
        return {"type": "integer", "minimum": 0, "maximum": (1 << bits) - 1}
    return {"type": "integer", "minimum": -(1 << (bits - 1)), "maximum": (1 << (bits - 1)) - 1}


def _parameters(signature: Signature) -> Schema:
    if signature.sequences is None:
        return _OBJECT
    members: dict[str, Schema] = {
        "sequence_id": {"type": ["integer", "string"]},
        "sequence_start": {"type": "boolean"},
        "sequence_end": {"type": "boolean"},
    }
    return _object(members, [] if signature.sequences.is_iterative else ["sequence_id"])


def _generate_request(signature: Signature) -> Schema:
    members = {spec.name: _plain(spec) for spec in signature.inputs.values()}
    return _object(members, [name for name, spec in signature.inputs.items() if not spec.optional])


def _generate_response(signature: Signature) -> Schema:
    return _object(
        {"model_name": {"const": signature.name}, **{name: {} for name in signature.outputs}}, ["model_name"]
    )


def _plain(spec: TensorSpec) -> Schema:
    """A tensor as a member of a `generate` request: one element, or a list of them."""
    element = _element(spec)
    return {"anyOf": [element, {"type": "array", "items": element}], "description": spec.datatype.name}


def _object(members: dict[str, Schema], required: Sequence[str]) -> Schema:
    return {"type": "object", "properties": members, **({"required": list(required)} if required else {})}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _escaped(name: str) -> str:
    """A model's name as it stands in a path. Braces, which mark parameters in OpenAPI, are escaped, too."""
    return quote(name, safe="")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
