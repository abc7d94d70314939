"""Scaling: changes the number of a version's instances while it serves, on a client's request or, with `autoscale`, by
load.

No request is dropped or waits for a change: an instance that is removed finishes its requests first, and a new one gets
none before it is up. Runs in the supervisor.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config import scaling
from shoal.model_config.messages import Config
from shoal.shm.counters import RowView
from shoal.supervisor.event_loop import Future, reject, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.memory.process_memory import MemoryFigures, ProcessMemory, total
from shoal.supervisor.models.autoscale import Autoscaler, Load
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_version import ServedVersion
from shoal.supervisor.processes.progress import BusyShare, rss_bytes
from shoal.supervisor.questions.questions import Verb

_log = logging.getLogger(__name__)

#: Seconds between two observations of how busy instances are (ours): the policy acts on loads that last a second.
LOOK_S = 0.5


class Scaling:
    """Scales versions on request and by load, and describes their instances."""

    def __init__(
        self,
        models: Models,
        read_counters: Callable[[int], RowView],
        clock_ns: Callable[[], int],
        memory: ProcessMemory | None = None,
    ) -> None:
        self._loop = models.loop
        self._models = models
        self._memory = memory or ProcessMemory()
        self._read_counters = read_counters
        self._clock_ns = clock_ns
        self.verbs: dict[str, Verb] = {"instances": self._instances, "scale": self._scale}
        # Changed by each observation: the busy share of each instance by the instance's number, and the autoscaler of
        # each version that has one, by model id.
        self._busy: dict[int, BusyShare] = {}
        self._autoscalers: dict[int, Autoscaler] = {}
        # Changed by scaling: the model ids of the versions that have been scaled since they were loaded.
        self._resized: set[int] = set()

    # --- the verbs ---

    async def _instances(self, arguments: dict[str, Any]) -> Any:
        return await self._describe(self._models.get(arguments["model"]), arguments["version"])

    async def _scale(self, arguments: dict[str, Any]) -> Any:
        """Scale a version. Returns its instances, at once or, with the argument `wait`, when the new ones are up and
        announced."""
        model, number = self._models.get(arguments["model"]), arguments["version"]
        served = _serving(model, number)
        model.refuse_while_loading()
        up = self._resize(served, arguments["count"])
        if autoscaler := self._autoscalers.get(served.version.model_id):
            autoscaler.wanted = arguments["count"]
        if arguments["wait"]:
            await shared(up)
            await self._models.settle()
        return await self._describe(model, number)

    async def _describe(self, model: Model, number: int | None) -> dict[str, Any]:
        versions = [model.versions[each] for each in sorted(model.versions) if number in (None, each)]
        pids = [instance.pid for each in versions for instance in each.instances]
        measured = await self._memory.measure(pids, self._loop)
        return {"model": model.identifier.name, "versions": [self._version(each, measured) for each in versions]}

    def _version(self, served: ServedVersion, measured: Mapping[int, MemoryFigures]) -> dict[str, Any]:
        version = served.version
        memory = total(measured[pid] for pid in {each.pid for each in served.instances} if pid in measured)
        gpus = {each.placement.gpu.uuid: each.placement.gpu.id for each in served.instances if each.placement.gpu}
        least, most = scaling.bounds(version.config)
        return {
            "version": str(version.version),
            "state": version.state.value,
            "min_instances": least,
            "max_instances": most,
            "autoscale": scaling.autoscale(version.config),
            "memory_bytes": memory.host_nbytes,
            "gpu_memory_bytes": {f"GPU {gpus.get(uuid, uuid)}": size for uuid, size in memory.gpu_nbytes.items()},
            "instances": [self._instance(instance) for instance in served.instances],
        }

    def _instance(self, instance: Instance) -> dict[str, Any]:
        busy, progress, placement = self._busy.get(instance.number), instance.progress, instance.placement
        is_up = instance.state is InstanceState.UP
        return {
            "name": instance.name,
            "state": instance.state.value,
            "pid": instance.pid,
            "device": f"GPU {placement.device_id}" if placement.kind == "KIND_GPU" else "CPU",
            "cores": list(placement.cores),
            "busy_share": 0.0 if busy is None else round(busy.share, 3),
            "batches": 0 if progress is None else progress.num_completed,
            "restarts": max(0, instance.num_starts - 1),
            "rss_bytes": rss_bytes(instance.pid),
            "up_s": round(self._loop.now_s() - instance.worker.up_since_s, 3) if is_up else 0.0,
        }

    def _resize(self, served: ServedVersion, count: int) -> Future[None]:
        version = served.version
        least, most = scaling.bounds(version.config)
        if not least <= count <= most:
            raise InvalidArgumentError(
                f"model '{version.name}' can have {least} to {most} instances, got count {count}; its parameters "
                "'min_instances' and 'max_instances' say so"
            )
        has_instances = bool(version.config["instance_group"])  # an ensemble has none, and its `resize` raises
        resized = served.resize(with_count(version.config, count) if has_instances else [])
        self._resized.add(version.model_id)
        return resized

    # --- upgrades ---

    def carried(self) -> list[tuple[str, int, int]]:
        """The versions that were scaled, by request or by load: model, version, number of instances."""
        versions = [each.version for model in self._models.models.values() for each in model.serving.values()]
        return [(each.name, each.version, each.num_instances) for each in versions if each.model_id in self._resized]

    async def restore(self, scaled: Sequence[tuple[str, int, int]]) -> None:
        """Scale versions as an old server had scaled them. A version that cannot have its number of instances keeps
        that of its configuration, and the log says why."""
        for name, number, count in scaled:
            try:
                await shared(self._resize(_serving(self._models.get(name), number), count))
            except ShoalError as error:
                _log.error("model '%s' has no %d instances as before the upgrade: %s", name, count, error)

    # --- scaling by load ---

    def watch(self) -> None:
        """Observe how busy instances are now and every LOOK_S, and scale the versions with `autoscale`."""
        self._loop.call_after(LOOK_S, self.watch)
        now_ns = self._clock_ns()
        served = [each for model in self._models.models.values() for each in model.serving.values()]
        instances = [instance for each in served for instance in each.instances]
        busy = {instance.number: self._busy.get(instance.number) or BusyShare() for instance in instances}
        for instance in instances:
            busy[instance.number].look(now_ns, instance.progress)
        self._busy = busy
        wanted = {each.version.model_id: each for each in served if scaling.autoscale(each.version.config)}
        self._autoscalers = {model_id: self._autoscaler(each) for model_id, each in wanted.items()}
        for each in wanted.values():
            with contained(each):
                self._follow(each, now_ns)

    def _autoscaler(self, served: ServedVersion) -> Autoscaler:
        version = served.version
        return self._autoscalers.get(version.model_id) or Autoscaler(
            scaling.bounds(version.config), scaling.queue_age_ns(version.config), version.num_instances
        )

    def _follow(self, served: ServedVersion, now_ns: int) -> None:
        version = served.version
        oldest_ns = self._read_counters(version.row).cells["oldest_queued_ns"]
        up = [self._busy[instance.number] for instance in served.instances if instance.progress is not None]
        load = Load(
            len(up),
            sum(busy.share for busy in up) / max(1, len(up)),
            max(0, now_ns - oldest_ns) if oldest_ns else 0,
        )
        autoscaler = self._autoscalers[version.model_id]
        wanted = autoscaler.observe(now_ns, load)
        if wanted == version.num_instances or self._models.models[version.identifier].is_loading:
            return
        waited_ms = load.queue_age_ns / 1e6
        _log.info(
            "model '%s' version %d goes from %d to %d instances: they are busy for %.0f %% of the time, the oldest "
            "request has waited for %.0f ms",
            version.name, version.version, version.num_instances, wanted, 100 * load.busy_share, waited_ms,
        )  # fmt: skip
        try:
            resized = self._resize(served, wanted)
        except ShoalError as error:
            resized = self._loop.future()
            reject(resized, error)
        self._loop.start(self._await_size(served, autoscaler, resized))

    async def _await_size(self, served: ServedVersion, autoscaler: Autoscaler, resized: Future[None]) -> None:
        """Log it if a version cannot be scaled by load, and have the autoscaler decide again."""
        try:
            await shared(resized)
        except ShoalError as error:
            _log.error("model '%s' cannot be scaled: %s", served.version.name, error)
            autoscaler.wanted = served.version.num_instances


def with_count(config: Config, count: int) -> list[Config]:
    """A model's instance groups for `count` instances in all: only the first group's count changes.

    Raises InvalidArgumentError if the other groups alone have `count`, or if the instances that are left for the
    first group cannot be divided evenly among its GPUs.
    """
    first, *others = config["instance_group"]
    rest = sum(group["count"] * max(1, len(group["gpus"])) for group in others)
    own, left = divmod(count - rest, max(1, len(first["gpus"])))
    if own < 1 or left:
        raise InvalidArgumentError(
            f"model '{config['name']}' cannot have {count} instances: its first instance group, on "
            f"{max(1, len(first['gpus']))} devices, would have to have {count - rest} of them"
        )
    return [{**first, "count": own}, *others]


def _serving(model: Model, number: int | None) -> ServedVersion:
    """The version that serves; with `number` None, the latest one. Raises UnavailableError."""
    serving = model.serving
    served = serving.get(max(serving, default=0) if number is None else number)
    if served is None:
        which = "" if number is None else f" version {number}"
        raise UnavailableError(f"Request for unknown model: '{model.identifier.name}'{which} is not at ready state")
    return served
