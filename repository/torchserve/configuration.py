"""The configuration of an ordinary model, made of an archive: what a config.pbtxt would hold. Pure.

A setting has the value of the first place that names it:

    workers         model-config.yaml, the request, `models=` of config.properties, default_workers_per_model
    other settings  the request, model-config.yaml, `models=`, the defaults

Where config.properties has `model_snapshot=` in place of `models=`, the snapshot comes before the archive's YAML file,
since the snapshot holds the settings that were in force.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.model_config.execution_timeout import MAX_MS
from shoal.model_config.scaling import MAX_INSTANCES
from shoal.model_config.sequences import MAX_CANDIDATE_SEQUENCES
from shoal.repository.torchserve.manifest import Manifest
from shoal.store_settings import StoreSettings
from shoal.torchserve_errors import torchserve_error

BACKEND = "torchserve"
_BATCH_SIZE, _MAX_BATCH_DELAY_MS = 1, 100  # TorchServe's defaults
#: The longest time without requests of a sequence, where TorchServe has no limit: a year.
_NO_LIMIT_MS = 365 * 24 * 3600 * 1000
#: Built-in handlers that answer in parts.
_STREAMING_HANDLERS = frozenset({"vllm_handler", "trt_llm_handler"})


class WorkflowPart(NamedTuple):
    """The additional facts about a model that is a node of a workflow."""

    workflow: str
    node: str  # JSON, which frontend/torchserve/workflow_predictions.py reads
    unpacked: str  # the workflow's URL, if the model is a function in the workflow's unpacked archive; else ""


class StoreRequest(NamedTuple):
    """A request to register an archive: the archive's address and the request's parameters; None: not given."""

    url: str
    model_name: str | None = None
    handler: str | None = None
    runtime: str | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None  # ms
    initial_workers: int | None = None
    response_timeout: int | None = None  # s
    startup_timeout: int | None = None  # s
    is_startup: bool = False  # `load_models` of config.properties, not a client, names the archive
    part: WorkflowPart | None = None


class Machine(NamedTuple):
    """The parts of the server's machine that the number of workers depends on."""

    num_cores: int
    gpus: tuple[int, ...]


class ArchiveFacts(NamedTuple):
    """The facts that the files of an unpacked archive hold."""

    name: str
    manifest: Manifest | None
    yaml: Mapping[str, Any]  # what read_yaml_config returns
    streams: bool  # a handler's source sends intermediate responses


def handler_of(request: StoreRequest, manifest: Manifest | None, settings: StoreSettings, name: str) -> str:
    """The handler of the model of this name; "" where none is named."""
    version = Manifest().version if manifest is None else manifest.version
    kept = settings.models.get(name, {}).get(version, {}).get("handler")
    return request.handler or kept or (manifest and manifest.handler) or settings.default_service_handler


#: Settings of an archive's YAML file that TorchServe heeds and Shoal does not.
_NO_EFFECT = {
    "torchrun": "without 'parallelType: pp', tp or pptp one process runs the handler",
    "parallelType": "one process runs the handler, and has one GPU",
}
#: Types of parallelism whose handler runs in several processes, as torchrun starts them.
_BY_TORCHRUN = ("pp", "tp", "pptp")
#: The most processes of one handler (ours).
_MAX_PROCESSES = 64


class _Sources(NamedTuple):
    """All places that may name a setting of one model."""

    request: StoreRequest
    facts: ArchiveFacts
    settings: StoreSettings
    row: Mapping[str, Any]  # the model's and version's row in `models=` or `model_snapshot=`

    def first(self, requested: Any, key: str, default: Any) -> Any:
        """The value of the first place that names a setting, which the archive and the row call `key`."""
        archive, row = self.facts.yaml.get(key), self.row.get(key)
        archive_and_row = (row, archive) if self.settings.models_are_snapshots else (archive, row)
        return next(value for value in (requested, *archive_and_row, default) if value is not None)

    @property
    def handler(self) -> str:
        """The model's handler; "" where none is named."""
        return handler_of(self.request, self.facts.manifest, self.settings, self.facts.name)

    @property
    def streams(self) -> bool:
        """Whether a request may have several responses."""
        is_known = self.facts.streams or self.handler in _STREAMING_HANDLERS
        return bool(is_known or self.facts.yaml.get("continuousBatching", False))

    @property
    def is_sequential(self) -> bool:
        """Whether requests form sequences, or are executed again and again."""
        yaml = self.facts.yaml
        return bool(yaml.get("sequenceBatching") or yaml.get("continuousBatching"))

    @property
    def batch_size(self) -> int:
        """The most requests of a batch."""
        size: int = self.first(self.request.batch_size, "batchSize", _BATCH_SIZE)
        return size

    @property
    def queue_size(self) -> int:
        """The most requests that wait."""
        yaml = self.facts.yaml
        size: int = 1 if yaml.get("useJobTicket") else yaml.get("jobQueueSize", self.settings.job_queue_size)
        return size

    @property
    def response_s(self) -> int:
        """The most seconds that an execution may take."""
        default = self.settings.default_response_timeout
        limit_s: int = self.first(self.request.response_timeout, "responseTimeout", default)
        return limit_s


def configuration(
    request: StoreRequest, facts: ArchiveFacts, settings: StoreSettings, machine: Machine
) -> tuple[dict[str, Any], list[str]]:
    """A ModelConfig in the form of JSON, and sentences for the log about settings that cannot be honoured."""
    name, yaml, warnings = facts.name, facts.yaml, list[str]()
    version = (facts.manifest or Manifest()).version
    sources = _Sources(request, facts, settings, settings.models.get(name, {}).get(version, {}))
    least, most = _workers(request, facts, sources.row, settings, machine)
    if least > MAX_INSTANCES:
        warnings.append(f"model '{name}' gets {MAX_INSTANCES} workers, the most of a model, instead of {least}")
        least = MAX_INSTANCES
    if sources.response_s * 1000 > MAX_MS:
        warnings.append(f"responseTimeout of model '{name}' is {sources.response_s} s; an hour is the most, and counts")
    gpus = _gpus(facts, settings, machine, warnings)
    if yaml.get("parallelType") in _BY_TORCHRUN:
        _check_torchrun(name, yaml, gpus)
    else:
        warnings += [
            f"{key} of model '{name}' has no effect: {reason}" for key, reason in _NO_EFFECT.items() if yaml.get(key)
        ]
    parameters = {**settings.environment, **_parameters(sources, least, most)}
    said = {key: {"string_value": _text(value)} for key, value in parameters.items() if value not in (None, "")}
    config: dict[str, Any] = {
        "name": name,
        "backend": BACKEND,
        "max_batch_size": sources.batch_size,
        "version_policy": {"all": {}},
        "input": [{"name": "data", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "prediction", "data_type": "TYPE_STRING", "dims": [1]}],
        **(_sequences(yaml, sources.batch_size, least) if sources.is_sequential else _dynamic_batching(sources)),
        "instance_group": instance_groups(max(1, least), gpus),
        "model_transaction_policy": {"decoupled": sources.streams},
        "parameters": said,
    }
    return config, warnings


def _parameters(sources: _Sources, least: int, most: int) -> dict[str, Any]:
    """The parameters that tell the backend and the front ends TorchServe's settings; `least` and `most` workers."""
    request, facts, settings, row = sources
    manifest, yaml = facts.manifest or Manifest(), facts.yaml
    part = request.part or WorkflowPart("", "", "")
    has_sequences = yaml.get("sequenceBatching")
    return {
        "execution_timeout_ms": min(sources.response_s * 1000, MAX_MS),
        "ts_handler": sources.handler,
        "ts_runtime": request.runtime or manifest.runtime or "python",
        "ts_version": manifest.version,
        "ts_model_url": part.unpacked or request.url,
        "ts_workflow": part.workflow,
        "ts_workflow_node": part.node,
        "ts_workflow_function": bool(part.unpacked) or None,
        "ts_batch_size": sources.batch_size,
        "ts_max_batch_delay_ms": sources.first(request.max_batch_delay, "maxBatchDelay", _MAX_BATCH_DELAY_MS),
        "ts_min_workers": least,
        "ts_max_workers": max(least, most),
        "ts_response_timeout_s": sources.response_s,
        "ts_startup_timeout_s": sources.first(
            request.startup_timeout, "startupTimeout", settings.default_startup_timeout
        ),
        "ts_default": row.get("defaultVersion"),
        "ts_decode_input_request": settings.decode_input_request,
        "ts_limit_max_image_pixels": settings.limit_max_image_pixels,
        "ts_loaded_at_startup": request.is_startup,
        "ts_service_envelope": settings.service_envelope,
        "ts_config_file": manifest.config_file,
        "ts_requirements": manifest.requirements_file if settings.install_py_dep_per_model else "",
        "ts_use_venv": yaml.get("useVenv"),
        "ts_async": yaml.get("asyncCommunication"),
        "ts_continuous": yaml.get("continuousBatching"),
        "ts_sequence": has_sequences,
        "ts_streams": sources.streams or None,
        "ts_use_job_ticket": yaml.get("useJobTicket"),
        "ts_client_timeout_ms": yaml.get("clientTimeoutInMills"),
        "ts_max_retry_timeout_s": yaml.get("maxRetryTimeoutInSec"),
        "ts_device_type": yaml.get("deviceType"),
        "ts_device_ids": _json(yaml.get("deviceIds")),
        "ts_parallel_type": yaml.get("parallelType"),
        "ts_parallel_level": yaml.get("parallelLevel"),
        "ts_torchrun": _json(yaml.get("torchrun")),
        "ts_job_queue_size": sources.queue_size if sources.is_sequential else None,
        "ts_sequence_max_idle_ms": yaml.get("sequenceMaxIdleMSec"),
        "ts_sequence_timeout_ms": yaml.get("sequenceTimeoutMSec"),
        "ts_max_num_sequence": yaml.get("maxNumSequence", 1 if has_sequences else None),
        "ts_max_sequence_queue_size": yaml.get("maxSequenceJobQueueSize", 1 if has_sequences else None),
    }


def _dynamic_batching(sources: _Sources) -> dict[str, Any]:
    """The dynamic batcher of a model without sequences. It has no delay: a batch is whatever waits when a worker is
    free, so that a lone request does not wait for others."""
    policy: dict[str, Any] = {"max_queue_size": sources.queue_size}
    timeout_ms = sources.facts.yaml.get("clientTimeoutInMills")
    if timeout_ms:
        policy |= {"timeout_action": "REJECT", "default_timeout_microseconds": timeout_ms * 1000}
    return {"dynamic_batching": {"default_queue_policy": policy}}


def _check_torchrun(name: str, yaml: Mapping[str, Any], gpus: Sequence[int]) -> None:
    """Raise the refusal of a handler in several processes if their number, the GPUs or another setting do not allow
    that."""
    torchrun = yaml.get("torchrun", {})
    number = torchrun.get("nproc-per-node", 1)
    if type(number) is not int or not 1 <= number <= _MAX_PROCESSES:
        raise invalid_model(f"'nproc-per-node' of model '{name}' must be from 1 to {_MAX_PROCESSES}, got: {number!r}")
    if number == 1:
        return
    if torchrun.get("nnodes", 1) != 1:
        raise invalid_model(f"'nnodes' of model '{name}' must be 1: all processes of a handler run on this machine")
    if gpus:
        raise invalid_model(
            f"'torchrun' of model '{name}' needs 'deviceType: cpu': a process sees one GPU here, and torchrun's would "
            "need one each"
        )
    others = [key for key in ("asyncCommunication", "continuousBatching", "sequenceBatching") if yaml.get(key)]
    if others:
        raise invalid_model(f"'torchrun' and '{others[0]}' of model '{name}' do not go together")


def invalid_model(sentence: str) -> ShoalError:
    """The refusal of an archive that no worker could load, 400."""
    return torchserve_error(400, "InvalidModelException", sentence)


def _sequences(yaml: Mapping[str, Any], batch_size: int, num_workers: int) -> dict[str, Any]:
    """The sequence batcher of a model with sequenceBatching, continuousBatching, or both: a request that goes on is
    executed again and again, in batches with others.

    A sequence has a slot of one worker; all workers together have as many slots as sequences may be open. Without
    sequenceBatching each request has a slot, and a worker has as many slots as a batch has requests.
    """
    num_slots = batch_size
    if yaml.get("sequenceBatching"):
        num_slots = -(-yaml.get("maxNumSequence", 1) // max(1, num_workers))
    return {
        "sequence_batching": {
            "oldest": {"max_candidate_sequences": min(num_slots, MAX_CANDIDATE_SEQUENCES)},
            "max_sequence_idle_microseconds": (yaml.get("sequenceMaxIdleMSec") or _NO_LIMIT_MS) * 1000,
            "iterative_sequence": bool(yaml.get("continuousBatching")),
        }
    }


def instance_groups(count: int, gpus: Sequence[int]) -> list[dict[str, Any]]:
    """Instance groups of `count` workers, spread evenly over the GPUs, or on the CPU where there are none."""
    if not gpus:
        return [{"count": count, "kind": "KIND_CPU"}]
    shares = [(count + len(gpus) - 1 - place) // len(gpus) for place in range(len(gpus))]
    return [
        {"count": share, "kind": "KIND_GPU", "gpus": [gpu]} for gpu, share in zip(gpus, shares, strict=True) if share
    ]


def _workers(
    request: StoreRequest, facts: ArchiveFacts, row: Mapping[str, Any], settings: StoreSettings, machine: Machine
) -> tuple[int, int]:
    """The least and the most workers of a model; at its load it gets the least."""
    if facts.yaml.get("minWorkers") is not None and not (settings.models_are_snapshots and "minWorkers" in row):
        return facts.yaml["minWorkers"], facts.yaml["maxWorkers"]
    default = settings.default_workers_per_model
    if request.is_startup:
        default = default or len(machine.gpus[: settings.number_of_gpu]) or machine.num_cores
    given = (request.initial_workers, row.get("minWorkers"), default)
    least = next(value for value in given if value is not None)
    return least, max(least, row.get("maxWorkers", least))


def _gpus(facts: ArchiveFacts, settings: StoreSettings, machine: Machine, warnings: list[str]) -> Sequence[int]:
    """The GPUs that a model may use."""
    gpus = machine.gpus[: settings.number_of_gpu]
    if facts.yaml.get("deviceType") == "cpu":
        return ()
    wanted = facts.yaml.get("deviceIds")
    if not wanted:
        return gpus
    if not set(wanted) <= set(gpus):
        warnings.append(
            f"deviceIds of model '{facts.name}' are ignored: {wanted} are not all among the GPUs {list(gpus)}"
        )
        return gpus
    return tuple(dict.fromkeys(wanted))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str)
