"""TorchServe's lists of models: GET /models, page by page, and GET /models/M[/V], what is known of each version. The
list is read from this process's table of models; a description asks the supervisor about the workers.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qsl

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import pretty
from shoal.frontend.torchserve.models import (
    default_version,
    not_found,
    parameter,
    version_not_found,
    version_text,
    versions_of,
)
from shoal.frontend.torchserve.parameters import integer
from shoal.star.models import ModelEntry

_PAGE = 100
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
    ("maxNumSequence", "ts_max_num_sequence", 1),
    ("maxSequenceJobQueueSize", "ts_max_sequence_job_queue_size", 1),
)
#: TorchServe's own default of jobQueueSize.
_QUEUE_SIZE = 100
_FIRST_WORKER = 9000


def models(call: HandlerCall) -> Response:
    """A page of the models' default versions, by name."""
    query = dict(parse_qsl(call.query))
    limit, offset = integer(query.get("limit", ""), _PAGE), integer(query.get("next_page_token", ""), 0)
    if not 0 <= limit <= _PAGE:
        limit = _PAGE
    offset = max(0, offset)
    names = sorted({entry.name for entry in call.state.models.entries() if not entry.is_unloaded and entry.is_polled})
    page: dict[str, Any] = {}
    if offset + limit <= len(names):
        page["nextPageToken"] = str(offset + limit)
    page["models"] = [
        {"modelName": name, "modelUrl": url_of(default_version(call.state, name))}
        for name in names[offset : offset + limit]
    ]
    return pretty(200, page)


def url_of(entry: ModelEntry) -> str:
    """Where a model comes from: as it was registered, or for a model of Triton's its name."""
    return parameter(entry, "ts_model_url") or entry.name


def describe(call: HandlerCall) -> Response:
    """What is known of a model's default version, of one version, or of `all`."""
    known = versions_of(call.state, call.name)
    if not known:
        raise not_found(call.name)
    if call.version is None:
        wanted = [default_version(call.state, call.name)]
    elif call.version == "all":
        wanted = known
    else:
        wanted = [entry for entry in known if version_text(entry) == call.version]
        if not wanted:
            raise version_not_found(call.name, call.version)
    told = call.ask("instances", {"model": call.name, "version": None})
    workers = {each["version"]: each["instances"] for each in told["versions"]}
    return pretty(200, [description(call, each, workers.get(str(each.version), ())) for each in wanted])


def description(call: HandlerCall, entry: ModelEntry, instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The members of one version, in TorchServe's order."""
    numbers = _numbers(entry, _NUMBERS)
    if not parameter(entry, "ts_version"):
        numbers |= {"minWorkers": entry.num_instances, "maxWorkers": entry.num_instances}
        numbers["batchSize"] = max(1, entry.signature.max_batch_size)
    devices = [each["device"] for each in instances]
    on_gpu = any(device.startswith("GPU") for device in devices)
    ids = sorted({int(device.removeprefix("GPU ")) for device in devices if device.startswith("GPU")})
    return {
        "modelName": entry.name,
        "modelVersion": version_text(entry),
        "modelUrl": url_of(entry),
        "runtime": parameter(entry, "ts_runtime", "python"),
        **numbers,
        "parallelType": parameter(entry, "ts_parallel_type"),
        "parallelLevel": integer(parameter(entry, "ts_parallel_level"), 0),
        "deviceType": "gpu" if on_gpu else "cpu",
        **({"deviceIds": ids} if ids else {}),
        "continuousBatching": _is_true(entry, "ts_continuous_batching"),
        "useJobTicket": _is_true(entry, "ts_use_job_ticket"),
        "useVenv": _is_true(entry, "ts_use_venv"),
        "stateful": _is_true(entry, "ts_stateful"),
        **_numbers(entry, _SEQUENCES),
        "loadedAtStartup": _is_true(entry, "ts_loaded_at_startup"),
        "workers": [worker(number, each, time.time()) for number, each in enumerate(instances, _FIRST_WORKER)],
        "jobQueueStatus": _queue(call, entry),
    }


def worker(number: int, instance: Mapping[str, Any], now: float) -> dict[str, Any]:
    """An instance as a worker of TorchServe's; a worker that loads has no pid yet."""
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


def _queue(call: HandlerCall, entry: ModelEntry) -> dict[str, int]:
    capacity = integer(parameter(entry, "ts_job_queue_size"), _QUEUE_SIZE)
    pending = 0 if entry.row < 0 else int(call.state.read_counters(entry).cells["pending_count"])
    return {"remainingCapacity": max(0, capacity - pending), "pendingRequests": pending}


def _numbers(entry: ModelEntry, rows: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    return {member: integer(parameter(entry, name), default) for member, name, default in rows}


def _is_true(entry: ModelEntry, name: str) -> bool:
    return parameter(entry, name).lower() == "true"
