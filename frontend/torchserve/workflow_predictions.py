"""TorchServe's requests to workflows: `/wfpredict/W`. The nodes' models are executed in the order of the workflow's
graph, at the same time where the graph allows it. Runs on the road.

A workflow is known by its models: their configurations have its name and a description of their node.
"""

import logging
import time
from typing import TYPE_CHECKING

import orjson

from shoal.errors import CancelledError, ShoalError
from shoal.frontend.call import HandlerCall
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.torchserve.errors import error_response, pretty, refused
from shoal.frontend.torchserve.forms import form_fields, is_form
from shoal.frontend.torchserve.models import look_up, parameter
from shoal.frontend.torchserve.predictions import (
    ID_HEADER,
    Asked,
    Field,
    answered,
    description,
    element_of,
    new_id,
    prepare,
    spelled_headers,
)
from shoal.frontend.torchserve.workflow_run import Fields, NodeFailedError, Part, graph_of, run

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Executions

_log = logging.getLogger(__name__)


def predict(call: HandlerCall) -> Response:
    """The response of a workflow: the bytes of its last node's answer or, if it has several last nodes, a JSON object
    of their answers by name."""
    request_id = new_id()
    try:
        response = _predict(call, request_id)
    except CancelledError:
        raise
    except ShoalError as error:
        response = error_response(_as_torchserves(error, call.name))
    return response._replace(headers=((ID_HEADER, request_id), *response.headers))


def _predict(call: HandlerCall, request_id: str) -> Response:
    prefix = f"{call.name}__"
    described = [
        orjson.loads(parameter(entry, "ts_workflow_node"))
        for entry in call.state.models.entries()
        if entry.name.startswith(prefix) and not entry.is_unloaded and parameter(entry, "ts_workflow") == call.name
    ]
    if not described:
        raise refused(404, "WorkflowNotFoundException", f"Workflow not found: {call.name}")
    graph = graph_of(described)
    if graph is None:
        raise refused(503, "ServiceUnavailableException", f"Workflow {call.name} is being registered or removed.")
    with call.road.several() as executions:
        answers = run(graph, _Nodes(call, request_id, executions), time.monotonic)
    if len(answers) == 1:
        (body,) = answers.values()
        return Response(200, JSON_CONTENT, (body,))
    return pretty(200, {name: _value(body) for name, body in answers.items()})


def _as_torchserves(error: ShoalError, workflow: str) -> ShoalError:
    """TorchServe's error for a node that has failed, which names no cause; the cause is logged here."""
    if not isinstance(error, NodeFailedError):
        return error
    _log.error("workflow '%s': %s", workflow, error)
    return refused(500, "InternalServerException", f"Error executing {error.node}")


def _value(body: bytes) -> object:
    """The value of a node's answer in a JSON object: the answer itself if it is JSON, else its text."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


class _Nodes:
    """The requests to the models of a workflow's nodes, for one request to the workflow."""

    def __init__(self, call: HandlerCall, request_id: str, executions: "Executions") -> None:
        self._call = call
        self._request_id = request_id
        self._executions = executions

    def start(self, node: str, fields: Fields | None) -> int:
        call = self._call
        entry = look_up(call.state, f"{call.name}__{node}", None)
        headers = spelled_headers(call.head) if call.head else dict(call.headers)
        content_type = call.headers.get("content-type", "")
        parts: list[Field] | None
        if fields is None:
            parts = form_fields(content_type, call.body) if is_form(content_type) else None
            pieces = [call.body] if parts is None else [value for _, _, value in parts]
        else:
            parts = [(name, "", value) for name, value in fields]
            pieces = [value for _, value in fields]
        described = description(Asked(), content_type, headers, self._request_id, parts)
        return self._executions.start(prepare(entry, self._request_id, described, element_of(pieces)))

    def next(self, limit_s: float) -> tuple[int, Part] | None:
        found = self._executions.next(limit_s)
        if found is None:
            return None
        number, (reply, error, is_final) = found
        if reply is None:
            return number, Part(b"", error, is_final)
        try:
            return number, Part(bytes(answered(reply.response, reply.block).body), None, is_final)
        except ShoalError as fault:
            return number, Part(b"", fault, is_final)
        finally:
            reply.release()

    def cancel(self, number: int) -> None:
        self._executions.cancel(number)
