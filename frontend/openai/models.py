"""The models that OpenAI's endpoints serve, and the tensors that the members of requests become. Pure.

A *text model* has a string output `text_output`, and a string input `text_input`, as models of Triton's vLLM and
TensorRT-LLM backends have, or `messages`. It may name its own text_input and text_output in its config.pbtxt:

    parameters { key: "text_input" value { string_value: "PROMPT" } }
    parameters { key: "text_output" value { string_value: "ANSWER" } }

An *embedding model* has a string input `text_input` and an output of floats `embedding`, or the output that its
parameter `embedding_output` names. So is one with an input `embedding_request` and an output `text_output`, as models
of Triton's vLLM backend, which are of both kinds.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.datatypes import BYTES
from shoal.errors import PermissionDeniedError, UnauthenticatedError
from shoal.frontend.access.authorisation import check_named_model
from shoal.frontend.call import HandlerCall
from shoal.frontend.openai.errors import NoSuchModelError
from shoal.frontend.response import Response, json_response
from shoal.model_config.parameters import parameter
from shoal.star.models import ModelEntry

TEXT_INPUT, TEXT_OUTPUT, EMBEDDING_OUTPUT = "text_input", "text_output", "embedding"
#: An input that gets a whole conversation as JSON, in place of a prompt that a chat template makes of it (ours).
MESSAGES = "messages"
#: The input of Triton's vLLM backend that gets all sampling parameters as one JSON object.
SAMPLING = "sampling_parameters"
#: The input of Triton's vLLM backend that gets the texts to be embedded, as JSON.
EMBEDDING_REQUEST = "embedding_request"
#: Inputs of Triton's vLLM and TensorRT-LLM backends by which a model is asked to leave the prompt out of its answer,
#: and to report the numbers of tokens and why the text ended.
_ASKED = (
    "exclude_input_in_output", "sampling_param_exclude_input_from_output", "return_num_input_tokens",
    "return_num_output_tokens", "return_finish_reason",
)  # fmt: skip
#: Inputs for stop sequences: the name that TensorRT-LLM's backend has for them, and OpenAI's.
_STOPS = ("stop_words", "stop")
_FLOATS = frozenset({"FP16", "FP32", "FP64"})


class TextModel(NamedTuple):
    """The names of the tensors of a text model."""

    prompt: str  # "" where the model takes conversations only
    answer: str
    takes_messages: bool


class EmbeddingModel(NamedTuple):
    """The names of the tensors of an embedding model. Where the model has the input EMBEDDING_REQUEST, the texts go
    there and not into `text`."""

    text: str
    embedding: str


def text_model(entry: ModelEntry) -> TextModel | None:
    """The model's tensors for text; None if it is no text model."""
    inputs, outputs = entry.signature.inputs, entry.signature.outputs
    answer = parameter(entry.config, TEXT_OUTPUT) or TEXT_OUTPUT
    prompt = parameter(entry.config, TEXT_INPUT) or TEXT_INPUT
    if answer not in outputs or outputs[answer].datatype is not BYTES:
        return None
    has_prompt = prompt in inputs and inputs[prompt].datatype is BYTES
    takes_messages = MESSAGES in inputs and inputs[MESSAGES].datatype is BYTES
    if not (has_prompt or takes_messages):
        return None
    return TextModel(prompt if has_prompt else "", answer, takes_messages)


def embedding_model(entry: ModelEntry) -> EmbeddingModel | None:
    """The model's tensors for embeddings; None if it is no embedding model."""
    inputs, outputs = entry.signature.inputs, entry.signature.outputs
    text = parameter(entry.config, TEXT_INPUT) or TEXT_INPUT
    embedding = parameter(entry.config, "embedding_output") or EMBEDDING_OUTPUT
    if EMBEDDING_REQUEST in inputs and TEXT_OUTPUT in outputs:
        return EmbeddingModel(text, TEXT_OUTPUT)
    if text not in inputs or inputs[text].datatype is not BYTES or embedding not in outputs:
        return None
    return EmbeddingModel(text, embedding) if outputs[embedding].datatype.name in _FLOATS else None


def is_listed(entry: ModelEntry) -> bool:
    """Whether GET /v1/models lists a model."""
    return text_model(entry) is not None or embedding_model(entry) is not None


def members_of(
    entry: ModelEntry, *, is_stream: bool, stops: tuple[str, ...], sampling: Mapping[str, Any]
) -> dict[str, Any]:
    """The members of a generate request (v2/generate.py) beside the prompt: members with the name of an input become
    that tensor, others become request parameters."""
    inputs = entry.signature.inputs
    members: dict[str, Any] = dict.fromkeys([name for name in _ASKED if name in inputs], True)
    if "stream" in inputs:
        members["stream"] = is_stream
    if SAMPLING in inputs:
        parameters = {**sampling, "stop": list(stops)} if stops else dict(sampling)
        return {**members, SAMPLING: json.dumps(parameters)}  # orjson refuses integers of more than 64 bits
    for name in _STOPS:
        if stops and name in inputs:
            members[name] = list(stops)
    return {**members, **sampling}


def models(call: HandlerCall) -> Response:
    """The handler of GET /v1/models: the models that the client may use."""
    names = sorted({entry.name for entry in call.state.models.ready_entries()})
    listed = [_row(call, name) for name in names if _is_served(call, name) and _may_use(call, name)]
    return json_response(200, {"object": "list", "data": listed})


def model(call: HandlerCall) -> Response:
    """The handler of GET /v1/models/NAME. Raises NoSuchModelError."""
    if not _is_served(call, call.name):
        raise NoSuchModelError(f"the model '{call.name}' does not exist: GET /v1/models lists those that do")
    return json_response(200, _row(call, call.name))


def _is_served(call: HandlerCall, name: str) -> bool:
    """Whether `name` has a ready version, and the one for requests without a version is a text or embedding model."""
    ready = call.state.models.ready_entries(name)
    meant = next((entry for entry in ready if entry.is_default), ready[-1] if ready else None)
    # A directory's name need not be valid Unicode, which JSON requires.
    return meant is not None and is_listed(meant) and name.isprintable()


def _may_use(call: HandlerCall, name: str) -> bool:
    try:
        check_named_model(call.state, call.headers, name)
    except (PermissionDeniedError, UnauthenticatedError):
        return False
    return True


def _row(call: HandlerCall, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": call.state.begun_s, "owned_by": "shoal"}
