"""frontend/page/openapi.py: the document is OpenAPI 3.1, and says of each model what the server says of it."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from shoal.frontend.page.openapi import describe
from shoal.frontend.router import HTTP, RouteMatch
from shoal.frontend.state import ServerState
from shoal.frontend.v2.metadata import model_metadata
from tests.frontend.calls import call_of
from tests.frontend.conftest import SIMPLE, dispatch


@pytest.fixture
def document(state: ServerState) -> dict[str, Any]:
    return describe(state)


def schema(document: dict[str, Any], path: str, method: str = "post") -> Any:
    content = document["paths"][path][method]["requestBody"]["content"]["application/json"]
    return Draft202012Validator(content["schema"])


def test_it_is_valid(document: dict[str, Any], state: ServerState, transport: Any) -> None:
    OpenAPIV31SpecValidator(document).validate()
    state.has_page = True
    response = dispatch(state, transport, "GET", "/openapi.json", {}, memoryview(b""))
    assert json.loads(bytes(response.chunks[0])) == json.loads(json.dumps(document))


def test_every_path_is_one_that_the_server_has(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method in methods:
            assert isinstance(HTTP.resolve(method.upper(), path), RouteMatch), (method, path)


def test_it_has_the_models_that_are_ready_and_no_others(document: dict[str, Any], state: ServerState) -> None:
    tags = {each["name"] for each in document["tags"]} - {"server"}
    assert tags == {entry.name for entry in state.models.ready_entries()}
    assert "/v2/models/%C3%A9cho%20b/infer" in document["paths"]
    assert {"/v2/models/simple/versions/1/infer", "/v2/models/simple/versions/3/infer"} <= document["paths"].keys()
    assert "/v2/models/simple/versions/2/infer" not in document["paths"]


def test_the_tensors_are_those_of_the_metadata(document: dict[str, Any], state: ServerState) -> None:
    told = json.loads(bytes(model_metadata(call_of(state, name="simple")).chunks[0]))
    listed = schema(document, "/v2/models/simple/infer").schema["properties"]["inputs"]["items"]["oneOf"]
    assert [(each["properties"]["name"]["const"], each["properties"]["datatype"]["const"]) for each in listed] == [
        (each["name"], each["datatype"]) for each in told["inputs"]
    ]


def test_the_schema_takes_what_the_server_takes_and_refuses_what_it_refuses(document: dict[str, Any]) -> None:
    takes = schema(document, "/v2/models/simple/infer").is_valid
    tensors = [
        {"name": name, "shape": [2, 16], "datatype": "INT32", "data": [[1] * 16, [2] * 16]}
        for name in ("INPUT0", "INPUT1")
    ]
    assert takes({"inputs": tensors})
    assert takes({"inputs": tensors[::-1], "outputs": [{"name": "OUTPUT1"}]})
    assert not takes({"inputs": tensors[:1]})
    assert not takes({"inputs": [{**each, "shape": [9, 16]} for each in tensors]})  # max_batch_size is 8
    assert not takes({"inputs": [{**each, "shape": [1, 17]} for each in tensors]})
    assert not takes({"inputs": [{**each, "datatype": "FP32"} for each in tensors]})
    assert not takes({"inputs": [{**each, "name": "OTHER"} for each in tensors]})
    assert not takes({"inputs": [{**each, "data": [2**31]} for each in tensors]})
    assert not takes({"inputs": tensors, "outputs": [{"name": "INPUT0"}]})


def test_a_model_that_answers_many_times_only_streams(document: dict[str, Any]) -> None:
    paths = document["paths"]
    assert "/v2/models/stream/infer" not in paths
    assert "/v2/models/stream/generate" not in paths
    assert "text/event-stream" in paths["/v2/models/stream/generate_stream"]["post"]["responses"]["200"]["content"]


def test_names_do_not_break_the_document(state: ServerState, make_message: Any) -> None:
    for number, name in enumerate(["<img src=x onerror=alert(1)>", "{name}", "a?b#c", "no\udcffunicode"]):
        state.models.apply(make_message(name, 1, 20 + number, {**SIMPLE, "name": name}))
    document = describe(state)
    OpenAPIV31SpecValidator(document).validate()
    assert "/v2/models/%7Bname%7D" in document["paths"]
    json.dumps(document).encode()


def test_models_of_text_have_openai_s_paths(document: dict[str, Any], state: ServerState, make_message: Any) -> None:
    assert "/v1/models" in document["paths"]
    assert "/v1/completions" not in document["paths"], "no model takes it"
    text, vector = (
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
        {"data_type": "TYPE_FP32", "dims": [2]},
    )
    outputs = [{**text, "name": "text_output"}, {**vector, "name": "embedding"}]
    state.models.apply(make_message("story", 1, 20, {**SIMPLE, "name": "story", "input": [text], "output": outputs}))
    described = describe(state)
    OpenAPIV31SpecValidator(described).validate()
    chat = schema(described, "/v1/chat/completions").is_valid
    assert chat({"model": "story", "messages": [{"role": "user", "content": "Hi"}], "seed": 3})
    assert not chat({"model": "simple", "messages": [{"role": "user", "content": "Hi"}]})
    assert schema(described, "/v1/embeddings").is_valid({"model": "story", "input": ["a", "b"]})
