"""`POST /v1/embeddings`: texts in, a vector for each, as numbers or as base64 of little-endian FP32.

The texts of one request are given to the model in batches of up to its max_batch_size, several batches at a time; one
by one if the model has other inputs that get values, or takes embedding requests. Runs on the road.
"""

import base64
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import orjson

from shoal.datatypes import BY_WIRE, BYTES
from shoal.errors import InternalError
from shoal.frontend.access.authorisation import check_named_model
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.openai.completion import first_text, id_of, known, num_tokens, prepared_of, whole_number
from shoal.frontend.openai.errors import InvalidRequestError, NoSuchModelError
from shoal.frontend.openai.models import EMBEDDING_REQUEST, EmbeddingModel, embedding_model
from shoal.frontend.openai.request import model_of, read_body
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.recorded_headers import with_headers
from shoal.frontend.response import Response, json_response
from shoal.frontend.road.inference import with_model
from shoal.request import TensorRef
from shoal.star.models import ModelEntry, client_shape

if TYPE_CHECKING:
    from shoal.frontend.road.transport import ModelResponse

#: The most texts of one request, OpenAI's number.
MAX_TEXTS = 2048
#: Batches of one request that may be queued or executing at a time (ours).
_MOST_AT_ONCE = 8
_READ = frozenset({"model", "input", "encoding_format", "user", "dimensions"})

#: The output or parameter with the number of the texts' tokens, and the input that asks for it.
_NUM_TOKENS, _NUM_TOKENS_ASKED = "num_input_tokens", "return_num_input_tokens"

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


@blocking
def embeddings(call: HandlerCall) -> Response:
    """The handler of POST /v1/embeddings. Raises ShoalError."""
    request = read_body(call)
    name = model_of(request)
    check_named_model(call.state, call.headers, name)
    known(call, name)
    texts = _texts(request)
    form = request.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise InvalidRequestError("'encoding_format' must be 'float' or 'base64'", "encoding_format")
    return with_model(
        lambda: call.state.models.lookup(name, None), lambda entry: _embed(entry, call, request, texts, form)
    )


def _texts(request: Mapping[str, Any]) -> list[str]:
    given = request.get("input")
    texts = [given] if type(given) is str else given
    if type(texts) is not list or not texts or any(type(each) is not str for each in texts):
        raise InvalidRequestError("'input' must be a string or a list of strings: tokens are not supported", "input")
    if len(texts) > MAX_TEXTS:
        raise InvalidRequestError(f"'input' has {len(texts)} texts, more than {MAX_TEXTS}", "input")
    return texts


def _embed(
    entry: ModelEntry, call: HandlerCall, request: Mapping[str, Any], texts: Sequence[str], form: str
) -> Response:
    model = embedding_model(entry)
    if model is None:
        raise NoSuchModelError(
            f"model '{entry.name}' is no embedding model: it needs a string input 'text_input' and an output of floats "
            "'embedding', or parameters 'text_input' and 'embedding_output' in its config.pbtxt that name its own"
        )
    batches = [prepared_of(entry, id_of(call.headers), each, call) for each in _batches(entry, request, texts, model)]
    batches = [with_headers(each, call.state.recorded_headers, call.headers) for each in batches]
    found = _ask(batches, call, model)
    vectors = [vector for batch in found for vector in batch.vectors]
    if len(vectors) != len(texts):
        raise InternalError(
            f"output '{model.embedding}' of model '{entry.name}' has {len(vectors)} vectors for {len(texts)} texts"
        )
    rows = [
        {"object": "embedding", "index": index, "embedding": _shown(each, form)} for index, each in enumerate(vectors)
    ]
    counts = [batch.num_tokens for batch in found]
    total = None if None in counts else sum(each for each in counts if each is not None)
    usage = None if total is None else {"prompt_tokens": total, "total_tokens": total}
    return json_response(200, {"object": "list", "data": rows, "model": entry.name, "usage": usage})


def _batches(
    entry: ModelEntry, request: Mapping[str, Any], texts: Sequence[str], model: EmbeddingModel
) -> Iterator[dict[str, Any]]:
    """For each request to the model, one batch of the texts and all its other inputs and parameters, by name."""
    inputs = entry.signature.inputs
    members = {name: value for name, value in request.items() if name not in _READ}
    if _NUM_TOKENS_ASKED in inputs:
        members[_NUM_TOKENS_ASKED] = True
    dimensions = request.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise InvalidRequestError("'dimensions' must be a number, at least 1", "dimensions")
    if EMBEDDING_REQUEST in inputs:
        pooling = {} if dimensions is None else {"pooling_params": {"dimensions": [dimensions]}}
        prompt = {model.text: ""} if model.text in inputs and not inputs[model.text].optional else {}
        for text in texts:
            yield {**members, **prompt, EMBEDDING_REQUEST: orjson.dumps({"input": text, **pooling}).decode()}
        return
    if dimensions is not None:
        if "dimensions" not in inputs:
            raise InvalidRequestError(f"model '{entry.name}' has no choice of 'dimensions': leave it out", "dimensions")
        members["dimensions"] = dimensions
    # An input beside the texts has one row only, so the model gets one text at a time if there is such an input.
    num_rows = 1 if members.keys() & inputs.keys() else max(1, entry.signature.max_batch_size)
    for start in range(0, len(texts), num_rows):
        yield {**members, model.text: list(texts[start : start + num_rows])}


class _Batch(NamedTuple):
    vectors: Sequence[Vector]
    num_tokens: int | None


def _ask(batches: Sequence[PreparedRequest], call: HandlerCall, model: EmbeddingModel) -> list[_Batch]:
    """The model's answers to all batches, in the batches' order; at most _MOST_AT_ONCE are queued or executing.
    Raises ShoalError."""
    found: list[_Batch] = [_Batch((), None)] * len(batches)
    waiting = deque(enumerate(batches))
    executing: dict[int, int] = {}  # by the number of a request, the index of its batch
    with call.road.several() as executions:
        while waiting or executing:
            while waiting and len(executing) < _MOST_AT_ONCE:
                index, prepared = waiting.popleft()
                executing[executions.start(prepared, in_time=True)] = index
            number, part = executions.next_in_time()
            if part.error is not None:
                raise part.error
            if part.answer is not None:
                try:
                    found[executing[number]] = _read(part.answer, batches[executing[number]].entry, model)
                finally:
                    part.answer.release()
            if part.is_final:
                del executing[number]
    return found


def _read(answer: "ModelResponse", entry: ModelEntry, model: EmbeddingModel) -> _Batch:
    """The vectors in a model's response, copied."""
    vectors: Sequence[Vector] = ()
    reported: object = answer.response.parameters.get(_NUM_TOKENS)
    for ref in answer.response.outputs:
        if ref.name == _NUM_TOKENS:
            reported = whole_number(ref, answer.block)
        elif ref.name == model.embedding:
            vectors = _vectors(ref, answer.block, entry)
    return _Batch(vectors, num_tokens(reported))


def _vectors(ref: TensorRef, block: memoryview, entry: ModelEntry) -> Sequence[Vector]:
    datatype = BY_WIRE[ref.datatype]
    if datatype is BYTES:  # vLLM's backend writes vectors as JSON
        try:
            numbers = np.array(orjson.loads(first_text(ref, block)))
            if numbers.ndim != 1 or numbers.dtype.kind not in "fiu":
                raise ValueError
        except ValueError:
            raise InternalError(f"output '{ref.name}' of model '{entry.name}' is no list of numbers in JSON") from None
        return [numbers.astype(np.float32)]
    shape = client_shape(entry, ref)
    if prod(shape) * datatype.itemsize != ref.nbytes:
        raise InternalError(f"output tensor shape does not match size of output for '{ref.name}'")
    values = np.frombuffer(bytes(block[ref.offset : ref.offset + ref.nbytes]), datatype.dtype).astype(np.float32)
    num_rows = shape[0] if entry.signature.max_batch_size > 0 else 1
    return list(values.reshape(num_rows, -1)) if num_rows else ()


def _shown(vector: Vector, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
