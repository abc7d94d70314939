"""frontend/router.py: inference as the road answers it, asked of the handlers straight and through Flask."""

import gzip
from typing import Any

from shoal.errors import UnavailableError
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.road.transport import ModelResponse
from shoal.frontend.state import ServerState
from shoal.reasons import ModelGoneError

ASK = ". POST /v2/repository/index says why"

JSON = [("Content-Type", "application/json")]


def error(sentence: str) -> bytes:
    return b'{"error":"' + sentence.encode() + b'"}'


def _input(name: str, first: int) -> bytes:
    data = ",".join(str(first + index) for index in range(16))
    return f'{{"name":"{name}","datatype":"INT32","shape":[1,16],"data":[{data}]}}'.encode()


INFER = b'{"id":"q","inputs":[' + _input("INPUT0", 0) + b"," + _input("INPUT1", 100) + b"]}"
INFERRED = (
    b'{"id":"q","model_name":"simple","model_version":"3","outputs":['
    b'{"name":"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]},'
    b'{"name":"OUTPUT1","datatype":"INT32","shape":[1,16],'
    b'"data":[100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115]}]}'
)


def test_infer_answers_and_releases_the_block_once(client: Any, transport: Any) -> None:
    assert client.ask("POST", "/v2/models/simple/infer", INFER) == (200, JSON, INFERRED)
    assert (transport.num_asked, transport.num_released) == (1, 1)


def test_while_exiting(client: Any, state: ServerState) -> None:
    """What a running sequence still needs is let through; the scheduler decides."""
    state.exiting = True
    assert client.ask("POST", "/v2/models/simple/infer", INFER)[0] == 200


def test_infer_in_binary(client: Any, transport: Any) -> None:
    text = (
        b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"parameters":{"binary_data_size":64}},'
        + _input("INPUT1", 0)
        + b'],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    )
    tensor = bytes(range(64))
    status, headers, body = client.ask(
        "POST", "/v2/models/simple/infer", text + tensor, {"Inference-Header-Content-Length": str(len(text))}
    )
    sent = dict(headers)
    assert (status, sent["Content-Type"]) == (200, "application/octet-stream")
    assert body[int(sent["Inference-Header-Content-Length"]) :] == tensor
    assert transport.num_released == 1


def test_bodies_are_inflated_and_short_answers_go_as_they_are(client: Any, transport: Any) -> None:
    status, headers, body = client.ask(
        "POST",
        "/v2/models/simple/infer",
        gzip.compress(INFER),
        {"Content-Encoding": "gzip", "Accept-Encoding": "deflate;q=0.5, gzip"},
    )
    assert (status, headers, body) == (200, JSON, INFERRED)  # too short to be worth it
    assert transport.num_released == 1


GONE = ModelGoneError("Request for unknown model: 'simple' version 3 is not at ready state")


def test_a_request_that_a_reload_overtakes_is_asked_again(
    client: Any, transport: Any, state: ServerState, make_message: Any
) -> None:
    infer = transport.infer

    def reload(prepared: PreparedRequest) -> ModelResponse:
        """The model is reloaded as other requests are on their way to it; the third comes through."""
        if transport.num_asked < 2:
            transport.num_asked += 1
            model_id = 20 + transport.num_asked
            state.models.apply(make_message("simple", 3, model_id, prepared.entry.config))
            raise GONE
        assert prepared.entry.model_id == 22
        answer: ModelResponse = infer(prepared)
        return answer

    transport.infer = reload
    assert client.ask("POST", "/v2/models/simple/infer", INFER) == (200, JSON, INFERRED)
    assert (transport.num_asked, transport.num_released) == (3, 1)


def test_a_request_is_not_asked_again_where_nothing_has_taken_its_model_s_place(client: Any, transport: Any) -> None:
    transport.error = GONE
    assert client.ask("POST", "/v2/models/simple/infer", INFER) == (503, JSON, error(str(GONE)))
    assert transport.num_asked == 1


def test_reloads_without_end_are_no_loop_without_end(
    client: Any, transport: Any, state: ServerState, make_message: Any
) -> None:
    def reload(prepared: PreparedRequest) -> ModelResponse:
        transport.num_asked += 1
        state.models.apply(make_message("simple", 3, 20 + transport.num_asked, prepared.entry.config))
        raise GONE

    transport.infer = reload
    assert client.ask("POST", "/v2/models/simple/infer", INFER)[0] == 503
    assert transport.num_asked == 4


def test_a_request_whose_model_is_unloaded_meanwhile_is_told_so(
    client: Any, transport: Any, state: ServerState, make_message: Any
) -> None:
    def unload(_prepared: PreparedRequest) -> ModelResponse:
        for version in (1, 3):
            message = make_message("simple", version, version, None, state="UNAVAILABLE", reason="unloaded")
            state.models.apply(message)
        raise GONE

    transport.infer = unload
    refused = client.ask("POST", "/v2/models/simple/infer", INFER)
    assert refused == (404, JSON, error("Request for unknown model: 'simple' has no available versions" + ASK))


def test_what_the_batcher_refuses_is_the_answer(client: Any, transport: Any) -> None:
    transport.error = UnavailableError("[request id: q] Exceeds maximum queue size")
    assert client.ask("POST", "/v2/models/simple/infer", INFER) == (
        503,
        JSON,
        error("[request id: q] Exceeds maximum queue size"),
    )


def test_an_answer_that_cannot_be_shown_is_released_too(
    client: Any, transport: Any, state: ServerState, make_message: Any
) -> None:
    half = {"name": "X", "data_type": "TYPE_FP16", "dims": [2]}
    config = {"name": "half", "max_batch_size": 0, "input": [half], "output": [half]}
    state.models.apply(make_message("half", 1, 1, config))
    text = b'{"inputs":[{"name":"X","datatype":"FP16","shape":[2],"parameters":{"binary_data_size":4}}]}'
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, _, body = client.ask("POST", "/v2/models/half/infer", text + b"1234", headers)
    assert (status, body[:50]) == (400, b'{"error":"sending FP16 data via JSON is not suppor')
    assert (transport.num_asked, transport.num_released) == (1, 1)
