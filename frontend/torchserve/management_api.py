"""TorchServe's management API: models and workflows are registered, listed, described, scaled and unregistered.

Parameters are read as TorchServe reads them (parameters.py): in the query or, if the body of a registration is JSON, in
that body alone. A worker in TorchServe is an instance in Shoal. Runs on the road, which asks the supervisor to make
changes.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from shoal.errors import InvalidArgumentError, NotFoundError, ShoalError
from shoal.frontend.call import HandlerCall, Route, blocking
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.torchserve.errors import (
    METHOD_NOT_ALLOWED,
    RESOURCE_NOT_FOUND,
    RefusedError,
    error_response,
    pretty,
    refusal_of,
    refused,
)
from shoal.frontend.torchserve.model_list import describe, is_served, models
from shoal.frontend.torchserve.parameters import boolean, integer, page_of, request_parameters
from shoal.frontend.v2.model_repository import number_of
from shoal.star.questions import Ask
from shoal.torchserve_keys import RENEWED, renew_key

_TIMEOUTS = ("response_timeout", "startup_timeout")
#: The members of a description, by the names that the supervisor has for them.
_MEMBERS = {
    "workflowName": "name", "workflowUrl": "url", "minWorkers": "min_workers", "maxWorkers": "max_workers",
    "batchSize": "batch_size", "maxBatchDelay": "max_batch_delay", "workflowDag": "dag",
}  # fmt: skip


def register_workflow(call: HandlerCall) -> Response:
    """Register a workflow; the response comes once the workers of all its nodes are up. The archive's code is run, so
    clients must be permitted to register models."""
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


def unregister_workflow(call: HandlerCall) -> Response:
    """Unregister a workflow; the response comes once the workers of its nodes have ended."""
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


def describe_workflow(call: HandlerCall) -> Response:
    """The description of a workflow."""
    rows = call.ask("ts_workflows", {"workflow": call.name})
    if not rows:
        raise refused(404, "WorkflowNotFoundException", f"Workflow not found: {call.name}")
    return pretty(200, [{member: row[name] for member, name in _MEMBERS.items()} for row in rows])


@blocking
def scale_workers(call: HandlerCall) -> Response:
    """Scale a version's workers: the response is 202 at once or, with `synchronous=true`, 200 once the workers are up.
    A model of TorchServe's store may be scaled to 0; a model of a repository within the bounds of its configuration."""
    name, version, parameters = call.name, call.version, dict(parse_qsl(call.query))
    is_synchronous = boolean(parameters.get("synchronous", ""))
    wanted = version or parameters.get("model_version") or None
    try:
        least, most = _counts(parameters)
        _scale(call.ask, name, wanted, least, most, is_synchronous=is_synchronous)
    except ShoalError as error:
        return error_response(error)
    if not is_synchronous:
        return pretty(202, {"status": "Processing worker updates..."})
    of_version = f", version: {version}" if version else ""
    return pretty(200, {"status": f"Workers scaled to {least} for model: {name}{of_version}"})


def _scale(ask: Ask, name: str, version: str | None, least: int, most: int, *, is_synchronous: bool) -> None:
    arguments: dict[str, Any] = {"model": name, "version": version, "min_worker": least, "max_worker": most}
    try:
        ask("ts_scale", {**arguments, "synchronous": is_synchronous})
    except ShoalError as error:
        if refusal_of(error).kind != "ModelNotFoundException":
            raise
        # The model may lie in a repository, where versions are numbers.
        try:
            ask("scale", {"model": name, "version": number_of(version), "count": least, "wait": is_synchronous})
        except NotFoundError:
            if version:  # perhaps only the version was not found
                raise
            raise error from None


def _counts(parameters: Mapping[str, str]) -> tuple[int, int]:
    min_worker = integer(parameters.get("min_worker", ""), 1)
    max_worker = integer(parameters.get("max_worker", ""), min_worker)
    if min_worker < 0:
        raise InvalidArgumentError(f"min_worker must be a number of workers, got: {min_worker}")
    if max_worker < min_worker:
        raise InvalidArgumentError("max_worker cannot be less than min_worker.")
    return min_worker, max_worker


_TEXTS = ("model_name", "handler", "runtime")
_NUMBERS = ("batch_size", "max_batch_delay", "initial_workers", "response_timeout", "startup_timeout")
_RUNTIMES = ("python", "python3")
_NO_NUMBER = -(10**9)


def register(call: HandlerCall) -> Response:
    """Register an archive; by default the response comes once the model's workers are up."""
    refuse_unless_enabled(call)
    given = request_parameters(call)
    url = given.get("url")
    if url is None:
        raise refused(400, "BadRequestException", "Parameter url is required.")
    if not url:
        raise refused(404, "ModelNotFoundException", "empty url")
    runtime = given.get("runtime")
    if runtime and runtime.lower() not in _RUNTIMES:
        raise refused(400, "BadRequestException", f"Invalid RuntimeType value: {runtime}")
    if boolean(given.get("s3_sse_kms", "false")):
        raise refused(
            400,
            "BadRequestException",
            "s3_sse_kms is not supported: Amazon's signature is not made. Register the archive by a URL that needs "
            "none, or put it into the model store",
        )
    is_synchronous = boolean(given.get("synchronous", "true"))
    arguments: dict[str, Any] = {"url": url, "synchronous": is_synchronous}
    arguments |= {name: given[name] for name in _TEXTS if given.get(name)}
    for name in _NUMBERS:
        number = integer(given.get(name, ""), _NO_NUMBER)
        if number != _NO_NUMBER:
            arguments[name] = number
    if "initial_workers" not in arguments and call.state.torchserve.default_workers:
        arguments["initial_workers"] = call.state.torchserve.default_workers
    made = call.ask("ts_register", arguments)
    name, version, workers = made["model"], made["version"], made["workers"]
    if workers and not is_synchronous:
        return pretty(202, {"status": "Processing worker updates..."})
    more = "" if workers else ". Use scale workers API to add workers for the model."
    return pretty(200, {"status": f'Model "{name}" Version: {version} registered with {workers} initial workers{more}'})


def unregister(call: HandlerCall) -> Response:
    """Unregister the version in the path, or the default version; the response comes once its workers have ended."""
    refuse_unless_enabled(call)
    call.ask("ts_unregister", {"model": call.name, "version": call.version or None})
    return pretty(200, {"status": f'Model "{call.name}" unregistered'})


def set_default(call: HandlerCall) -> Response:
    """Make the version in the path the model's default version."""
    call.ask("ts_set_default", {"model": call.name, "version": call.version})
    sentence = f'Default version successfully updated for model "{call.name}" to "{call.version}"'
    return pretty(200, {"status": sentence})


def refuse_unless_enabled(call: HandlerCall) -> None:
    """Raise RefusedError (405) if clients may not register models."""
    if not call.state.torchserve.enable_model_api:
        raise RefusedError(METHOD_NOT_ALLOWED)


def renew_token(call: HandlerCall) -> Response:
    """Replace a key in key_file.json, from where the client reads the new one; the old key is no longer admitted."""
    settings = call.state.torchserve
    if not settings.token_file:
        raise RefusedError(RESOURCE_NOT_FOUND)
    kind = parse_qs(call.query).get("type", [""])[-1]
    if kind not in RENEWED:
        raise refused(400, "BadRequestException", f"Parameter type must be {' or '.join(RENEWED)}.")
    try:
        renew_key(Path(settings.token_file), kind, datetime.now(), settings.token_expiration_min)
    except (OSError, ValueError) as error:
        raise refused(500, "InternalServerException", f"The file of tokens cannot be written: {error}") from error
    return Response(200, JSON_CONTENT, (b"\n",))


_NAME, _VERSION = "(?P<name>[^/]+)", "(?P<version>[^/]+)"

#: The routes, in the order in which they are tried.
MANAGEMENT_ROUTES = (
    Route("/models", {"GET": blocking(models), "POST": blocking(register)}, "model-repository"),
    Route(f"/models/{_NAME}/{_VERSION}/set-default", {"PUT": blocking(set_default)}, "model-repository"),
    Route(
        f"/models/{_NAME}(?:/{_VERSION})?",
        {
            "GET": blocking(describe),
            "PUT": scale_workers,
            "DELETE": blocking(unregister),
        },
        "model-repository",
    ),
    Route(f"/v1/models/{_NAME}", {"GET": blocking(is_served)}, "model-repository"),
    Route("/token", {"GET": blocking(renew_token)}, "token"),
    Route(
        "/workflows",
        {"GET": blocking(workflows), "POST": blocking(register_workflow)},
        "model-repository",
    ),
    Route(
        f"/workflows/{_NAME}",
        {"GET": blocking(describe_workflow), "DELETE": blocking(unregister_workflow)},
        "model-repository",
    ),
)
