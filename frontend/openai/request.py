"""The bodies of OpenAI's requests for text: their members, and which members are refused. Pure.

A member of OpenAI's API that would change the answer and that this server does not honour is refused by its name. A
member that changes nothing or little (`user`, `verbosity`) is left out; any other is a sampling parameter, which the
model gets.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.errors import InternalError
from shoal.frontend import read_json as door
from shoal.frontend.call import HandlerCall
from shoal.frontend.openai.errors import InvalidRequestError
from shoal.frontend.v2.compression import refuse_encoding

#: Members that are left out: they do not change an answer, or only ask for another style (`verbosity`).
_LEFT_OUT = frozenset(
    {
        "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
        "service_tier", "store", "user", "verbosity",
    }
)  # fmt: skip
#: Members that are no sampling parameters: this module reads them, but for `function_call`, which means nothing without
#: `functions`.
_READ = frozenset(
    {
        "best_of", "chat_template_kwargs", "echo", "function_call", "functions", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "messages", "modalities", "model", "n", "prompt", "response_format",
        "stop", "stream", "stream_options", "suffix", "tool_choice", "tools", "top_logprobs",
    }
)  # fmt: skip
#: Members that would change the answer and that this server does not honour.
_REFUSED = frozenset({"audio", "moderation", "prediction", "web_search_options"})
#: Sampling parameters that OpenAI's API has, all of them numbers.
_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
#: Most stop sequences of a request, of which OpenAI takes four, and most characters of one of them (both ours: each is
#: searched for in each piece of an answer).
MAX_STOPS, MAX_STOP_CHARS = 16, 1024

Message = Mapping[str, Any]


class TextRequest(NamedTuple):
    """A request for text to one of OpenAI's two endpoints, with its members read and checked."""

    model: str
    prompt: str  # of a completion; "" for a chat
    messages: Sequence[Message]  # of a chat, each with its text as `content`; empty for a completion
    template_variables: Mapping[str, Any]  # further names for the chat template (vLLM's `chat_template_kwargs`)
    is_stream: bool
    includes_usage: bool  # a stream ends with a chunk that counts tokens
    is_echoed: bool  # the answer begins with the prompt
    stops: tuple[str, ...]
    max_tokens: int
    sampling: Mapping[str, Any]  # max_tokens, temperature and all other sampling parameters, without nulls


def read_body(call: HandlerCall) -> dict[str, Any]:
    """The object in a request's body, without members that are null. Raises InvalidArgumentError."""
    refuse_encoding(call.headers)
    try:
        request = door.read_json(call.body, call.state.http_max_input_size)
    except InternalError as error:  # Triton's class for malformed JSON
        raise InvalidRequestError(str(error)) from None
    if type(request) is not dict:
        raise InvalidRequestError("the body must be a JSON object")
    return {name: value for name, value in request.items() if value is not None}


def model_of(request: Mapping[str, Any]) -> str:
    """The model's name. Raises InvalidRequestError."""
    model = request.get("model", "")
    if type(model) is not str or not model:
        raise InvalidRequestError("'model' must be the name of a model: GET /v1/models lists them", "model")
    return model


def read_chat(request: Mapping[str, Any], default_max_tokens: int) -> TextRequest:
    """A request of POST /v1/chat/completions. Raises InvalidRequestError."""
    tools_are_off = request.get("tool_choice") == "none"
    if (request.get("tools") and not tools_are_off) or request.get("functions"):
        raise InvalidRequestError(
            "this server does not find calls of tools in a model's text: leave 'tools' and 'functions' out, or say "
            "'tool_choice': 'none'",
            "tools",
        )
    if request.get("modalities", ["text"]) != ["text"]:
        raise InvalidRequestError("'modalities' must be [\"text\"]: models answer with text alone", "modalities")
    variables = _of(request, "chat_template_kwargs", dict, {}, "an object")
    if "messages" in variables:
        raise InvalidRequestError("'chat_template_kwargs' must not have 'messages'", "chat_template_kwargs")
    return _text_request(request, default_max_tokens, "", _messages(request), variables)


def read_completion(request: Mapping[str, Any], default_max_tokens: int) -> TextRequest:
    """A request of POST /v1/completions. Raises InvalidRequestError."""
    prompt = request.get("prompt")
    if type(prompt) is list and len(prompt) == 1 and type(prompt[0]) is str:
        [prompt] = prompt
    if type(prompt) is not str:
        raise InvalidRequestError(
            "'prompt' must be one string: send one request for each prompt, and no tokens", "prompt"
        )
    if request.get("suffix"):
        raise InvalidRequestError("'suffix' is not supported: leave it out", "suffix")
    if _of(request, "best_of", int, 1, "a number") != 1:
        raise InvalidRequestError("'best_of' must be 1: each request has one answer", "best_of")
    return _text_request(request, default_max_tokens, prompt)


def _text_request(
    request: Mapping[str, Any],
    default_max_tokens: int,
    prompt: str,
    messages: Sequence[Message] = (),
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> TextRequest:
    _refuse(request)
    is_stream = _of(request, "stream", bool, False, "true or false")
    options = _of(request, "stream_options", dict, {}, "an object")
    if options and not is_stream:
        raise InvalidRequestError("'stream_options' needs 'stream': true", "stream_options")
    name = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
    max_tokens = _of(request, name, int, default_max_tokens, "a number")
    if not 1 <= max_tokens <= door.MAX_INT64:
        raise InvalidRequestError(f"'{name}' is {max_tokens}, must be from 1 to 2^63 - 1", name)
    for number in _NUMBERS:
        if type(value := request.get(number, 0)) not in (int, float) or not isfinite(value):
            raise InvalidRequestError(f"'{number}' must be a number, got {_shown(value)}", number)
    others = {key: value for key, value in request.items() if key not in _READ and key not in _LEFT_OUT}
    return TextRequest(
        model_of(request),
        prompt,
        messages,
        variables,
        is_stream,
        _of(options, "include_usage", bool, False, "true or false", "stream_options"),
        bool(prompt) and _of(request, "echo", bool, False, "true or false"),
        _stops(request),
        max_tokens,
        {"max_tokens": max_tokens, **others},
    )


def _refuse(request: Mapping[str, Any]) -> None:
    """Refuse members that would change the answer and are not honoured."""
    if _of(request, "n", int, 1, "a number") != 1:
        raise InvalidRequestError("'n' must be 1: each request has one answer", "n")
    for name, off in (("logprobs", False), ("top_logprobs", 0)):
        if name in request and (type(request[name]), request[name]) != (type(off), off):
            raise InvalidRequestError(f"'{name}' is not supported: leave it out", name)
    if request.get("logit_bias"):
        raise InvalidRequestError("'logit_bias' is not supported: leave it out", "logit_bias")
    if request.get("response_format", {"type": "text"}) != {"type": "text"}:
        raise InvalidRequestError(
            '\'response_format\' must be {"type": "text"}: no other is enforced', "response_format"
        )
    for name in sorted(_REFUSED & request.keys()):
        raise InvalidRequestError(f"'{name}' is not supported: leave it out", name)


def _of(members: Mapping[str, Any], name: str, kind: type, default: Any, wanted: str, param: str | None = None) -> Any:
    """A member of one type, or its default. Raises InvalidRequestError."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise InvalidRequestError(f"'{name}' must be {wanted}, got {_shown(value)}", param or name)
    return value


def _stops(request: Mapping[str, Any]) -> tuple[str, ...]:
    stop = request.get("stop", [])
    stops = [stop] if type(stop) is str else stop
    if type(stops) is not list or any(type(each) is not str or not each for each in stops):
        raise InvalidRequestError(f"'stop' must be a string or a list of strings, got {_shown(stop)}", "stop")
    if len(stops) > MAX_STOPS or any(len(each) > MAX_STOP_CHARS for each in stops):
        raise InvalidRequestError(f"'stop' may have {MAX_STOPS} strings of at most {MAX_STOP_CHARS} characters", "stop")
    return tuple(stops)


def _messages(request: Mapping[str, Any]) -> list[Message]:
    messages = request.get("messages")
    if type(messages) is not list or not messages:
        raise InvalidRequestError("'messages' must be a list of at least one message", "messages")
    return [_message(number, each) for number, each in enumerate(messages)]


def _message(number: int, message: Any) -> Message:
    where = f"messages[{number}]"
    if type(message) is not dict or type(message.get("role")) is not str:
        raise InvalidRequestError(f"{where} must be an object with 'role' and 'content'", where)
    content = message.get("content")
    if content is None and message["role"] == "assistant" and (message.get("tool_calls") or message.get("refusal")):
        return {**message, "content": None}  # the form that templates expect of a tool call without text
    if type(content) is list:
        content = "".join(_part(f"{where}.content[{at}]", part) for at, part in enumerate(content))
    if type(content) is not str:
        raise InvalidRequestError(f"{where}.content must be a string or a list of parts of text", f"{where}.content")
    return {**message, "content": content}


def _part(where: str, part: Any) -> str:
    if type(part) is dict and part.get("type") == "text" and type(text := part.get("text")) is str:
        return text
    raise InvalidRequestError(f"{where} must be a part of the type 'text': images and audio are not supported", where)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
