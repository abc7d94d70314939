"""A model's responses as OpenAI's completions: one object, or chunks of a stream. Front-end processes.

    chat, whole       {"object": "chat.completion", "choices": [{"message": {…}, "finish_reason": "stop"}], …}
    chat, a stream    a chunk with the role, one for each piece of text, one with the reason of the end, [DONE]

Text that comes in several responses is put together, and so is a character whose bytes are in two responses. The number
of tokens and the reason of the end come from the model (`num_input_tokens`, `num_output_tokens`, `finish_reason`, each
an output or a parameter of the response). For a model that does not report both numbers, `usage` is null, and a stream
has no chunk that counts tokens.
"""

import codecs
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from shoal.datatypes import BY_WIRE, BYTES, TruncatedBytesError, decode_bytes_tensor
from shoal.errors import InternalError, InvalidArgumentError, NotFoundError, ShoalError
from shoal.frontend.access.authorisation import check_named_model
from shoal.frontend.call import HandlerCall
from shoal.frontend.generation import EVENTS, Failure, Plan, event
from shoal.frontend.openai.errors import InvalidRequestError, NoSuchModelError, error_text, refusal
from shoal.frontend.openai.models import MESSAGES, TextModel, members_of, text_model
from shoal.frontend.openai.request import TextRequest, model_of, read_body, read_chat, read_completion
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import JSON_CONTENT, Headers, Response
from shoal.frontend.v2.generate import prepare_members
from shoal.model_config.chat_templates import BOS_TOKEN, CHAT_TEMPLATE, EOS_TOKEN
from shoal.model_config.parameters import parameter
from shoal.request import InferResponse, TensorRef
from shoal.star.models import ModelEntry


class StopSequences:
    """Cuts a text, which comes in pieces, in front of the first stop sequence.

        stop "END"     pieces "the E", "N", "D of it"     →     "the ", "", "", and the end

    The end of a piece that may be the beginning of a stop sequence is kept back until the next piece has come.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """None of `stops` is the empty text; there may be no stops."""
        self._stops = stops
        # Changed by feed and rest: the text that is kept back, and whether a stop sequence has come.
        self._kept = ""
        self.is_found = False

    def feed(self, piece: str) -> str:
        """The next part of the text, which no stop sequence can cut any more; "" after the first stop sequence."""
        if not self._stops:
            return piece
        if self.is_found:
            return ""
        text = self._kept + piece
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_found, self._kept = True, ""
            return text[: min(ends)]
        most = max(_num_begun(text, stop) for stop in self._stops)
        self._kept = text[len(text) - most :]
        return text[: len(text) - most]

    def rest(self) -> str:
        """The text that was kept back, once the model's text has ended."""
        kept, self._kept = self._kept, ""
        return kept


def _num_begun(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the beginning of a stop sequence."""
    for num in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:num]):
            return num
    return 0


_REQUEST_ID = "x-request-id"
_MAX_ID_CHARS = 128
#: The most characters of a whole answer, which is put together in this process (ours).
MAX_ANSWER_CHARS = 1 << 20
#: The last event of a stream that has not failed.
DONE = b"data: [DONE]\n\n"
#: Outputs and parameters of a model's response that are read, beside its text.
_NUM_INPUT, _NUM_OUTPUT, _FINISH_REASON = "num_input_tokens", "num_output_tokens", "finish_reason"
#: The most tokens that a model may report with one response (ours): their sums stay within JSON's 64 bits.
_MAX_TOKENS = 2**31 - 1
#: Values of `finish_reason` by which vLLM's backend says that the text goes on.
_NO_REASONS = frozenset({"", "None"})


class CompletionKind(NamedTuple):
    """One of the two kinds of completions, by OpenAI's words for it."""

    id: str  # the beginning of an answer's id
    whole: str  # `object` of a whole answer
    chunk: str  # `object` of an event of a stream
    is_chat: bool


CHAT = CompletionKind("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)
TEXT = CompletionKind("cmpl-", "text_completion", "text_completion", is_chat=False)


class Completion:
    """The Rendering of one request's responses as a completion of OpenAI's."""

    def __init__(
        self, prepared: PreparedRequest, request: TextRequest, model: TextModel, kind: CompletionKind, now_s: float
    ) -> None:
        """`now_s` is the time of the request, in seconds since 1970."""
        self.prepared = prepared
        self.is_stream = request.is_stream
        identity = {"x-request-id": prepared.id}
        self.headers: Headers = (*EVENTS, *identity.items())
        self._request = request
        self._answer = model.answer
        self._kind = kind
        self._head = {"id": f"{kind.id}{uuid.uuid4().hex}", "created": int(now_s), "model": request.model}
        # Changed as responses come, and at their end.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopSequences(request.stops)
        self._texts: list[str] = [request.prompt] if request.is_echoed else []
        self._num_chars = 0
        self._has_begun = False
        self._num_input: int | None = None
        self._num_output: int | None = None
        self._reason = ""

    # --- the model's responses ---

    def add(self, response: InferResponse, block: memoryview) -> bytes:
        raw = b""
        reported: dict[str, Any] = {name: value for name, value in response.parameters.items() if name in _REPORTED}
        for ref in response.outputs:
            if ref.name == self._answer:
                raw = first_text(ref, block)
            elif ref.name in _REPORTED:
                reported[ref.name] = _value(ref, block)
        self._take(reported)
        return self._add_text(self._stops.feed(self._decoder.decode(raw)))

    def _take(self, reported: Mapping[str, Any]) -> None:
        if (num := num_tokens(reported.get(_NUM_INPUT))) is not None:
            self._num_input = num
        if (num := num_tokens(reported.get(_NUM_OUTPUT))) is not None:
            self._num_output = (self._num_output or 0) + num
        reason = reported.get(_FINISH_REASON, "")
        if type(reason) is str and reason not in _NO_REASONS:
            self._reason = reason

    def _add_text(self, text: str) -> bytes:
        if not self.is_stream:
            self._num_chars += len(text)
            if self._num_chars > MAX_ANSWER_CHARS:
                raise InternalError(
                    f"the answer of model '{self._request.model}' is longer than {MAX_ANSWER_CHARS} characters: "
                    "ask for a stream"
                )
            self._texts.append(text)
            return b""
        data = b""
        if not self._has_begun:
            self._has_begun = True
            text, self._texts = "".join(self._texts) + text, []
            if self._kind.is_chat:
                data = self._chunk({"role": "assistant", "content": ""})
        return data + self._chunk({"content": text}) if text else data

    @property
    def is_complete(self) -> bool:
        """Implements `Rendering.is_complete`: a stop sequence has come."""
        return self._stops.is_found

    def end(self) -> bytes:
        data = self._add_text(self._rest()) + self._chunk({"content": ""}, self._finish_reason())
        usage = self._usage()
        if self._request.includes_usage and usage is not None:
            data += event(orjson.dumps(self._object(self._kind.chunk, [], usage)))
        return data + DONE

    def body(self) -> Response:
        self._add_text(self._rest())
        text = "".join(self._texts)
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self._kind.is_chat
            else {"text": text}
        )
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": self._finish_reason()}
        whole = self._object(self._kind.whole, [choice], self._usage())
        return Response(200, (*JSON_CONTENT, *self.headers[len(EVENTS) :]), (orjson.dumps(whole),))

    def failed(self, error: ShoalError, *, has_begun: bool) -> Failure:
        """Implements `Rendering.failed`: a stream that has begun ends with an event for the error, any other request
        with a refusal."""
        if has_begun:
            return Failure(200, self.headers, event(error_text(error)), is_over=True)
        made = refusal(error)
        return Failure(made.status, made.headers, bytes(made.chunks[0]), is_over=True)

    def refusal(self, error: ShoalError) -> Response:
        return refusal(error)

    # --- OpenAI's objects ---

    def _rest(self) -> str:
        if self._stops.is_found:
            return ""
        return self._stops.feed(self._decoder.decode(b"", True)) + self._stops.rest()

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        if self._kind.is_chat:
            content: dict[str, Any] = {"delta": {} if reason else delta}
        else:
            content = {"text": delta["content"]}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return event(orjson.dumps(self._object(self._kind.chunk, [choice], None)))

    def _object(self, kind: str, choices: list[Any], usage: dict[str, int] | None) -> dict[str, Any]:
        made = {**self._head, "object": kind, "choices": choices}
        if usage is not None or not self.is_stream or self._request.includes_usage:
            made["usage"] = usage
        return made

    def _finish_reason(self) -> str:
        if self._stops.is_found:
            return "stop"
        if self._reason:
            return self._reason
        return "length" if self._num_output == self._request.max_tokens else "stop"

    def _usage(self) -> dict[str, int] | None:
        if self._num_input is None or self._num_output is None:
            return None
        return {
            "prompt_tokens": self._num_input,
            "completion_tokens": self._num_output,
            "total_tokens": self._num_input + self._num_output,
        }


_REPORTED = frozenset({_NUM_INPUT, _NUM_OUTPUT, _FINISH_REASON})


def num_tokens(reported: object) -> int | None:
    """The number of tokens that a model has reported; None for a value that cannot be such a number."""
    return reported if type(reported) is int and 0 <= reported <= _MAX_TOKENS else None


def first_text(ref: TensorRef, block: memoryview) -> bytes:
    """The first element of a string tensor; b"" if the tensor is empty. Raises InternalError for bytes that are no
    string tensor."""
    if BY_WIRE[ref.datatype] is not BYTES:
        raise InternalError(f"output '{ref.name}' has the datatype {BY_WIRE[ref.datatype].name}, expected BYTES")
    try:
        elements = decode_bytes_tensor(block[ref.offset : ref.offset + ref.nbytes])
    except TruncatedBytesError:
        raise InternalError(f"output '{ref.name}' is shorter than the lengths of its strings") from None
    return elements[0] if elements else b""


def whole_number(ref: TensorRef, block: memoryview) -> int | None:
    """The sum of a tensor of whole numbers; None for a tensor of another datatype."""
    datatype = BY_WIRE[ref.datatype]
    if datatype is BYTES or datatype.dtype.kind not in "iu" or ref.nbytes % datatype.itemsize:
        return None
    return int(np.frombuffer(bytes(block[ref.offset : ref.offset + ref.nbytes]), datatype.dtype).sum())


def _value(ref: TensorRef, block: memoryview) -> str | int | None:
    if BY_WIRE[ref.datatype] is BYTES:
        return first_text(ref, block).decode("utf-8", "replace")
    return whole_number(ref, block)


# ---------------------------------------------------------------------------------------------------------------
# The request


def plan_chat(call: HandlerCall) -> Plan:
    """The plan of a request of POST /v1/chat/completions."""
    return _plan(call, CHAT)


def plan_completion(call: HandlerCall) -> Plan:
    """The plan of a request of POST /v1/completions."""
    return _plan(call, TEXT)


def _plan(call: HandlerCall, kind: CompletionKind) -> Plan:
    read = read_body(call)
    check_named_model(call.state, call.headers, model_of(read))
    request = (read_chat if kind.is_chat else read_completion)(read, call.state.default_max_tokens)
    known(call, request.model)
    request_id = id_of(call.headers)

    def prepare(entry: ModelEntry) -> Completion:
        model = text_model(entry)
        if model is None:
            raise NoSuchModelError(
                f"model '{request.model}' is no text model: it needs the string tensors 'text_input' and "
                "'text_output', or parameters of these names in its config.pbtxt that name its own"
            )
        members = _members(entry, model, request)
        prepared = prepared_of(entry, request_id, members, call)
        return Completion(prepared, request, model, kind, time.time())

    return Plan(request.model, None, prepare)


def known(call: HandlerCall, name: str) -> None:
    """Raise NoSuchModelError for a name that no loaded model has, or that several have."""
    try:
        call.state.models.lookup(name, None)
    except (NotFoundError, InvalidArgumentError) as error:  # the latter if several models have the name
        raise NoSuchModelError(f"{error}; GET /v1/models lists the models that text can be asked of") from None


def id_of(headers: Mapping[str, str]) -> str:
    """The request's id: the client's X-Request-Id if that is printable and short, else a new id."""
    given = headers.get(_REQUEST_ID, "")
    return given if 0 < len(given) <= _MAX_ID_CHARS and given.isprintable() else f"req-{uuid.uuid4().hex}"


def prepared_of(entry: ModelEntry, request_id: str, members: Mapping[str, Any], call: HandlerCall) -> PreparedRequest:
    """The prepared request with these members. Raises InvalidRequestError if the members do not fit the model."""
    try:
        return prepare_members(entry, request_id, members, call.state.http_max_input_size, call.forwarded)
    except (InternalError, InvalidArgumentError) as error:  # Triton's class for a value of a wrong type is internal
        raise InvalidRequestError(str(error)) from None


def _members(entry: ModelEntry, model: TextModel, request: TextRequest) -> dict[str, Any]:
    own = {model.prompt, MESSAGES} if model.takes_messages else {model.prompt}
    for name in own & request.sampling.keys():
        raise InvalidRequestError(f"'{name}' is the model's input for the prompt, and no sampling parameter", name)
    members = members_of(entry, is_stream=request.is_stream, stops=request.stops, sampling=request.sampling)
    if not request.messages:
        if not model.prompt:
            raise InvalidRequestError(f"model '{request.model}' takes messages alone: POST /v1/chat/completions")
        return {**members, model.prompt: request.prompt}
    if model.takes_messages:
        return {**members, MESSAGES: json.dumps(request.messages)}  # orjson refuses integers of more than 64 bits
    template = parameter(entry.config, CHAT_TEMPLATE)
    if not template:
        raise InvalidRequestError(
            f"model '{request.model}' has no chat template: set the parameter 'tokenizer' or 'chat_template' in its "
            "config.pbtxt, or POST /v1/completions with a prompt",
            "messages",
        )
    from shoal.frontend.openai.chat_template import render  # imported with the first template: Jinja takes 2 MiB

    tokens = {name: parameter(entry.config, name) or "" for name in (BOS_TOKEN, EOS_TOKEN)}
    return {
        **members,
        model.prompt: render(request.model, template, request.messages, {**tokens, **request.template_variables}),
    }
