"""TorchServe's lists of models: GET /models, page by page, and GET /models/M[/V], a description of each version.

Loaded versions are in this process's table of models; the supervisor is asked for versions that are registered without
workers and, for a description, about the workers.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import orjson

from shoal.frontend.call import HandlerCall
from shoal.frontend.prepared import SEQUENCE_END, SEQUENCE_START
from shoal.frontend.response import Headers, Response
from shoal.frontend.torchserve.errors import pretty, refused
from shoal.frontend.torchserve.models import (
    FIRST_WORKER,
    default_version,
    not_found,
    parameter,
    version_not_found,
    version_text,
    versions_of,
)
from shoal.frontend.torchserve.parameters import boolean, integer, page_of
from shoal.frontend.torchserve.predictions import (
    Asked,
    answered,
    description,
    element_of,
    in_sequence,
    new_id,
    prepare,
)
from shoal.star.models import NO_VERSION, ModelEntry

#: The parameter that marks a function of a workflow, which lists of models leave out.
_FUNCTION = "ts_workflow_function"
#: The members of a description that come from parameters of the configuration: name, parameter, default.
_NUMBERS = (
    ("minWorkers", "ts_min_workers", 1),
    ("maxWorkers", "ts_max_workers", 1),
    ("batchSize", "ts_batch_size", 1),
    ("maxBatchDelay", "ts_max_batch_delay_ms", 100),
    ("responseTimeout", "ts_response_timeout_s", 120),
    ("startupTimeout", "ts_startup_timeout_s", 120),
    ("maxRetryTimeoutInSec", "ts_max_retry_timeout_s", 300),
    ("clientTimeoutInMills", "ts_client_timeout_ms", 0),
)
_SEQUENCES = (
    ("sequenceMaxIdleMSec", "ts_sequence_max_idle_ms", 0),
    ("sequenceTimeoutMSec", "ts_sequence_timeout_ms", 0),
    ("maxNumSequence", "ts_max_num_sequence", 0),
    ("maxSequenceJobQueueSize", "ts_max_sequence_queue_size", 0),
)
#: TorchServe's own default of jobQueueSize.
_QUEUE_SIZE = 100


def models(call: HandlerCall) -> Response:
    """A page of the models' default versions, by name."""
    urls = {
        each.name: url_of(default_version(call.state, each.name))
        for each in call.state.models.entries()
        if not each.is_unloaded and each.version != NO_VERSION and not parameter(each, _FUNCTION)
    }
    urls |= {
        row["model"]: row["url"]
        for row in call.ask("ts_registered", {"model": None})
        if row["is_default"] and _FUNCTION not in row["parameters"]
    }
    chosen, page = page_of(sorted(urls), dict(parse_qsl(call.query)))
    return pretty(200, page | {"models": [{"modelName": name, "modelUrl": urls[name]} for name in chosen]})


def url_of(entry: ModelEntry) -> str:
    """The URL that a model was registered by; the model's name if it comes from a repository."""
    return parameter(entry, "ts_model_url") or entry.name


def describe(call: HandlerCall) -> Response:
    """Descriptions of a model's default version, of one version, or of `all`."""
    known = _versions(call)
    if not known:
        raise not_found(call.name)
    if call.version == "all":
        return pretty(200, [_description(call, each) for each in known])
    wanted = [each for each in known if each.text == call.version] if call.version else _default(call, known)
    if not wanted:
        raise version_not_found(call.name, call.version or "")
    described = [_description(call, each) for each in wanted]
    if not boolean(dict(parse_qsl(call.query)).get("customized", "")):
        return pretty(200, described)
    metadata, headers = _customized(call, wanted[0].entry)
    response = pretty(200, [{**described[0], "customizedMetadata": metadata}, *described[1:]])
    chosen = {name.lower() for name, _ in headers}
    return response._replace(headers=(*(each for each in response.headers if each[0].lower() not in chosen), *headers))


class _Version(NamedTuple):
    """A version, loaded or only registered."""

    text: str
    url: str
    entry: ModelEntry | None  # None: the version has no workers
    parameters: Mapping[str, str]
    instances: Sequence[Mapping[str, Any]]
    is_default: bool


def _versions(call: HandlerCall) -> list[_Version]:
    """All versions of a model: those of the store, in the order of their registration, or those of a repository."""
    entries = {entry.version: entry for entry in versions_of(call.state, call.name)}
    instances: dict[int, Any] = {}
    if entries:
        told = call.ask("instances", {"model": call.name, "version": None})
        instances = {int(each["version"]): each["instances"] for each in told["versions"]}
    registered = call.ask("ts_registered", {"model": call.name})
    if registered:
        return [
            _Version(
                row["version"],
                row["url"],
                entries.get(row["number"]),
                row["parameters"],
                instances.get(row["number"], ()),
                row["is_default"],
            )
            for row in registered
        ]
    return [
        _Version(
            version_text(entry),
            url_of(entry),
            entry,
            {name: value["string_value"] for name, value in entry.config.get("parameters", {}).items()},
            instances.get(number, ()),
            is_default=False,
        )
        for number, entry in entries.items()
    ]


def _default(call: HandlerCall, known: Sequence[_Version]) -> list[_Version]:
    marked = [each for each in known if each.is_default]
    if marked:
        return marked
    text = version_text(default_version(call.state, call.name))
    return [each for each in known if each.text == text]


def is_served(call: HandlerCall) -> Response:
    """Answer KServe's question whether a model has a worker. A model that is registered with 0 workers is known, but
    not ready."""
    known = versions_of(call.state, call.name)
    if not known and not call.ask("ts_registered", {"model": call.name}):
        raise not_found(call.name)
    return pretty(200, {"name": call.name, "ready": any(entry.num_instances_up for entry in known)})


def _description(call: HandlerCall, version: _Version) -> dict[str, Any]:
    """The description of one version, with its members in TorchServe's order."""
    parameters, entry, instances = version.parameters, version.entry, version.instances
    numbers = _numbers(parameters, _NUMBERS)
    if entry is not None and "ts_version" not in parameters:
        numbers |= {"minWorkers": entry.num_instances, "maxWorkers": entry.num_instances}
        numbers["batchSize"] = max(1, entry.signature.max_batch_size)
    devices = [each["device"] for each in instances]
    on_gpu = any(device.startswith("GPU") for device in devices)
    ids = sorted({int(device.removeprefix("GPU ")) for device in devices if device.startswith("GPU")})
    return {
        "modelName": call.name,
        "modelVersion": version.text,
        "modelUrl": version.url,
        "runtime": parameters.get("ts_runtime") or "python",
        **numbers,
        "parallelType": parameters.get("ts_parallel_type", ""),
        "parallelLevel": integer(parameters.get("ts_parallel_level", ""), 0),
        "deviceType": "gpu" if on_gpu else "cpu",
        **({"deviceIds": ids} if ids else {}),
        "continuousBatching": boolean(parameters.get("ts_continuous", "")),
        "useJobTicket": boolean(parameters.get("ts_use_job_ticket", "")),
        "useVenv": boolean(parameters.get("ts_use_venv", "")),
        "stateful": boolean(parameters.get("ts_sequence", "")),
        **_numbers(parameters, _SEQUENCES),
        "loadedAtStartup": boolean(parameters.get("ts_loaded_at_startup", "")),
        "workers": [worker(number, each, time.time()) for number, each in enumerate(instances, FIRST_WORKER)],
        "jobQueueStatus": _queue(call, entry, parameters),
    }


def worker(number: int, instance: Mapping[str, Any], now: float) -> dict[str, Any]:
    """An instance as a worker of TorchServe's; one that is not up is shown as UNLOADING and without a pid."""
    is_ready = instance["state"] == "up"
    device = instance["device"]
    return {
        "id": str(number),
        "startTime": _time(now - instance["up_s"]),
        "status": "READY" if is_ready else "UNLOADING",
        "memoryUsage": instance["rss_bytes"],
        "pid": instance["pid"] if is_ready else -1,
        "gpu": device.startswith("GPU"),
        "gpuUsage": "N/A",
    }


def _time(seconds: float) -> str:
    """A time of day in seconds since 1970 as TorchServe writes it: 2026-11-28T18:16:05.123Z."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _queue(call: HandlerCall, entry: ModelEntry | None, parameters: Mapping[str, str]) -> dict[str, int]:
    capacity = integer(parameters.get("ts_job_queue_size", ""), _QUEUE_SIZE)
    is_counted = entry is not None and entry.row >= 0
    pending = int(call.state.read_counters(entry).cells["pending_count"]) if is_counted and entry else 0
    return {"remainingCapacity": max(0, capacity - pending), "pendingRequests": pending}


def _numbers(parameters: Mapping[str, str], rows: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    return {member: integer(parameters.get(name, ""), default) for member, name, default in rows}


class _Customized(NamedTuple):
    """The metadata that a handler has returned ({} if they are no JSON object), and the headers that it has set."""

    metadata: dict[str, Any]
    headers: Headers


def _customized(call: HandlerCall, entry: ModelEntry | None) -> _Customized:
    """Ask a version's handler for its metadata. Raises ShoalError if the handler fails, or if there is no worker
    (`entry` is None)."""
    if entry is None:
        missing = "has no worker to serve describe request. Please use scale workers API to add workers."
        raise refused(503, "ServiceUnavailableException", f'Model "{call.name}" {missing}')
    request_id, headers = new_id(), dict[str, str]()
    sequence_id = in_sequence(entry, headers)
    described = description(Asked(), "", headers, request_id, describe=True)
    prepared = prepare(entry, request_id, described, element_of([]), sequence_id)
    if sequence_id:
        prepared = replace(prepared, flags=SEQUENCE_START | SEQUENCE_END)  # a sequence that ends at once
    reply = call.road.infer(prepared)
    try:
        answer = answered(reply.response, reply.block)
        body = bytes(answer.body)
    finally:
        reply.release()
    try:
        told: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = {}
    return _Customized(told if isinstance(told, dict) else {}, answer.headers)
