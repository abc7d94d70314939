"""One model: the versions that clients may use, and the coroutines that load and unload them.

    load ─► fresh versions come up, hidden where an older copy serves ─all up─► published, all at once; what they
    replace and what is no longer wanted is retired      ─one fails─► all fresh ones go, what served goes on serving

Runs in the supervisor. Loads and unloads of a model run one at a time, in the order of their requests. An unexpected
error in a load fails that load.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from shoal import errors
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.messages.message import Message
from shoal.messages.to_client import ModelForgotten
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_VERSION, UNLOADED, ModelVersion, VersionState
from shoal.repository.plan import LoadPlan, plan
from shoal.supervisor.event_loop import EventLoop, Future, Lock, Task, gather, shared
from shoal.supervisor.failure_domains import contained, report
from shoal.supervisor.models.served_version import ServedVersion

_log = logging.getLogger(__name__)


class UnversionedTraffic(Protocol):
    """The version for requests that name none; implemented and described in rollouts.py."""

    def mark(self, version: ModelVersion) -> None: ...
    def refresh(self) -> None: ...
    def introduce(self) -> None: ...
    def hold_back(self, model: "Model", found: FoundModel, fresh: Iterable[ServedVersion]) -> None: ...
    def follow(self, model: "Model", found: FoundModel) -> None: ...


class AllVersions(Protocol):
    """The versions of all models, as a model uses them; implemented and described in models.py."""

    loop: EventLoop
    traffic: UnversionedTraffic | None
    look_at: Callable[[FoundModel], Future[FoundModel]] | None

    @property
    def num_retries(self) -> int: ...
    def create(self, found: FoundModel, number: int) -> ServedVersion: ...
    def create_problem(self, identifier: ModelIdentifier, reason: str, *, is_polled: bool = True) -> ModelVersion: ...
    def is_lent(self, directory: Path) -> bool: ...
    def slot_for(self, served: ServedVersion) -> AbstractAsyncContextManager[None]: ...
    def announce(self, messages: Sequence[Message]) -> Future[None]: ...
    async def settle_retired(self) -> None: ...


class Model:
    """A model, by its identifier, and its versions."""

    def __init__(self, identifier: ModelIdentifier, all_versions: AllVersions) -> None:
        self.identifier = identifier
        self.title = f"model '{identifier}'"  # this model's name in the log
        self._all_versions = all_versions
        self._turn = Lock()
        # Changed by loads and unloads. `versions`: by number, the copy of each version that clients know. `problem`: a
        # placeholder with the reason, where the model's versions cannot be read.
        self.versions: dict[int, ServedVersion] = {}
        self.problem: ModelVersion | None = None
        self._num_loads = 0  # loads under way, and waiting for their turn
        self.given: FoundModel | None = None  # the model that serves, where its configuration came with a request

    def contain(self, _error: Exception) -> None:
        """Do nothing: this domain contains unloads that no question waits for, and their errors are logged."""

    @property
    def is_loading(self) -> bool:
        """Whether a load of this model is under way, or waits for its turn."""
        return self._num_loads > 0

    @property
    def is_unloaded(self) -> bool:
        """Whether all versions of this model are unloaded or being unloaded."""
        return self.problem is None and not any(each.is_there for each in self.versions.values())

    @property
    def is_wanted(self) -> bool:
        """Whether a version of this model serves or should. Of models with the same name, only such a model can be
        meant by it."""
        return self.is_loading or any(not each.version.is_unloaded for each in self.versions.values())

    @property
    def serving(self) -> dict[int, ServedVersion]:
        return {number: each for number, each in self.versions.items() if each.version.state is VersionState.READY}

    @property
    def known_versions(self) -> list[ModelVersion]:
        """All versions of this model, as clients know them."""
        problem = [] if self.problem is None else [self.problem]
        return problem + [self.versions[number].version for number in sorted(self.versions)]

    async def settled(self) -> None:
        """Return once the loads and unloads of this model that are under way now, or wait for their turn, have
        ended."""
        async with self._turn:
            return

    def refuse_while_loading(self) -> None:
        """Raise InternalError, with Triton's sentence, while this model is being loaded or unloaded."""
        if self.is_loading:
            raise InternalError(
                f"a related model '{self.identifier}' to a load/unload request is currently loading or unloading"
            )

    # --- load ---

    def with_kept_config(self, found: FoundModel) -> FoundModel:
        """The model as it was found, or with the configuration that an earlier request gave: like Triton, the server
        keeps that configuration until something changes in the model's directory, or the model is unloaded."""
        given = self.given
        if given is None or found.is_given:
            return found
        is_unchanged = (found.directory, found.fingerprint) == (given.directory, given.fingerprint)
        return given if is_unchanged else found

    def load(self, found: FoundModel) -> Task[None]:
        """Serve what was found on disk. The task raises ShoalError where that fails; the old versions then stay."""
        if self.is_loading:
            _log.info("a load of model '%s' waits: an earlier load of the model is under way", self.identifier)
        self._num_loads += 1
        return self._all_versions.loop.begin(self._load(found))

    async def _load(self, found: FoundModel) -> None:
        failure: ShoalError | None = None
        replaced: Sequence[ServedVersion] = ()
        try:
            async with self._turn:
                try:
                    found, todo, fresh = await self._bring_up_one_state(self.with_kept_config(found))
                except Exception as error:  # noqa: BLE001 - whatever fails in a load fails that load alone
                    failure = report(self, error)
                else:
                    if (traffic := self._all_versions.traffic) is not None:
                        traffic.hold_back(self, found, fresh.values())
                    replaced = self._switch(found, todo, fresh)
                finally:
                    self._num_loads -= 1
                # New versions first: a client that asks for no version must find one at any time.
                announced = sorted(self.known_versions, key=lambda version: version.state is VersionState.UNLOADING)
                applied = self._all_versions.announce([version.message() for version in announced])
            await applied
        finally:
            self._retire(replaced)
        if failure is not None:
            raise failure
        if (traffic := self._all_versions.traffic) is not None:
            traffic.follow(self, found)
        if replaced:
            # As in Triton, the replaced versions that have no open request have ended when a load returns.
            await self._all_versions.settle_retired()
            await gather(*[shared(each.ended) for each in replaced if each.is_ending])

    async def _bring_up_one_state(self, found: FoundModel) -> tuple[FoundModel, LoadPlan, dict[int, ServedVersion]]:
        """Bring up the model that was found, and once more if its files have changed meanwhile, because its instances
        may have read different states of them. Returns the model that was brought up, its plan and the fresh
        versions."""
        todo, fresh, changed = await self._bring_up(found)
        if changed is None:
            return found, todo, fresh
        _log.info("the files of model '%s' have changed while it was loading: it is loaded once more", self.identifier)
        for served in fresh.values():
            served.discard()
        await gather(*[shared(served.ended) for served in fresh.values()])
        found = changed
        todo, fresh, changed = await self._bring_up(found)
        if changed is not None:
            _log.warning(
                "the files of model '%s' have changed during both of its loads: its instances may have read different "
                "states of them",
                self.identifier,
            )
        return found, todo, fresh

    async def _look_again(self, found: FoundModel, fresh: Collection[ServedVersion]) -> FoundModel | None:
        """The model as it is now, where its files have changed since it was found; None where they have not, or no
        version has instances that could differ.

        None also for files that came with the request: only the model itself writes there, and the directory goes with
        the versions that a second load would end.
        """
        versions = self._all_versions
        may_change = found.may_change and not versions.is_lent(found.directory)
        if versions.look_at is None or not may_change or all(each.version.num_instances < 2 for each in fresh):
            return None
        try:
            now = await versions.look_at(found)
        except ShoalError as error:
            _log.error("whether the files of model '%s' have changed is not known: %s", self.identifier, error)
            return None
        return None if now.fingerprint == found.fingerprint else now

    def _refuse(self, found: FoundModel, error: ShoalError) -> None:
        """Note why the model on disk cannot be loaded at all."""
        _log.error("failed to load '%s': %s", self.identifier, error)
        reason = errors.index_reason(error)
        if self.serving:
            self._note(reason)
        elif self.problem is not None or not found.versions:
            self.problem = self._all_versions.create_problem(self.identifier, reason, is_polled=bool(found.config))
        else:
            for number in found.versions:
                self._show(number, self._all_versions.create(found, number))
                self.versions[number].discard(reason)

    def _note(self, reason: str) -> None:
        """Record why a load has failed, as the reason of each version that goes on serving."""
        for served in self.serving.values():
            served.version.reason = f"serving what was loaded before: {reason}"

    async def _bring_up(self, found: FoundModel) -> tuple[LoadPlan, dict[int, ServedVersion], FoundModel | None]:
        """Plan a load, and bring up fresh and resized versions; returns the plan, the fresh versions, and the model as
        it is now if its files have changed meanwhile.

        Raises ShoalError if the model cannot be read, or if a version does not come up; the fresh versions then end:
        once all have come up or failed, or at once after an unexpected error.
        """
        if found.error is not None:
            self._refuse(found, found.error)
            raise found.error
        todo = plan({number: each.source for number, each in self.serving.items()}, found)
        fresh, reasons, begin = dict[int, ServedVersion](), dict[int, str](), self._all_versions.loop.begin
        flows = [begin(self._bring_up_version(found, number, fresh, reasons)) for number in todo.fresh]
        flows += [begin(self._resize(found, number, reasons)) for number in todo.resized]
        try:
            await gather(*flows)
        except Exception as error:  # noqa: BLE001 - a bug: flows note expected errors in `reasons`
            for flow in flows:
                flow.cancel()
            reasons = dict.fromkeys((*todo.fresh, *todo.resized), errors.index_reason(report(self, error)))
        changed = None if reasons else await self._look_again(found, fresh.values())
        up = [served for served in fresh.values() if served.version.state is VersionState.LOADING]
        for served in fresh.values():
            if served not in up:  # a version may come up, and fail while others are still coming up
                reasons.setdefault(served.version.version, served.version.reason)
        if not reasons:
            return todo, fresh, changed
        for served in up:
            with contained(served):
                served.discard()
        first_reason = reasons[min(reasons)]
        if not self.versions:
            self.problem = self._all_versions.create_problem(self.identifier, first_reason)
        self._note(first_reason)
        sentences = "".join(f"version {each} is at UNAVAILABLE state: {reasons[each]};\n" for each in sorted(reasons))
        raise InvalidArgumentError(f"load failed for model '{self.identifier}': {sentences}")

    async def _bring_up_version(
        self, found: FoundModel, number: int, fresh: dict[int, ServedVersion], reasons: dict[int, str]
    ) -> None:
        """Bring up a version, and add each copy that is tried to `fresh`; where the last one does not come up, add the
        reason to `reasons`."""
        for num_left in range(self._all_versions.num_retries, -1, -1):
            try:
                served = fresh[number] = self._all_versions.create(found, number)
                if number not in self.serving:
                    self._show(number, served)
                async with self._all_versions.slot_for(served):
                    await served.load()
                return
            except ShoalError as error:
                if not num_left:
                    reasons[number] = errors.index_reason(error)

    def _show(self, number: int, served: ServedVersion) -> None:
        """Make a version public, and retire the older copy, even one whose instances die again and again."""
        known = self.versions.get(number)
        if known is not None and known.is_there:
            known.retire()
        self._publicise(number, served)
        self.problem = None

    def _publicise(self, number: int, served: ServedVersion) -> None:
        """Make a version public in place of an older copy."""
        if number in self.versions:
            self.versions[number].is_public = False
        self.versions[number], served.is_public = served, True

    async def _resize(self, found: FoundModel, number: int, reasons: dict[int, str]) -> None:
        """Have a version serve with other instances; where these do not come up, add the reason to `reasons`."""
        served = self.serving[number]
        try:
            config = found.config_of(number)
            await shared(served.resize(config["instance_group"]))
            served.source = served.source._replace(config=config)
        except ShoalError as error:
            reasons[number] = errors.index_reason(error)

    def _switch(self, found: FoundModel, todo: LoadPlan, fresh: dict[int, ServedVersion]) -> Sequence[ServedVersion]:
        """Switch clients from old versions to new ones, without an await; returns the versions to retire."""
        replaced = [each for number, each in self.versions.items() if number not in found.versions and each.is_there]
        for served in replaced:
            served.version.move(VersionState.UNLOADING)
        for number, served in fresh.items():
            known = self.versions[number]
            if known is not served:
                replaced.append(known)
            self._publicise(number, served)
            served.publish()
        for served in self.serving.values():
            served.version.reason = ""
        self.given = found if found.is_given else None
        if todo.fresh or todo.resized or todo.dropped:
            _log.info("successfully loaded '%s'", self.identifier)
        return replaced

    # --- unload ---

    async def unload(self) -> None:
        """Accept no more requests; returns when all clients have applied the change. Accepted requests are still
        answered."""
        if self.is_loading:
            _log.info("an unload of model '%s' waits: an earlier load of the model is under way", self.identifier)
        leaving: Sequence[ServedVersion] = ()
        try:
            async with self._turn:
                leaving, messages = self._withdraw()
                applied = self._all_versions.announce(messages)
            await applied
        finally:
            self._retire(leaving)

    def _withdraw(self) -> tuple[Sequence[ServedVersion], list[Message]]:
        """Mark all versions as UNLOADING; returns these, and the messages that announce the change to clients."""
        self.given = None
        leaving = [each for each in self.versions.values() if each.is_there]
        for served in self.versions.values():
            if served in leaving:
                served.version.move(VersionState.UNLOADING)
            elif served.version.state is VersionState.UNAVAILABLE:
                served.version.reason = UNLOADED
        messages: list[Message] = [version.message() for version in self.known_versions if version is not self.problem]
        if self.problem is not None:
            messages.append(ModelForgotten(*self.identifier, NO_VERSION))
            self.problem = None
        return leaving, messages

    def _retire(self, leaving: Sequence[ServedVersion]) -> None:
        """Retire versions: clients know of that or, after an unexpected error, learn of it when the batcher refuses
        their requests."""
        for served in leaving:
            with contained(served):
                served.retire()

    async def ended(self) -> None:
        """Return when all versions that are being unloaded have ended."""
        leaving = [each for each in self.versions.values() if each.version.state is VersionState.UNLOADING]
        await gather(*[shared(each.ended) for each in leaving])
