"""frontend/v2/generate.py: flat JSON to tensors and back, without a server; the model repeats its inputs."""

import json
from collections.abc import Callable, Generator
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.deterministic import ALONE
from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.frontend.generation import respond
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import Response
from shoal.frontend.road.transport import ModelResponse, StreamedResponse
from shoal.frontend.v2.generate import FlatOnce, FlatStream, fitted, flatten, prepare
from shoal.reasons import ModelGoneError
from shoal.request import InferResponse, TensorRef
from shoal.star.models import ModelEntry
from tests.region_bytes import bytes_of


def generate(asked: PreparedRequest, transport: Any) -> Response:
    return respond(FlatOnce(asked), transport)


def generate_stream(asked: PreparedRequest, transport: Any) -> Response:
    return respond(FlatStream(asked), transport)


UNKNOWN = "[request id: <id_unknown>] "
Make = Callable[..., ModelEntry]


@pytest.fixture(scope="session")
def model(make_entry: Make) -> ModelEntry:
    """Every kind of input, all optional."""
    optional = {"optional": True}
    inputs = [
        ("text", "TYPE_STRING", [1], optional), ("words", "TYPE_STRING", [-1], optional),
        ("flag", "TYPE_BOOL", [1], optional), ("three", "TYPE_INT32", [3], optional),
        ("grid", "TYPE_FP32", [-1, 2], optional), ("half", "TYPE_FP16", [-1], optional),
    ]  # fmt: skip
    return make_entry("m", 0, inputs)


def prepared(
    entry: ModelEntry, request: Any, headers: dict[str, str] | None = None, limit: int = 1000, **forwarded: str
) -> PreparedRequest:
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    return prepare(entry, headers or {}, memoryview(text), limit, forwarded)


def tensors(request: PreparedRequest) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {each.name: (each.shape, bytes_of(each.data)) for each in request.inputs}


# --- the request ---


def test_a_deterministic_request_has_the_flag_and_keeps_the_parameter(model: ModelEntry) -> None:
    for value, flags in ((True, ALONE), ("true", ALONE), (False, 0)):
        asked = prepared(model, {"text": "a", "deterministic": value})
        assert (asked.flags, asked.parameters) == (flags, {"deterministic": value})
    with pytest.raises(InvalidArgumentError, match=r"^parameter 'deterministic' is 'maybe', must be true or false$"):
        prepared(model, {"text": "a", "deterministic": "maybe"})


def test_names_of_inputs_are_tensors_and_all_else_are_parameters(model: ModelEntry) -> None:
    request = {"text": "hé", "temperature": 0.5, "id": "me", "n": 3, "stop": "x", "stream": True, "three": [1, 2, -3]}
    asked = prepared(model, request)
    assert tensors(asked) == {
        "text": ((1,), b"\3\0\0\0h\xc3\xa9"), "three": ((3,), bytes.fromhex("0100000002000000fdffffff")),
    }  # fmt: skip
    assert asked.parameters == {"temperature": 0.5, "n": 3, "stop": "x", "stream": True}
    assert (asked.id, asked.outputs, asked.binary_data_output, asked.rows) == ("me", (), False, 1)
    assert (asked.priority, asked.timeout_us, asked.correlation_id, asked.flags) == (0, 0, 0, 0)


def test_parameters_are_flattened_once(model: ModelEntry) -> None:
    asked = prepared(model, {"parameters": {"text": "a", "stream": False, "id": "inner"}, "words": ["b", "c"]})
    assert tensors(asked) == {"text": ((1,), b"\1\0\0\0a"), "words": ((2,), b"\1\0\0\0b\1\0\0\0c")}
    assert (asked.parameters, asked.id) == ({"stream": False, "id": "inner"}, "")


def test_what_infer_takes_for_itself_is_a_parameter_here(model: ModelEntry) -> None:
    request = {"text": "a", "priority": 1, "timeout": 5, "sequence_id": 9, "binary_data_output": True}
    asked = prepared(model, request)
    del request["text"]
    assert (asked.parameters, asked.priority, asked.timeout_us) == (request, 0, 0)


def test_headers_are_forwarded_over_parameters_of_their_name(model: ModelEntry) -> None:
    asked = prepared(model, {"text": "a", "user": "body", "x": 1}, user="head", other="b")
    assert asked.parameters == {"user": "head", "x": 1, "other": "b"}
    with pytest.raises(InvalidArgumentError, match=r"^Header 'timeout' is reserved for Triton usage"):
        prepared(model, {"text": "a"}, timeout="1")


@pytest.mark.parametrize("encoding", ["", "identity"])
def test_a_body_as_it_is(model: ModelEntry, encoding: str) -> None:
    assert prepared(model, {"flag": True}, {"content-encoding": encoding}).rows == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_compressed_body(model: ModelEntry, encoding: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^Unsupported content-encoding, only 'identity' is supported\.$"):
        prepared(model, b"{", {"content-encoding": encoding})


def test_a_batch_is_the_outermost_dimension(make_entry: Make) -> None:
    entry = make_entry("m", 8, [("A", "TYPE_INT8", [2])])
    assert tensors(prepared(entry, {"A": [1, 2]})) == {"A": ((1, 2), b"\1\2")}
    asked = prepared(entry, {"A": [1, 2, 3, 4, 5, 6]})
    assert (tensors(asked), asked.rows) == ({"A": ((3, 2), b"\1\2\3\4\5\6")}, 3)


@pytest.mark.parametrize(
    ("dims", "num_elements", "shape"),
    [
        ([], 1, ()), ([], 2, None), ([], 0, None),
        ([1], 1, (1,)), ([3], 3, (3,)), ([3], 1, None), ([3], 6, None), ([3], 0, None),
        ([-1], 5, (5,)), ([-1], 0, (0,)), ([-1, -1], 6, (1, 6)), ([-1, 2], 6, (3, 2)), ([2, -1], 6, (2, 3)),
        ([-1, 2, -1, 3], 12, (1, 2, 2, 3)), ([-1, 4], 6, None), ([0], 0, None), ([-1, 0], 0, None),
    ],
)  # fmt: skip
def test_the_shape_of_a_list(dims: list[int], num_elements: int, shape: tuple[int, ...] | None) -> None:
    assert fitted(dims, num_elements) == shape


@given(st.lists(st.sampled_from([-1, 1, 2, 3, 5]), max_size=5), st.integers(0, 1000))
def test_a_shape_holds_as_many_elements_and_fits_the_dims(dims: list[int], num_elements: int) -> None:
    shape = fitted(dims, num_elements)
    fixed = prod(dim for dim in dims if dim != -1)
    assert (shape is not None) == (num_elements % fixed == 0 if -1 in dims else num_elements == fixed)
    if shape is not None:
        assert prod(shape) == num_elements
        assert all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))
        assert sum(size != 1 for dim, size in zip(dims, shape, strict=True) if dim == -1) <= 1


NUMBER, STRING = "attempt to access JSON non-number as double", "attempt to access JSON non-string as string"
INVALID = "parameter '{}' has invalid type. It should be either 'int', 'bool', or 'string'."
SHAPE = "The schema can not convert input '{}' to tensor with proper shape"


#: Beside what tests/end_to_end/http_cases/generate.py says.
@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"parameters": {"parameters": {}}}, InvalidArgumentError, "Converting keyword: 'parameters': "
         + INVALID.format("parameters")),
        ({"x": []}, InvalidArgumentError, INVALID.format("x")),
        ({"x": None}, InvalidArgumentError, INVALID.format("x")),
        ({"three": []}, InvalidArgumentError, SHAPE.format("three")),
        ({"grid": [1]}, InvalidArgumentError, SHAPE.format("grid")),
        ({"grid": 1}, InvalidArgumentError, SHAPE.format("grid")),
        ({"grid": [1, "2"]}, InternalError, f"Unable to parse 'data': {NUMBER}"),
        ({"grid": [[1, 2], [3, 4]]}, InternalError, "Unable to parse 'data': Shape does not match true shape of 'data' "
         "field. Input 'grid' has 2 elements by its shape, but 4 in its data"),
        ({"text": None}, InternalError, f"Unable to parse JSON bytes array: {STRING}"),
        ({"flag": 1}, InternalError, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        ({"grid": [1] * 252}, InvalidArgumentError, "request size of 1008 bytes with input 'grid' of size 1008 bytes "
         "exceeds the maximum allowed input size of 1000. Use --http-max-input-size to increase the limit."),
        # All inputs together count.
        ({"grid": [1] * 248, "three": [1] * 3}, InvalidArgumentError, "request size of 1004 bytes with input 'three' "
         "of size 12 bytes exceeds the maximum allowed input size of 1000. Use --http-max-input-size to increase the "
         "limit."),
        (b" " * 1001, InvalidArgumentError, "request JSON size of 1001 bytes exceeds the maximum allowed input size of "
         "1000 bytes. Use --http-max-input-size to increase the limit."),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_what_is_refused(model: ModelEntry, request_: Any, error: type[ShoalError], sentence: str) -> None:
    with pytest.raises(error) as refusal:
        prepared(model, request_)
    assert str(refusal.value) == sentence


def test_an_input_that_is_called_as_the_keyword(make_entry: Make) -> None:
    entry = make_entry("m", 0, [("parameters", "TYPE_STRING", [1])])
    with pytest.raises(InvalidArgumentError) as refusal:
        prepared(entry, {"parameters": "a"})
    assert str(refusal.value) == "Keyword 'parameters' for nested schema also given as input tensor name"


def test_an_input_that_is_called_id_is_the_id_too(make_entry: Make) -> None:
    asked = prepared(make_entry("m", 0, [("id", "TYPE_STRING", [1])]), {"id": "a"})
    assert (asked.id, tensors(asked), asked.parameters) == ("a", {"id": ((1,), b"\1\0\0\0a")}, {})


def test_what_the_core_refuses(make_entry: Make) -> None:
    entry = make_entry("m", 2, [("A", "TYPE_INT8", [2])])
    with pytest.raises(InvalidArgumentError, match=r"inference request batch-size must be <= 2 for 'm'$"):
        prepared(entry, {"A": [1, 2, 3, 4, 5, 6]})
    with pytest.raises(InvalidArgumentError, match=r"expected 1 inputs but got 0 inputs for model 'm'\. "):
        prepared(entry, {"B": 1})


# --- the response ---


def _answer(response: InferResponse, release: Callable[[], None]) -> ModelResponse:
    def send(_response: Response) -> Response:
        raise AssertionError("these responses are made of copies")

    return ModelResponse(response, memoryview(BLOCK), release, send)


class Repeat:
    """A transport whose model says what it is told to, an error by raising it or by a part; counts what is released."""

    def __init__(self, *said: InferResponse | ShoalError | None, raises: ShoalError | None = None) -> None:
        self._said = said
        self._raises = raises
        self.num_released = self.num_said = 0
        self.is_cancelled = False

    def infer(self, prepared: PreparedRequest, trace: Any = None) -> Any:
        raise AssertionError(prepared)

    def stream(self, prepared: PreparedRequest, trace: Any = None) -> Generator[StreamedResponse, None, None]:
        try:
            for number, said in enumerate(self._said, 1):
                self.num_said = number
                error = said if isinstance(said, ShoalError) else None
                answer = _answer(said, self._release) if isinstance(said, InferResponse) else None
                yield StreamedResponse(answer, error, number == len(self._said))
            if self._raises is not None:
                raise self._raises
        except GeneratorExit:
            self.is_cancelled = self.num_said < len(self._said)
            raise

    def several(self) -> Any:
        raise AssertionError("no workflow is asked here")

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        raise AssertionError(verb)

    def _release(self) -> None:
        self.num_released += 1


BLOCK = bytes.fromhex("0000c03f 0000c07f 02000000 6869 07 08")
ONE = TensorRef("one", 11, (1, 1), 0, 4)
MANY = TensorRef("many", 11, (2,), 0, 8)
TEXT = TensorRef("text_output", 13, (1,), 8, 6)
NONE = TensorRef("none", 2, (0,), 0, 0)


SAID = b'{"model_name":"m","model_version":"1","text_output":"hi"}'


def events(stream: Response) -> list[bytes]:
    """The data of what a stream sends."""
    sent = list(stream.stream or ())
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in sent)
    return [event[6:-2] for event in sent]


def response(*outputs: TensorRef, **parameters: Any) -> InferResponse:
    return InferResponse(outputs, parameters)


def test_scalars_lists_and_parameters_in_order_of_their_names(model: ModelEntry) -> None:
    asked = prepared(model, {"id": "7"})
    answer = response(TEXT, ONE, MANY, NONE, zeta=1, alpha=True, Beta="b", float=0.5)
    assert flatten(asked, answer, memoryview(BLOCK)) == (
        b'{"Beta":"b","alpha":true,"float":0.5,"id":"7","many":[1.5,NaN],"model_name":"m","model_version":"1",'
        b'"none":[],"one":1.5,"text_output":"hi","zeta":1}'
    )


def test_the_server_s_own_members_win_over_parameters_and_those_over_outputs(model: ModelEntry) -> None:
    answer = response(ONE._replace(name="x"), ONE._replace(name="model_name"), x=1, id="p", model_version="9")
    text = flatten(prepared(model, {"id": "7"}), answer, memoryview(BLOCK))
    assert text == b'{"id":"7","model_name":"m","model_version":"1","x":1}'
    text = flatten(prepared(model, {}), answer, memoryview(BLOCK))
    assert text == b'{"id":"p","model_name":"m","model_version":"1","x":1}'


def test_both_forms_of_an_answer(model: ModelEntry) -> None:
    transport = Repeat(response(TEXT))
    asked = prepared(model, {})
    assert generate(asked, transport) == Response(200, (("Content-Type", "application/json"),), (SAID,))
    stream = generate_stream(asked, transport)
    assert stream.headers == (("Content-Type", "text/event-stream; charset=utf-8"),)
    assert (stream.status, stream.chunks, events(stream)) == (200, (), [SAID])
    assert transport.num_released == 2


def test_a_stream_has_an_event_for_each_response_and_none_for_the_end(model: ModelEntry) -> None:
    transport = Repeat(response(TEXT), response(TEXT, n=1), None)
    stream = generate_stream(prepared(model, {}), transport)
    assert transport.num_said == 1  # the first one is sent before there is a second
    assert events(stream) == [SAID, b'{"model_name":"m","model_version":"1","n":1,"text_output":"hi"}']
    assert (transport.num_released, transport.is_cancelled) == (2, False)


def test_a_stream_without_responses_is_empty(model: ModelEntry) -> None:
    stream = generate_stream(prepared(model, {}), Repeat(None))
    assert (stream.status, events(stream)) == (200, [])


def test_later_errors_are_events(model: ModelEntry) -> None:
    said: list[InferResponse | ShoalError] = [
        response(TEXT),
        InternalError("oh"),
        response(TensorRef("h", 10, (2,), 0, 4)),
        response(TEXT),
    ]
    transport = Repeat(*said, raises=UnavailableError("late"))
    stream = events(generate_stream(prepared(model, {}), transport))
    assert stream[:2] + stream[3:] == [SAID, b'{"error":"oh"}', SAID, b'{"error":"late"}']
    assert stream[2].startswith(b'{"error":"sending FP16 data via JSON is not supported.')
    assert transport.num_released == 3


def test_a_stream_that_is_closed_before_its_end_cancels(model: ModelEntry) -> None:
    transport = Repeat(response(TEXT), response(TEXT), None)
    stream = generate_stream(prepared(model, {}), transport)
    assert stream.close is not None
    stream.close()
    assert (transport.num_said, transport.is_cancelled, transport.num_released) == (1, True, 1)


@pytest.mark.parametrize("said", [(None,), (response(TEXT), response(TEXT), response(TEXT), None)], ids=["0", "3"])
def test_generate_wants_exactly_one_response(model: ModelEntry, said: tuple[InferResponse | None, ...]) -> None:
    transport = Repeat(*said)
    with pytest.raises(InternalError) as refusal:
        generate(prepared(model, {}), transport)
    assert str(refusal.value) == (
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses"
    )
    # The third is not waited for.
    assert (transport.num_released, transport.is_cancelled) == ((2, True) if len(said) > 1 else (0, False))


def test_one_response_and_an_end_of_its_own_are_one_response(model: ModelEntry) -> None:
    assert generate(prepared(model, {}), Repeat(response(TEXT), None)).chunks == (SAID,)


def test_what_cannot_be_told_in_json_is_refused_and_released(model: ModelEntry) -> None:
    transport = Repeat(response(TensorRef("h", 10, (2,), 0, 4)))
    with pytest.raises(InvalidArgumentError, match=r"^sending FP16 data via JSON is not supported\."):
        generate(prepared(model, {}), transport)
    stream = generate_stream(prepared(model, {}), transport)
    assert stream.status == 400
    assert events(stream)[0].startswith(b'{"error":"sending FP16 data via JSON is not supported.')
    assert transport.num_released == 2


def test_a_model_s_error_has_its_own_status(model: ModelEntry) -> None:
    with pytest.raises(UnavailableError, match=r"^full$"):
        generate(prepared(model, {}), Repeat(UnavailableError("full")))
    full = UnavailableError("full")
    full.retry_after_s = 7
    stream = generate_stream(prepared(model, {}), Repeat(full, response(TEXT)))
    assert (stream.status, dict(stream.headers)["Retry-After"]) == (503, "7")
    assert events(stream) == [b'{"error":"full"}', SAID]


@pytest.mark.parametrize("answer", [generate, generate_stream])
def test_what_fails_without_an_answer_is_raised(model: ModelEntry, answer: Any) -> None:
    with pytest.raises(UnavailableError, match=r"^late$"):
        answer(prepared(model, {}), Repeat(raises=UnavailableError("late")))
    with pytest.raises(ModelGoneError):  # then the request is prepared again
        answer(prepared(model, {}), Repeat(ModelGoneError("gone")))


@pytest.mark.parametrize(
    ("kind", "content", "before", "after"),
    [
        ("generate", "application/json", "", ""),
        ("generate_stream", "text/event-stream; charset=utf-8", "data: ", "\n\n"),
    ],
)
def test_through_the_router(client: Any, transport: Any, kind: str, content: str, before: str, after: str) -> None:
    row = str(list(range(16))).replace(" ", "")
    text = f'{{"OUTPUT0":{row},"OUTPUT1":{row},"id":"7","model_name":"simple","model_version":"1"}}'
    asked = f'{{"INPUT0":{row},"parameters":{{"INPUT1":{row}}},"id":"7","x":1}}'
    assert client.ask("POST", f"/v2/models/simple/versions/1/{kind}", asked.encode()) == (
        200, [("Content-Type", content)], f"{before}{text}{after}".encode(),
    )  # fmt: skip
    assert (transport.num_asked, transport.num_released) == (1, 1)
