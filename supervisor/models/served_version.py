"""One version of a model as it is served: its instances, from the first that starts to the last that ends.

    load ─► LOADING ─all up─► ready, for its model to publish ─► READY ─retire─► drained ─► instances end ─► ended
                │                                                  └─resize─► instances come and go, READY all the while
                └─one fails─► UNAVAILABLE, ended

A fresh copy that is loaded beside the serving one is not public: clients do not learn of it until it is published.
Runs in the supervisor.
"""

import logging
from collections.abc import Callable, Sequence

from shoal import errors
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.shared import PoisonFound
from shoal.messages.to_batcher import (
    InstanceGroupsChanged,
    ModelAdded,
    ModelFailed,
    ModelRemoved,
    RetireModel,
)
from shoal.model_config.autocomplete import DEFAULT_MAX_BATCH_SIZE, ModelIO, needs_autocomplete
from shoal.model_config.finish import finish_config
from shoal.model_config.idempotence import may_run_again
from shoal.model_config.messages import Config
from shoal.model_config.normalise import place as place_groups
from shoal.model_config.response_cache import enables_response_cache
from shoal.model_config.shared_process import instances_share_process
from shoal.placement import Placement, place
from shoal.repository.lifecycle import UNLOADED, ModelVersion, VersionState
from shoal.repository.plan import Source, revision
from shoal.supervisor.event_loop import Future, first, reject, resolve, shared
from shoal.supervisor.failure_domains import contained, own_error, report
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.memory.gpu_memory import refuse_full_gpus
from shoal.supervisor.models.config_warnings import check_kinds, warn_of_cache, warn_of_no_tensors
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.shared_process import SharedProcess

_log = logging.getLogger(__name__)

#: Most reports of poison, requests that end instances, kept per version for a batcher's successor: as many as a batcher
#: keeps.
_MAX_POISON = 256


class ServedVersion:
    """A model version and its instances. `send` sends messages to all clients (models.py)."""

    def __init__(
        self,
        version: ModelVersion,
        source: Source,
        context: InstanceContext,
        roster: Roster,
        send: Callable[[Sequence[Message]], object],
    ) -> None:
        self.version = version
        self.title = f"model '{version.identifier}' version {version.version}"  # in the log
        self.source = source
        self._context = context
        self._roster = roster
        self._send = send
        self.ended: Future[None] = context.loop.future()  # done when no instance is left
        self.loaded: Future[None] = context.loop.future()  # done when all have been up; fails if one cannot load
        # Changed as instances come and go.
        self.instances: list[Instance] = []
        self._leaving: list[Instance] = []
        self._fresh: dict[Instance, Instance] = {}  # a fresh instance → the one it replaces
        self._started_s = 0.0
        self._has_come_up = self._is_retiring = False
        self.is_ending = False  # the last request has been answered; instances end or have ended
        self._poison: dict[tuple[int, int], PoisonFound] = {}  # by its sample's digest (suspects.py), latest last
        self._processes: dict[tuple[str, str, int], SharedProcess] = {}  # the processes that instances share
        self._resizes: list[Future[None]] = []
        self._previous_groups: list[Config] = []  # before the first of `_resizes`
        self.is_public = False  # clients know this copy; changed by its model

    def contain(self, error: Exception) -> None:
        """After an unexpected error, fail the load or the resize under way; a version that serves goes on."""
        self.fail(own_error(error))
        self._give_up_resize(own_error(error))

    # --- loading ---

    async def load(self) -> None:
        """Start the instances; returns when all are up. Raises ShoalError if one cannot load; the version has then
        begun to end."""
        version = self.version
        try:
            if self.is_ending:  # the version was unloaded after its creation
                raise UnavailableError(f"{self.title} is unloaded")
            _log.info("loading: %s:%d", version.identifier, version.version)
            self._started_s = self._context.loop.now_s()
            if enables_response_cache(version.config):
                version.is_cached = self._context.options.cache_bytes > 0
                if not version.is_cached:
                    warn_of_cache(version.config)
            await self._start()
        except Exception as error:  # noqa: BLE001 - whatever fails in a load fails that load alone
            self.fail(report(self, error))
        await shared(self.loaded)

    async def _start(self) -> None:
        """Complete the configuration, and start all instances."""
        version, options = self.version, self._context.options
        looks_into_file = needs_autocomplete(version.config) and not options.disable_auto_complete_config
        check_kinds(version.config, cpu_fallback=options.cpu_fallback)
        if looks_into_file:
            version.config = place_groups(version.config, self._gpu_ids)
            version.name_groups()
        else:
            self._finish(None)
        if options.model_load_gpu_limit:
            placements = place(version.config, self._context.machine)
            await refuse_full_gpus(
                self.title, placements, dict(options.model_load_gpu_limit), self._context.gpu_memory, self._context.loop
            )
            if self.loaded.done():  # the version was unloaded meanwhile, or has taken too long to load
                return
        _, self.instances = self._enrol(version.config)
        version.num_instances = len(self.instances)
        self.changed()
        if looks_into_file:  # the first instance reads the model file, and the others wait for its report
            reporter = self.instances[0]
            self._start_instance(reporter)
            await first(reporter.worker.found_io, self.loaded)
            if self.loaded.done():
                return
            self._finish(reporter.worker.found_io.result())
            reporter.finish_config()
        for instance in self.instances:
            if not instance.num_starts:
                self._start_instance(instance)

    @property
    def _gpu_ids(self) -> tuple[int, ...]:
        return self._context.machine.gpu_ids(self.version.config["backend"])

    def _enrol(self, config: Config) -> tuple[Sequence[Placement], list[Instance]]:
        """Place a configuration's instances, and make the new ones. Raises ShoalError, changing nothing."""
        context, placements = self._context, place(config, self._context.machine)
        known = {each.placement.identity for each in self.instances}
        new = [placement for placement in placements if placement.identity not in known]
        started = self._roster.enrol(self.version, new, context, self._on_state)
        for instance in started if instances_share_process(config) else ():
            key = instance.placement.process
            instance.shared_process = self._processes.setdefault(key, SharedProcess(context.loop))
            instance.shared_process.add(instance)
        try:
            context.rate_limits.admit(self.version.model_id, placements)
        except BaseException:
            for instance in started:
                self._dismiss_for_good(instance)
            raise
        return placements, started

    def _finish(self, model_io: ModelIO | None) -> None:
        version = self.version
        settings = self._context.options.backend_settings(version.config["backend"])
        text = settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
        if not text.isdecimal():
            raise InvalidArgumentError(f"--backend-config default-max-batch-size must be a number, got '{text}'")
        version.config = finish_config(version.config, model_io, gpus=self._gpu_ids, default_max_batch_size=int(text))
        version.is_config_final = True
        warn_of_no_tensors(version.config)
        version.name_groups()
        self._context.star.send_to_batcher(self._batcher_message())

    @property
    def is_there(self) -> bool:
        """Whether this version serves, or would if its instances did not die."""
        return self.version.state is VersionState.READY or self.version.is_failed

    def publish(self) -> None:
        """Make the version READY; clients use it once its state is announced."""
        if self.version.state is VersionState.LOADING:
            self.version.move(VersionState.READY)

    def changed(self) -> None:
        """Send this version's state and number of instances to clients, if it is public."""
        if self.is_public:
            self._send([self.version.message()])

    def fail(self, error: ShoalError) -> None:
        """End a version whose load has failed or must not succeed: it is UNAVAILABLE."""
        version = self.version
        if version.state is not VersionState.LOADING or self.is_ending:
            return
        version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
        fields = {"stage": "load", "model": version.name, "version": str(version.version)}
        _log.error("failed to load '%s' version %d: %s", version.identifier, version.version, error, extra=fields)
        reject(self.loaded, error)
        self._end()

    def discard(self, reason: str = UNLOADED) -> None:
        """End a version that is superseded, or that could not be loaded; `reason` is shown in the index."""
        self.version.move(VersionState.UNAVAILABLE, reason)
        self._end()

    # --- what happens to instances ---

    def _start_instance(self, instance: Instance) -> None:
        instance.start()
        with contained(self):
            self._context.loop.start(self._live(instance))

    async def _live(self, instance: Instance) -> None:
        """Run an instance until it has ended for good."""
        try:
            await instance.run()
        except ShoalError as error:
            self._not_up(instance, error)
        self._forget(instance)
        self._check_ended()

    def _not_up(self, instance: Instance, error: ShoalError) -> None:
        """Handle that an instance cannot load: drop it if it was to replace another, else fail the resize or the
        load."""
        is_fresh = instance in self._fresh
        self._forget(instance)
        if is_fresh:
            _log.error("instance '%s' of model '%s' keeps its worker: %s", instance.name, self.version.name, error)
        elif self._has_come_up:
            self._give_up_resize(error)
        else:
            self.fail(error)

    def _on_state(self, instance: Instance) -> None:
        """Handle that an instance has come up, has died, or is FAILED, before other processes learn of it."""
        if instance.state is InstanceState.UP:
            self._on_up(instance)
        elif instance.state is InstanceState.FAILED:
            self._on_failed(instance)
        else:
            self._count()
            self.changed()

    def _on_up(self, instance: Instance) -> None:
        """Handle that an instance is up; when all have come up once, the version's load is over."""
        version = self.version
        if instance in self._fresh:
            self._put_in_place(instance)
        self._count()
        if not self._has_come_up:
            if version.num_instances_up == version.num_instances:
                self._has_come_up = True
                version.load_seconds = self._context.loop.now_s() - self._started_s
                resolve(self.loaded, None)
                return
        elif version.is_failed:
            version.move(VersionState.READY)
        if self._has_come_up:
            again = " again" if instance.num_starts > 1 else ""
            _log.info("instance '%s' of model '%s' is up%s", instance.name, version.name, again)
        self.changed()
        self._check_resized()

    def _on_failed(self, instance: Instance) -> None:
        """If all instances are FAILED, fail the load of a version that is not published yet; make any other UNAVAILABLE
        until an instance is up again."""
        version = self.version
        if not all(each.is_failed for each in self.instances):
            return
        error = UnavailableError(f"all instances died again and again; the last: {instance.worker.error}")
        self.fail(error)  # a version that is not published yet
        if version.state is not VersionState.READY:
            return
        version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
        version.is_failed = True
        _log.error("model '%s' version %d is unavailable: all its instances are FAILED", version.name, version.version)
        self.changed()  # clients first: they then refuse requests before the batcher would
        self._context.star.send_to_batcher(ModelFailed(self.version.model_id))

    def _forget(self, instance: Instance) -> None:
        for instances in (self.instances, self._leaving):
            if instance in instances:
                instances.remove(instance)
        self._fresh.pop(instance, None)
        self._dismiss_for_good(instance)

    def _dismiss_for_good(self, instance: Instance) -> None:
        if instance.shared_process is not None:
            instance.shared_process.remove(instance)
        self._roster.dismiss(instance)

    def _count(self) -> None:
        self.version.num_instances_up = sum(each.state is InstanceState.UP for each in self.instances)

    # --- more instances, or fewer ---

    def resize(self, groups: list[Config]) -> Future[None]:
        """Serve with other instance groups; instances that are in both go on. The future is done when the new ones are
        up, or fails when the previous groups are restored or the version ends.

        Raises ShoalError, and changes nothing, where the groups cannot be placed, or no model file is left.
        """
        version = self.version
        config = place_groups({**version.config, "instance_group": groups}, self._gpu_ids)
        placements, started = self._enrol(config)
        wanted = {placement.identity: placement for placement in placements}
        if not self._resizes:
            self._previous_groups = version.config["instance_group"]
        version.config = config
        version.name_groups()  # reports of deaths name a group by its index in `groups`
        self._context.star.send_to_batcher(InstanceGroupsChanged(version.model_id, version.groups))
        for instance in [each for each in self.instances if each.placement.identity not in wanted]:
            self.instances.remove(instance)
            self._dismiss(instance)
        for instance in self.instances:
            instance.pin(wanted[instance.placement.identity])
        self.instances += started
        version.num_instances = len(self.instances)
        up: Future[None] = self._context.loop.future()
        self._resizes.append(up)
        self._count()
        self.changed()
        for instance in started:
            self._start_instance(instance)
        self._check_resized()
        return up

    def _dismiss(self, instance: Instance) -> None:
        self._leaving.append(instance)
        instance.retire()

    def _check_resized(self) -> None:
        if self._resizes and all(each.has_been_up for each in self.instances):
            resizes, self._resizes = self._resizes, []
            for up in resizes:
                resolve(up, None)

    def _give_up_resize(self, error: ShoalError) -> None:
        """Go back to the groups before the resizes under way; their instances that have come up are retired."""
        resizes, self._resizes = self._resizes, []
        if not resizes:
            return
        _log.error("model '%s' keeps its instances: %s", self.version.name, error)
        try:
            self.resize(self._previous_groups)
            for instance in self.instances:
                instance.has_been_up = True  # a restored instance that cannot load is restarted, like one that died
            self._check_resized()
        except ShoalError as refusal:
            _log.error("model '%s' cannot have its instances back: %s", self.version.name, refusal)
        finally:
            for up in resizes:
                reject(up, error)

    # --- a fresh instance in place of one that has reached a limit ---

    def replace(self, instance: Instance) -> bool:
        """Start a fresh instance that replaces this one when it is up. Returns False while the version loads, resizes,
        ends or replaces another.

        Raises ShoalError where there is no model file or no descriptor for the fresh instance.
        """
        if self._fresh or self._resizes or self._is_retiring or self.is_ending or not self._has_come_up:
            return False
        (fresh,) = self._roster.enrol(self.version, [instance.placement], self._context, self._on_state)
        fresh.take_place_of(instance)
        self._fresh[fresh] = instance
        self._start_instance(fresh)
        return True

    def _put_in_place(self, fresh: Instance) -> None:
        """Let a fresh instance that is up take the place of the old one, which is retired."""
        old = self._fresh.pop(fresh)
        if old in self.instances:
            fresh.pin(old.placement)
            self.instances[self.instances.index(old)] = fresh
            self._dismiss(old)
        else:  # the old instance was removed meanwhile
            self._dismiss(fresh)

    # --- the end ---

    def retire(self) -> None:
        """Answer the accepted requests, then end. Clients have already applied the announcement that no more are
        accepted.

        Requests unanswered after --request-timeout-secs are dropped. By then only clients of streams still wait: other
        requests have timed out.
        """
        if self.is_there:
            self.version.move(VersionState.UNLOADING)
        self._is_retiring = True
        self._context.star.send_to_batcher(RetireModel(self.version.model_id))
        self._context.loop.call_after(self._context.options.request_timeout_secs, self._check_drained)

    def _check_drained(self) -> None:
        if not self.is_ending:
            version, limit_s = self.version, self._context.options.request_timeout_secs
            _log.error(
                "'%s' version %d keeps requests open, %g s after the last was accepted; it is ended",
                version.identifier, version.version, limit_s,
            )  # fmt: skip
            self._end()

    def on_poison(self, message: PoisonFound) -> None:
        """Remember a request that ends instances, for the batcher's successor."""
        key = message.sample_low, message.sample_high
        self._poison.pop(key, None)
        self._poison[key] = message
        if len(self._poison) > _MAX_POISON:
            del self._poison[next(iter(self._poison))]

    def on_drained(self) -> None:
        """End a retiring version: the batcher has no more requests of it."""
        if self._is_retiring:
            self._end()

    def stop(self) -> None:
        """End this version as the server stops: no request is open any more. A version that is not published yet
        becomes UNAVAILABLE."""
        if self.version.state is VersionState.LOADING:
            self.version.move(VersionState.UNAVAILABLE, UNLOADED)
        self._end()

    def _end(self) -> None:
        self.is_ending = True
        self.version.num_instances_up = 0
        resizes, self._resizes = self._resizes, []
        for waiting in (self.loaded, *resizes):
            reject(waiting, UnavailableError(f"{self.title} is unloaded"))
        for instance in [*self.instances, *self._leaving, *self._fresh]:
            if not instance.num_starts:
                self._forget(instance)
            elif instance.state is not InstanceState.STOPPED:
                instance.stop()
        self._check_ended()

    def _check_ended(self) -> None:
        if not self.is_ending or self.ended.done() or self.instances or self._leaving or self._fresh:
            return
        self._context.rate_limits.dismiss(self.version.model_id)
        if self.version.is_config_final:
            self._context.star.send_to_batcher(ModelRemoved(self.version.model_id))
        if self.version.state is VersionState.UNLOADING:
            self.version.move(VersionState.UNAVAILABLE, UNLOADED)
        self.ended.set_result(None)
        self.changed()

    # --- messages to the batcher ---

    def introduce(self) -> None:
        """Send a batcher's successor this version's configuration, poison and failure, before it is sent the
        workers."""
        if self.version.is_config_final and not self.ended.done():
            self._context.star.send_to_batcher(self._batcher_message())
            for known in self._poison.values():
                self._context.star.send_to_batcher(known)
        if self.version.is_failed:
            self._context.star.send_to_batcher(ModelFailed(self.version.model_id))

    def introduce_retiring(self) -> None:
        """Send a batcher's successor, which has been sent the workers, that this version is retiring."""
        if self._is_retiring and not self.ended.done():
            self._context.star.send_to_batcher(RetireModel(self.version.model_id))

    def _batcher_message(self) -> Message:
        version = self.version
        return ModelAdded(
            version.model_id,
            version.row,
            version.config,
            version.version,
            may_run_again(version.config),
            self.revision,
            version.groups,
        )

    @property
    def revision(self) -> str:
        """The version's revision: equal wherever the same files are served under this name and version."""
        return revision(self.version.name, self.version.version, self.source)
