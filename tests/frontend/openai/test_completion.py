"""frontend/openai/completion.py: responses of models of every kind become OpenAI's objects, whole and in chunks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shoal.datatypes import BY_NAME, encode_bytes_tensor
from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.frontend.call import HandlerCall
from shoal.frontend.generation import Rendering
from shoal.frontend.openai.completion import plan_chat, plan_completion
from shoal.frontend.openai.errors import InvalidRequestError, NoSuchModelError
from shoal.frontend.state import ServerState
from shoal.request import InferResponse, TensorRef
from shoal.star.models import ModelEntry
from tests.region_bytes import bytes_of

Make = Callable[..., ModelEntry]
STRING = ("text_output", "TYPE_STRING", [1])
ASK = {"model": "simple", "prompt": "Once", "max_tokens": 3}


def entry_of(make_entry: Make, *inputs: Any, outputs: Any = (STRING,), batch: int = 0, **parameters: str) -> ModelEntry:
    texts = inputs or (("text_input", "TYPE_STRING", [1]),)
    made = make_entry("simple", batch, list(texts), list(outputs))
    told = {name: {"string_value": value} for name, value in parameters.items()}
    return made if not told else _with(made, told)


def _with(entry: ModelEntry, parameters: Any) -> ModelEntry:
    from dataclasses import replace

    return replace(entry, config={**entry.config, "parameters": parameters})


@pytest.fixture
def plan(state: ServerState) -> Callable[..., Rendering]:
    """The rendering of a request; `state` knows a model `simple`."""

    def plan(entry: ModelEntry, chat: bool = False, **members: Any) -> Rendering:
        body = {"model": "simple", "max_tokens": 3, **members}
        call = HandlerCall(state, None, {}, memoryview(json.dumps(body).encode()), "", None, "")
        return (plan_chat if chat else plan_completion)(call).prepare(entry)

    return plan


def response(text: bytes, *more: tuple[str, str, bytes], **parameters: Any) -> tuple[InferResponse, memoryview]:
    block = encode_bytes_tensor([text])
    refs = [TensorRef("text_output", BY_NAME["BYTES"].wire, (1,), 0, len(block))]
    for name, datatype, data in more:
        refs.append(TensorRef(name, BY_NAME[datatype].wire, (1,), len(block), len(data)))
        block += data
    return InferResponse(tuple(refs), parameters), memoryview(block)


def choice_of(rendering: Rendering) -> Any:
    said = json.loads(bytes(rendering.body().chunks[0]))
    return said["choices"][0], said["usage"]


def test_what_the_model_gets(plan: Any, make_entry: Make) -> None:
    more = {"temperature": 0.5, "seed": 7, "top_k": 4, "stop": ["x"], "user": "me", "metadata": {"a": "b"}}
    asked = plan(entry_of(make_entry), prompt="Once", **more).prepared
    assert asked.parameters == {"max_tokens": 3, "temperature": 0.5, "seed": 7, "top_k": 4}
    inputs: list[Any] = [("text_input", "TYPE_STRING", [1]), ("max_tokens", "TYPE_INT32", [1])]
    inputs += [("stop_words", "TYPE_STRING", [-1], {"optional": True}), ("stream", "TYPE_BOOL", [1])]
    asked = plan(entry_of(make_entry, *inputs, batch=4), prompt="Once", **more).prepared
    assert {each.name: (each.shape, bytes_of(each.data)) for each in asked.inputs} == {
        "text_input": ((1, 1), b"\4\0\0\0Once"), "max_tokens": ((1, 1), b"\3\0\0\0"),
        "stop_words": ((1, 1), b"\1\0\0\0x"), "stream": ((1, 1), b"\0"),
    }  # fmt: skip
    assert asked.parameters == {"temperature": 0.5, "seed": 7, "top_k": 4}
    sampling = ("sampling_parameters", "TYPE_STRING", [1], {"optional": True})
    asked = plan(entry_of(make_entry, inputs[0], sampling), prompt="Once", **more).prepared
    told = json.loads(bytes_of(next(each.data for each in asked.inputs if each.name == sampling[0]))[4:])
    assert (asked.parameters, told) == (
        {}, {"max_tokens": 3, "temperature": 0.5, "seed": 7, "top_k": 4, "stop": ["x"]},
    )  # fmt: skip


def test_a_conversation_needs_a_template_or_a_model_that_takes_it(plan: Any, make_entry: Make) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequestError, match="has no chat template"):
        plan(entry_of(make_entry), chat=True, messages=messages)
    entry = entry_of(make_entry, chat_template="{{ bos_token }}{{ messages[0].content }}", bos_token="^")
    assert bytes_of(plan(entry, chat=True, messages=messages).prepared.inputs[0].data) == b"\3\0\0\0^Hi"
    takes = entry_of(make_entry, ("messages", "TYPE_STRING", [1]))
    assert json.loads(bytes_of(plan(takes, chat=True, messages=messages).prepared.inputs[0].data)[4:]) == messages
    with pytest.raises(InvalidRequestError, match="takes messages alone"):
        plan(takes, prompt="Once")
    with pytest.raises(NoSuchModelError, match="is no text model"):
        plan(entry_of(make_entry, ("ids", "TYPE_INT32", [1])), prompt="Once")
    own = entry_of(make_entry, ("IN", "TYPE_STRING", [1]), outputs=[("OUT", "TYPE_STRING", [1])], text_input="IN",
                   text_output="OUT")  # fmt: skip
    assert plan(own, prompt="Once").prepared.inputs[0].name == "IN"


@pytest.mark.parametrize(
    ("member", "sentence"),
    [
        ({"max_tokens": 1 << 63}, "must be from 1 to 2\\^63 - 1"),
        ({"temperature": float("nan")}, "'temperature' must be a number, got nan"),
        ({"top_p": float("inf")}, "'top_p' must be a number, got inf"),
        ({"top_logprobs": 1}, "'top_logprobs' is not supported"),
        ({"logprobs": 0}, "'logprobs' is not supported"),
    ],
)
def test_a_member_that_does_not_fit_is_named(plan: Any, make_entry: Make, member: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as refusal:
        plan(entry_of(make_entry), prompt="Once", **member)
    assert refusal.value.param in member
    plan(entry_of(make_entry), prompt="Once", logprobs=False, top_logprobs=0)


def test_a_conversation_in_which_tools_were_called_reaches_the_template(plan: Any, make_entry: Make) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    template = (
        "{{ messages[0].tool_calls[0].function.name }} {{ messages[0].content is none }} {{ messages[1].content }}"
    )
    entry = entry_of(make_entry, chat_template=template)
    assert bytes_of(plan(entry, chat=True, messages=messages).prepared.inputs[0].data)[4:] == b"now True noon"
    for wrong in ({"role": "user", "content": None, "tool_calls": [call]}, {"role": "assistant", "content": None}):
        with pytest.raises(InvalidRequestError, match="content must be a string"):
            plan(entry, chat=True, messages=[wrong])


def test_variables_of_the_request_replace_those_of_templates(plan: Any, make_entry: Make) -> None:
    entry = entry_of(
        make_entry, chat_template="{{ add_generation_prompt }} {{ documents }} {{ bos_token }}", bos_token="^"
    )
    messages, said = [{"role": "user", "content": "Hi"}], {"add_generation_prompt": False, "documents": ["a"]}
    made = plan(entry, chat=True, messages=messages, chat_template_kwargs=said)
    assert bytes_of(made.prepared.inputs[0].data)[4:] == b"False ['a'] ^"
    with pytest.raises(InvalidRequestError, match="must not have 'messages'"):
        plan(entry, chat=True, messages=messages, chat_template_kwargs={"messages": []})


@pytest.mark.parametrize("num", [-5, 2**31])
def test_numbers_that_no_text_has_of_tokens_are_no_usage(plan: Any, make_entry: Make, num: int) -> None:
    rendering = plan(entry_of(make_entry), prompt="Once")
    rendering.add(*response(b"a", num_input_tokens=num, num_output_tokens=1))
    assert choice_of(rendering)[1] is None
    rendering.add(*response(b"a", ("num_output_tokens", "UINT64", b"\xff" * 8), num_input_tokens=2**31 - 1))
    assert choice_of(rendering)[1] == {
        "prompt_tokens": 2**31 - 1, "completion_tokens": 1, "total_tokens": 2**31
    }  # fmt: skip


def test_what_the_model_tells(plan: Any, make_entry: Make) -> None:
    entry = entry_of(make_entry)
    rendering = plan(entry, prompt="Once")
    rendering.add(*response(b"a"))
    choice, usage = choice_of(rendering)
    assert (choice["text"], choice["finish_reason"], usage) == ("a", "stop", None)  # a model that tells nothing
    rendering = plan(entry, prompt="Once")
    rendering.add(
        *response(b"a", ("num_output_tokens", "UINT32", b"\2\0\0\0"), num_input_tokens=5, finish_reason="None")
    )
    rendering.add(*response(b"b", ("num_output_tokens", "UINT32", b"\1\0\0\0")))
    choice, usage = choice_of(rendering)
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")  # as many as it may have
    assert usage == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    rendering = plan(entry, prompt="Once")
    rendering.add(*response(b"a", ("finish_reason", "BYTES", b"\4\0\0\0stop"), num_output_tokens=3))
    assert choice_of(rendering)[0]["finish_reason"] == "stop"


def test_a_character_that_comes_in_two_parts_is_whole(plan: Any, make_entry: Make) -> None:
    rendering = plan(entry_of(make_entry), prompt="Once", stream=True)
    data = [rendering.add(*response(piece)) for piece in (b"\xc3", b"\xa9\xe2\x82", b"")] + [rendering.end()]
    texts = [json.loads(each[6:])["choices"] for each in b"".join(data).split(b"\n\n")[:-2]]
    assert [choice["text"] for [choice] in texts] == ["é", "\ufffd", ""]
    assert data[0] == b""


def test_errors_before_and_within_a_stream(plan: Any, make_entry: Make) -> None:
    full: ShoalError = UnavailableError("full")
    full.retry_after_s = 7
    rendering = plan(entry_of(make_entry), prompt="Once", stream=True)
    first = rendering.failed(full, has_begun=False)
    assert (first.status, dict(first.headers)["Retry-After"], first.is_over) == (503, "7", True)
    assert json.loads(first.data)["error"]["message"] == "full"
    later = rendering.failed(full, has_begun=True)
    assert later.data == b'data: {"error":{"message":"full","type":"server_error","param":null,"code":null}}\n\n'


def test_what_a_worker_must_not_answer(plan: Any, make_entry: Make) -> None:
    rendering = plan(entry_of(make_entry), prompt="Once")
    with pytest.raises(InternalError, match="is shorter than the lengths of its strings"):
        rendering.add(InferResponse((TensorRef("text_output", 13, (1,), 0, 4),), {}), memoryview(b"\x09\0\0\0"))
    with pytest.raises(InternalError, match="has the datatype FP32"):
        rendering.add(InferResponse((TensorRef("text_output", 11, (1,), 0, 4),), {}), memoryview(bytes(4)))
