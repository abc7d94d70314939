"""frontend/openai/models.py: which models OpenAI's clients are told of."""

import json
from typing import Any

from shoal.frontend.state import ServerState
from tests.frontend.conftest import SIMPLE, dispatch, tensor

TEXT = {"input": [tensor("text_input", "TYPE_STRING", [1])], "output": [tensor("text_output", "TYPE_STRING", [1])]}


def ask(state: ServerState, transport: Any, path: str) -> tuple[int, Any]:
    response = dispatch(state, transport, "GET", path, {}, memoryview(b""))
    return response.status, json.loads(bytes(response.chunks[0]))


def test_models_that_are_ready_and_take_text(state: ServerState, transport: Any, make_message: Any) -> None:
    assert ask(state, transport, "/v1/models") == (200, {"object": "list", "data": []})
    state.begun_s = 5
    for number, (name, config) in enumerate([("story", TEXT), ("sums", {}), ("no\udcfftext", TEXT)]):
        state.models.apply(make_message(name, 1, 20 + number, {**SIMPLE, "name": name, **config}))
    row = {"id": "story", "object": "model", "created": 5, "owned_by": "shoal"}
    assert ask(state, transport, "/v1/models") == (200, {"object": "list", "data": [row]})
    assert ask(state, transport, "/v1/models/story") == (200, row)
    assert ask(state, transport, "/v1/models/no%FFtext")[1]["error"]["type"] == "invalid_request_error"
    for name in ("sums", "nix"):
        status, said = ask(state, transport, f"/v1/models/{name}")
        assert (status, said["error"]["code"], said["error"]["param"]) == (404, "model_not_found", "model")


def test_the_latest_version_decides(state: ServerState, transport: Any, make_message: Any) -> None:
    state.models.apply(make_message("story", 1, 20, {**SIMPLE, "name": "story", **TEXT}))
    state.models.apply(make_message("story", 2, 21, {**SIMPLE, "name": "story"}))
    assert ask(state, transport, "/v1/models/story")[0] == 404
