"""TorchServe's inference API: predictions and explanations under all their paths, and /ping.

A lane answers requests that do not wait, and submits predictions with plain bodies by itself (lane_api.py); the road
handles all others. Pure.
"""

import errno
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote

from shoal.errors import InternalError, ShoalError
from shoal.frontend.call import Handler, HandlerCall, Route, blocking
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import Headers, Response
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.api_description import description as document
from shoal.frontend.torchserve.errors import NoWorkerError, RefusedError, error_response, pretty
from shoal.frontend.torchserve.forms import form_fields, is_form
from shoal.frontend.torchserve.models import look_up, version_not_found
from shoal.frontend.torchserve.predictions import (
    ID_HEADER,
    Asked,
    Field,
    answered,
    description,
    element_of,
    in_sequence,
    new_id,
    prepare,
    response_of,
    rest_of,
    spelled_headers,
)
from shoal.frontend.torchserve.workflow_predictions import predict as predict_by_workflow
from shoal.star.models import ModelEntry

if TYPE_CHECKING:
    from shoal.frontend.road.transport import ModelResponse, StreamedResponse, Transport


def stream(prepared: PreparedRequest, transport: "Transport", headers: Headers) -> Response:
    """The response of a model that may answer in parts (send_intermediate_predict_response), with `headers` added:
    each part is sent as it comes, as a chunk of the body. Closing the response early cancels the request.

    Status and headers are those of the first part. A response of one part is not a stream: it has a Content-Length.
    Raises ShoalError for an error before the first part. A later error ends the connection within the body, so that no
    client takes the parts that it has received for the whole.
    """
    parts = transport.stream(prepared)
    try:
        part = next(parts)
        if part.error is not None:
            raise part.error
        if part.answer is None:
            raise InternalError("the model ended its response without a part of it")
        response = _response(part.answer, headers)
        if part.is_final:
            return part.answer.send(response)
        first = _body(response, part.answer)
    except BaseException:
        parts.close()
        raise
    return response._replace(chunks=(), close=parts.close, stream=_pieces(first, parts))


def _response(answer: "ModelResponse", headers: Headers) -> Response:
    try:
        response = response_of(answered(answer.response, answer.block))
    except BaseException:
        answer.release()
        raise
    return response._replace(headers=(*headers, *response.headers))


def _body(response: Response, answer: "ModelResponse") -> bytes:
    """The body of a part, copied; the worker's block is released."""
    try:
        return b"".join(response.chunks)
    finally:
        answer.release()


def _pieces(first: bytes, parts: "Generator[StreamedResponse, None, None]") -> Iterator[bytes]:
    yield first
    try:
        for part in parts:
            if part.error is not None:
                raise part.error
            if part.answer is not None:
                yield _body(_response(part.answer, ()), part.answer)
    except ShoalError as error:
        # The status has been sent. Upon this exception, which gunicorn does not log, gunicorn closes the connection
        # without a last chunk.
        raise ConnectionResetError(errno.ECONNRESET, str(error)) from None


class Prediction(NamedTuple):
    """The kind of prediction that a handler's paths stand for."""

    explain: str | None = None  # "True" or "False"; None on paths without explanations
    has_rest: bool = False  # the path may continue behind the version
    fields_from_query: bool = False  # parameters of the query are fields of the data


#: The handlers of predictions, which a lane submits without calling the handler, and the kind of each.
PREDICTIONS: dict[Handler, Prediction] = {}


def _predicting(kind: Prediction) -> Handler:
    def handle(call: HandlerCall) -> Response:
        return predict(call, kind)

    PREDICTIONS[handle] = kind
    return handle


def asked_for(kind: Prediction, path: str) -> Asked:
    """The facts about a prediction of this kind, as far as they follow from its path."""
    return Asked(kind.explain, rest_of(path) if kind.has_rest else None, kind.fields_from_query)


def predict(call: HandlerCall, kind: Prediction) -> Response:
    """Answer a prediction, on the road: with the model's response, or with the response for an error."""
    fields = _fields_of(call, kind)
    name = call.name or _named(fields)
    request_id = new_id()
    try:
        return _predict_with(call, kind, find_version(call, name), request_id, fields)
    except ShoalError as error:
        response = error_response(error, name, call.version)
        return response._replace(headers=((ID_HEADER, request_id), *response.headers))


def find_version(call: HandlerCall, name: str) -> ModelEntry:
    """The version of a model that a prediction is for. Raises ShoalError, such as NoWorkerError for a version that is
    registered with 0 workers; only the supervisor knows such versions."""
    try:
        return look_up(call.state, name, call.version)
    except RefusedError as error:
        if error.fault.status != 404:
            raise
        texts = [row["version"] for row in call.ask("ts_registered", {"model": name})]
        if not texts:
            raise
        if call.version and call.version not in texts:
            raise version_not_found(name, call.version) from None
        raise NoWorkerError(name, call.version) from None


def _predict_with(
    call: HandlerCall, kind: Prediction, entry: ModelEntry, request_id: str, fields: "list[Field] | None"
) -> Response:
    asked = asked_for(kind, path_in(call.head))
    headers = spelled_headers(call.head) if call.head else dict(call.headers)
    sequence_id = in_sequence(entry, headers)
    described = description(asked, call.headers.get("content-type", ""), headers, request_id, fields)
    pieces = [call.body] if fields is None else [value for _, _, value in fields]
    prepared = prepare(entry, request_id, described, element_of(pieces), sequence_id)
    headers_added = ((ID_HEADER, request_id),)
    if entry.is_decoupled:
        return stream(prepared, call.road, headers_added)
    reply = call.road.infer(prepared)
    try:
        response = response_of(answered(reply.response, reply.block))
    except BaseException:
        reply.release()
        raise
    return reply.send(response._replace(headers=headers_added + response.headers))


def path_in(head: bytes) -> str:
    """The path in the request line of a head, without its query; "" if there is none."""
    parts = head.lstrip(b"\r\n").partition(b"\r\n")[0].split(b" ")
    return parts[1].partition(b"?")[0].decode("latin-1") if len(parts) > 1 else ""


def _fields_of(call: HandlerCall, kind: Prediction) -> "list[Field] | None":
    """The fields of a request that is a form or has fields in its query; None for a plain body."""
    content_type = call.headers.get("content-type", "")
    fields = form_fields(content_type, call.body) if is_form(content_type) else None
    if not (kind.fields_from_query and call.query):
        return fields
    queried: list[Field] = [(name, "", value.encode()) for name, value in parse_qsl(call.query, keep_blank_values=True)]
    if fields is None:
        fields = [("body", content_type, bytes(call.body))] if call.body else []
    return queried + fields


def _named(fields: "list[Field] | None") -> str:
    """The model that the field `model_name` names; "" if there is none."""
    return next((value.decode("utf-8", "replace") for name, _, value in fields or () if name == "model_name"), "")


def ping(state: ServerState) -> Response:
    """200 unless some model is unavailable because all its workers have died again and again; starting workers count as
    healthy."""
    if any(entry.failed for entry in state.models.entries()):
        return pretty(500, {"status": "Unhealthy"})
    return pretty(200, {"status": "Healthy"})


PREDICT = _predicting(Prediction(explain="False", has_rest=True))
EXPLAIN = _predicting(Prediction(explain="True", has_rest=True))
_KSERVE_PREDICT = _predicting(Prediction(explain="False"))
_KSERVE_EXPLAIN = _predicting(Prediction(explain="True"))
_INVOKE = _predicting(Prediction(fields_from_query=True))

_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


def describe(call: HandlerCall) -> Response:
    """The OpenAPI document of a model's predictions. Runs on the road."""
    with suppress(NoWorkerError):  # a version without workers exists, too
        find_version(call, call.name)
    name = quote(call.name, safe="")
    routes = [Route(f"/{kind}/{name}", any_method(PREDICT), "inference") for kind in ("predictions", "explanations")]
    return document(f"RESTful API for: {call.name}", "1.0.0", routes)


def any_method(handler: Handler) -> dict[str, Handler]:
    """The handler for every method but OPTIONS; HEAD has that of GET."""
    return dict.fromkeys(_METHODS, handler)


_NAME, _VERSION = "(?P<name>[^/]+)", "(?P<version>[^/]+)"

#: The routes, in the order in which they are tried.
INFERENCE_ROUTES = (
    Route("/ping", any_method(lambda call: ping(call.state)), "health"),
    Route(
        f"/predictions/{_NAME}(?:/{_VERSION}(?:/.*)?)?",
        {**any_method(PREDICT), "OPTIONS": blocking(describe)},
        "inference",
    ),
    Route(f"/explanations/{_NAME}(?:/{_VERSION}(?:/.*)?)?", any_method(EXPLAIN), "inference"),
    Route("/v1/models/(?P<name>[^/:]+):predict", any_method(_KSERVE_PREDICT), "inference"),
    Route("/v1/models/(?P<name>[^/:]+):explain", any_method(_KSERVE_EXPLAIN), "inference"),
    Route(f"/v2/models/{_NAME}/infer", any_method(_KSERVE_PREDICT), "inference"),
    Route(f"/v2/models/{_NAME}/explain", any_method(_KSERVE_EXPLAIN), "inference"),
    Route(f"/wfpredict/{_NAME}", any_method(blocking(predict_by_workflow)), "inference"),
    Route("/invocations", any_method(_INVOKE), "inference"),
    Route(f"/models/{_NAME}/invoke", any_method(_INVOKE), "inference"),
    Route(f"/{_NAME}/predict", any_method(_INVOKE), "inference"),
    Route(f"/{_NAME}/{_VERSION}/predict", any_method(_INVOKE), "inference"),
)
