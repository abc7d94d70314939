"""TorchServe's management of workflows: registered, listed, described, unregistered. Runs on the road; the supervisor
does it.

A registration runs the code that the archive brings, so it needs the permissions of a model's registration.
"""

from typing import Any
from urllib.parse import parse_qsl

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import pretty, refused
from shoal.frontend.torchserve.parameters import integer, page_of, request_parameters
from shoal.frontend.torchserve.registration import refuse_unless_enabled

_TIMEOUTS = ("response_timeout", "startup_timeout")
#: The members of a description, by the names that the supervisor has for them.
_MEMBERS = {
    "workflowName": "name", "workflowUrl": "url", "minWorkers": "min_workers", "maxWorkers": "max_workers",
    "batchSize": "batch_size", "maxBatchDelay": "max_batch_delay", "workflowDag": "dag",
}  # fmt: skip


def register(call: HandlerCall) -> Response:
    """Register a workflow; the response comes once the workers of all its nodes are up."""
    refuse_unless_enabled(call)
    given = request_parameters(call)
    if given.get("url") is None:
        raise refused(400, "BadRequestException", "Parameter url is required.")
    arguments: dict[str, Any] = {"url": given["url"], "workflow_name": given.get("workflow_name") or None}
    for name in _TIMEOUTS:
        seconds = integer(given.get(name, ""), 0)
        if seconds > 0:
            arguments[name] = seconds
    made = call.ask("ts_register_workflow", arguments)
    return pretty(200, {"status": f"Workflow {made['workflow']} has been registered and scaled successfully."})


def unregister(call: HandlerCall) -> Response:
    """Unregister a workflow; the response comes once its nodes have ended."""
    refuse_unless_enabled(call)
    call.ask("ts_unregister_workflow", {"workflow": call.name})
    return pretty(200, {"status": f'Workflow "{call.name}" unregistered'})


def workflows(call: HandlerCall) -> Response:
    """A page of the workflows, by name."""
    rows = call.ask("ts_workflows", {"workflow": None})
    chosen, token = page_of(rows, dict(parse_qsl(call.query)))
    page: dict[str, Any] = token
    page["workflows"] = [{"workflowName": each["name"], "workflowUrl": each["url"]} for each in chosen]
    return pretty(200, page)


def describe(call: HandlerCall) -> Response:
    """The description of a workflow."""
    rows = call.ask("ts_workflows", {"workflow": call.name})
    if not rows:
        raise refused(404, "WorkflowNotFoundException", f"Workflow not found: {call.name}")
    return pretty(200, [{member: row[name] for member, name in _MEMBERS.items()} for row in rows])
