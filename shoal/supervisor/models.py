"""All models of the server: from directories to versions, from versions to instances, and what front ends hear of them.

Runs in the supervisor. One model that fails to load leaves the others alone; the index says why.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from shoal import errors
from shoal.control import Message
from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.model_config.autocomplete import DEFAULT_MAX_BATCH_SIZE, ModelIO, needs_autocomplete
from shoal.model_config.idempotence import may_run_again
from shoal.model_config.load import finish_config, read_config
from shoal.model_config.normalise import place as place_groups
from shoal.placement import Placement, place
from shoal.repository.labels import read_labels
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, ModelVersion, VersionState
from shoal.repository.scan import model_file, scan, version_directories, wanted_versions
from shoal.shm.counters import MAX_ROWS
from shoal.supervisor.hangs import Hangs
from shoal.supervisor.instance import Host, Instance, InstanceState
from shoal.supervisor.members import Member

_log = logging.getLogger(__name__)


class Models:
    """Every version of every model and every instance of every version."""

    def __init__(
        self, host: Host, cores: tuple[int, ...], on_changed: Callable[[], None], on_settled: Callable[[], None]
    ) -> None:
        self._host = host
        self._cores = cores
        self._on_changed = on_changed
        self._on_settled = on_settled
        # Changed while models load, die and stop.
        self.versions: list[ModelVersion] = []
        self._instances: dict[ModelVersion, list[Instance]] = {}
        self._by_number: dict[int, Instance] = {}
        self._waiting: deque[ModelVersion] = deque()
        self._loading: set[ModelVersion] = set()
        self._started_at_s: dict[ModelVersion, float] = {}
        self._ids = itertools.count(1)
        self._rows = iter(range(MAX_ROWS))
        self._on_stopped: Callable[[], None] | None = None
        self._hangs = Hangs()

    # --- loading ---

    def load_all(self) -> None:
        """Load every model of every repository; `on_settled` is called when each has loaded or failed."""
        repositories = scan(self._host.options.model_repository)
        for name, reason in repositories.problems.items():
            self._add_failed(name, errors.InvalidArgumentError(reason))
        for name, directory in repositories.models.items():
            try:
                self._waiting.extend(self._read(name, directory))
            except ShoalError as error:
                self._add_failed(name, error)
        self._load_next()
        self._look_for_hangs()

    def _read(self, name: str, directory: Path) -> list[ModelVersion]:
        options = self._host.options
        config = read_config(directory, strict=options.disable_auto_complete_config)
        available = version_directories(directory)
        found = []
        for number in wanted_versions(available, config["version_policy"], name):
            row = next(self._rows, None)
            if row is None:
                raise UnavailableError(
                    f"model '{name}' is one too many: at most {MAX_ROWS} model versions can be loaded"
                )
            version = ModelVersion(name, number, next(self._ids), row, available[number], config)
            self.versions.append(version)
            found.append(version)
        return found

    def _load_next(self) -> None:
        while self._waiting and len(self._loading) < self._host.options.model_load_thread_count:
            version = self._waiting.popleft()
            self._loading.add(version)
            self._started_at_s[version] = time.monotonic()
            try:
                self._load(version)
            except ShoalError as error:
                self._fail(version, error)
        if not self._loading and not self._waiting:
            self._on_settled()

    def _load(self, version: ModelVersion) -> None:
        _log.info("loading: %s:%d", version.name, version.version)
        options = self._host.options
        look_into_file = needs_autocomplete(version.config) and not options.disable_auto_complete_config
        if look_into_file:
            version.config = place_groups(version.config, ())
        else:
            self._finish(version, None)
        placements = place(version.config, cores=self._cores, num_gpus=0)
        instances = [self._instance(version, placement) for placement in placements]
        self._instances[version] = instances
        version.num_instances = len(instances)
        self._on_changed()
        # Where the file must be looked into, the first instance does it and the others wait for what it finds.
        for instance in instances[:1] if look_into_file else instances:
            instance.start()

    def _instance(self, version: ModelVersion, placement: Placement) -> Instance:
        path = model_file(version.version_dir, version.config, placement.instance_name)
        number = len(self._by_number) + 1
        instance = Instance(number, version, placement, path, self._host, self)
        self._by_number[number] = instance
        return instance

    def _finish(self, version: ModelVersion, model_io: ModelIO | None) -> None:
        settings = self._host.options.backend_settings(version.config["backend"])
        text = settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
        if not text.isdecimal():
            raise errors.InvalidArgumentError(f"--backend-config default-max-batch-size must be a number, got '{text}'")
        version.config = finish_config(version.config, model_io, default_max_batch_size=int(text))
        version.labels = read_labels(version.version_dir.parent, version.config)
        version.is_config_final = True
        self._host.star.tell_batcher(_batcher_message(version))

    def join(self, number: int, member: Member) -> None:
        """A worker has connected. One that nobody expects is hung up on."""
        instance = self._by_number.get(number)
        if instance is None or instance.state is not InstanceState.STARTING:
            member.hang_up()
            return
        instance.join(member)

    # --- what happens to instances ---

    def on_model_io(self, instance: Instance, model_io: ModelIO) -> None:
        """Complete the configuration, let the first instance go on and the others begin."""
        version = instance.version
        try:
            self._finish(version, model_io)
        except ShoalError as error:
            self._fail(version, error)
            return
        instance.finish_config()
        for other in self._instances[version]:
            if other is not instance:
                other.start()

    def on_up(self, instance: Instance) -> None:
        """A version is READY when all its instances have come up once."""
        version = instance.version
        version.num_instances_up += 1
        instances = self._instances[version]
        if version.state is VersionState.LOADING and version.num_instances_up == len(instances):
            version.load_seconds = time.monotonic() - self._started_at_s[version]
            version.move(VersionState.READY)
            _log.info("successfully loaded '%s'", version.name)
            self._settle(version)
            return
        if version.is_failed or version.state is VersionState.READY:
            if version.is_failed:
                version.is_failed = False
                version.move(VersionState.READY)
            _log.info("instance '%s' of model '%s' is up again", instance.name, version.name)
        self._tell(version)

    def on_load_failed(self, instance: Instance, error: ShoalError) -> None:
        """One instance that cannot load fails its version."""
        self._fail(instance.version, error)

    def on_down(self, instance: Instance) -> None:
        """Clients are told at once when nobody serves a version any more."""
        instance.version.num_instances_up -= 1
        self._tell(instance.version)

    def on_failed(self, instance: Instance, sentence: str) -> None:
        """A version all of whose instances are FAILED is UNAVAILABLE, and says so, until one of them is up again."""
        version = instance.version
        if version.state is not VersionState.READY or not all(each.is_failed for each in self._instances[version]):
            return
        version.is_failed = True
        error = UnavailableError(f"all instances died again and again; the last: {sentence}")
        version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
        _log.error("model '%s' version %d is unavailable: all its instances are FAILED", version.name, version.version)
        self._tell(version)  # clients first: what they refuse, nobody has to queue
        self._host.star.tell_batcher({"op": "model_failed", "model": version.model_id})

    def on_stopped(self, instance: Instance) -> None:
        """While everything stops: was `instance` the last?"""
        others = self._by_number.values()
        if self._on_stopped is not None and all(other.state is InstanceState.STOPPED for other in others):
            done, self._on_stopped = self._on_stopped, None
            done()

    def _fail(self, version: ModelVersion, error: ShoalError) -> None:
        if version.state is not VersionState.LOADING:
            return
        version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
        version.num_instances_up = 0
        _log.error("failed to load '%s' version %d: %s", version.name, version.version, error)
        for instance in self._instances.get(version, []):
            if instance.state is not InstanceState.STOPPED:
                instance.stop()
        if version.is_config_final:
            self._host.star.tell_batcher({"op": "model_gone", "model": version.model_id})
        self._settle(version)

    def _settle(self, version: ModelVersion) -> None:
        self._loading.discard(version)
        self._tell(version)
        self._load_next()

    def _tell(self, version: ModelVersion) -> None:
        self._host.star.tell_clients(version.message())
        self._on_changed()

    def _add_failed(self, name: str, error: ShoalError) -> None:
        _log.error("failed to load '%s': %s", name, error)
        version = ModelVersion(name, NO_VERSION, next(self._ids), NO_ROW, Path())
        version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
        self.versions.append(version)

    # --- instances that do not move ---

    def _look_for_hangs(self) -> None:
        """End who is over the execution limit; look again soon while anybody executes anything."""
        executions = [execution for each in self._by_number.values() if (execution := each.execution())]
        look = self._hangs.look(time.monotonic_ns(), executions)
        if look.gap_ns:
            _log.warning("the server stood still for %.1f s; execution limits are extended by it", look.gap_ns / 1e9)
        for number, signal_number in look.endings:
            self._by_number[number].end_for_limit(signal_number)
        self._host.loop.call_after(look.next_ns / 1e9, self._look_for_hangs)

    # --- what others ask ---

    @property
    def failures(self) -> list[ModelVersion]:
        """The versions that did not load."""
        return [version for version in self.versions if version.state is VersionState.UNAVAILABLE]

    @property
    def num_instances_up(self) -> int:
        """Instances that batches may go to."""
        return sum(version.num_instances_up for version in self.versions)

    @property
    def num_instances(self) -> int:
        """Instances that there should be; a version that did not load has none."""
        return sum(version.num_instances for version in self.versions if version.state is not VersionState.UNAVAILABLE)

    def messages(self) -> list[Message]:
        """What a front end that has just joined must hear."""
        return [version.message() for version in self.versions]

    def tell_batcher(self) -> None:
        """A batcher that takes a dead one's place hears of every version that has a queue."""
        for version in self.versions:
            if version.is_config_final and (version.is_failed or version.state is not VersionState.UNAVAILABLE):
                self._host.star.tell_batcher(_batcher_message(version))
            if version.is_failed:
                self._host.star.tell_batcher({"op": "model_failed", "model": version.model_id})

    def kill_owner(self, owner: int) -> bool:
        """End the worker whose memory `owner` is; False where no worker has that owner id."""
        for instance in self._by_number.values():
            if instance.owner == owner:
                instance.kill()
                return True
        return False

    def stop(self, then: Callable[[], None]) -> None:
        """End all instances; `then` is called after the last."""
        self._on_stopped = then
        running = [instance for instance in self._by_number.values() if instance.state is not InstanceState.STOPPED]
        if not running:
            self._on_stopped = None
            then()
        for instance in running:
            instance.stop()


def _batcher_message(version: ModelVersion) -> Message:
    return {
        "op": "model",
        "model": version.model_id,
        "row": version.row,
        "config": version.config,
        "may_run_again": may_run_again(version.config),
    }


def no_models_error() -> ShoalError:
    """Triton's sentence for a start-up on which a model failed."""
    return InternalError("failed to load all models")
