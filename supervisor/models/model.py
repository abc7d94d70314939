"""One model: the versions that clients know of, the load that is under way, and the switch from one to the other.

    load ─► fresh versions come up, hidden where an older copy serves ─all up─► published, all at once; what they
    replace and what is no longer wanted is retired      ─one fails─► all fresh ones go, what served goes on serving

Runs in the supervisor. One load at a time: other loads, and unloads, wait until it has ended, in the order they came.
Its outcome is called once. An unexpected error in a load fails that load.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol

from shoal import errors
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.messages.message import Message
from shoal.messages.to_client import ModelForgotten
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_VERSION, UNLOADED, ModelVersion, VersionState
from shoal.repository.plan import plan
from shoal.supervisor.failure_domains import bound, run_in
from shoal.supervisor.models.loading import Loading
from shoal.supervisor.models.served import Served
from shoal.supervisor.models.version_owner import Outcome, Owner

_log = logging.getLogger(__name__)

P = ParamSpec("P")


class Registry(Protocol):
    """What a model needs of all models together."""

    @property
    def num_retries(self) -> int:
        """How often a version that cannot be loaded is tried again at once."""
        ...

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        """A version, not started. Raises UnavailableError where there are too many."""
        ...

    def create_problem(self, identifier: ModelIdentifier, error: ShoalError, *, is_polled: bool = True) -> ModelVersion:
        """What stands for a model of which no version is known, and says why."""
        ...

    def queue(self, served: Served) -> None:
        """Load it as soon as it is its turn."""
        ...

    def settled(self, served: Served) -> None:
        """Its load is over, for better or worse: it is another's turn."""
        ...

    def release(self, served: Served) -> None:
        """Nothing is left of it."""
        ...

    def settle_retired(self, then: Callable[[], None]) -> None:
        """Call `then` once all versions retired before that have no open request are ending."""
        ...

    def tell(self, messages: Sequence[Message], then: Callable[[], None]) -> None:
        """Front ends hear of it; `then` when all act upon it, and the batcher upon what it was told before."""
        ...


class Model:
    """A model by its identifier."""

    def __init__(self, identifier: ModelIdentifier, registry: Registry) -> None:
        self.identifier = identifier
        self._registry = registry
        # Changed by loads and unloads: by number, the copy of each version that clients know of; instead of all of
        # them, what is wrong with a model whose versions are unknown.
        self.versions: dict[int, Served] = {}
        self.problem: ModelVersion | None = None
        self._loading: Loading | None = None
        self._given: FoundModel | None = None  # what serves, where its configuration came with a request
        self._turns: deque[Callable[[], None]] = deque()  # loads and unloads that wait for the one under way
        self._takes_turns = False  # whether one of them is being begun
        self._ends: list[tuple[set[Served], Callable[[], None]]] = []  # what waits until these versions have ended

    @property
    def title(self) -> str:
        """For the log."""
        return f"model '{self.identifier}'"

    def contain(self, _error: Exception) -> None:
        """As a failure domain, of an unload that no question asked for: the log says it all."""

    @property
    def is_loading(self) -> bool:
        """Whether a load is under way."""
        return self._loading is not None

    @property
    def is_unloaded(self) -> bool:
        """Whether nothing of it is left, or will be soon."""
        return self.problem is None and not any(each.is_there for each in self.versions.values())

    @property
    def is_wanted(self) -> bool:
        """Whether a version of it serves or should: only then it is meant by its name where others bear that, too."""
        return any(not each.version.is_unloaded for each in self.versions.values())

    @property
    def serving(self) -> dict[int, Served]:
        """The versions that answer requests."""
        return {number: each for number, each in self.versions.items() if each.version.state is VersionState.READY}

    @property
    def rows(self) -> list[ModelVersion]:
        """What clients know of."""
        problem = [] if self.problem is None else [self.problem]
        return problem + [self.versions[number].version for number in sorted(self.versions)]

    # --- load ---

    def with_kept_config(self, found: FoundModel) -> FoundModel:
        """The model as it was found, or with the configuration that came with an earlier request: as Triton, the server
        keeps that until something changes in the model's directory, or the model is unloaded."""
        given = self._given
        if given is None or found.is_given:
            return found
        is_unchanged = (found.directory, found.fingerprint) == (given.directory, given.fingerprint)
        return given if is_unchanged else found

    def load(self, found: FoundModel, outcome: Outcome) -> None:
        """Serve what was found; `outcome` when it serves, or does not and everything is as it was."""
        if self._loading is not None:
            self._turns.append(bound(lambda: self.load(found, outcome)))
            return
        self._loading = Loading(found, outcome, self._on_fault)
        run_in(self._loading, self._load, self._loading)

    def _load(self, loading: Loading) -> None:
        found = loading.found = self.with_kept_config(loading.found)
        if found.error is not None:
            self._end_loading(self._refuse, loading, found.error)
            return
        todo = plan({number: each.source for number, each in self.serving.items()}, found)
        loading.is_change = bool(todo.fresh or todo.resized or todo.dropped)
        loading.missing.update(todo.fresh, todo.resized)
        for number in todo.fresh:
            self._begin(loading, number)
        for number in todo.resized:
            self._resize(loading, number)
        if not (todo.fresh or todo.resized):
            self._settle(loading)  # else the last that arrives, or is missed, settles it

    def _on_fault(self, loading: Loading, failure: ShoalError) -> None:
        """An unexpected error in a load fails all of it, or is its outcome where it was being put in force."""
        if loading is self._loading:
            loading.errors.update(dict.fromkeys(loading.found.versions or (NO_VERSION,), failure))
            run_in(loading, self._settle, loading)
        else:
            loading.end(failure)

    def refuse_while_loading(self) -> None:
        """Raises InternalError, Triton's sentence."""
        if self._loading is not None:
            raise InternalError(
                f"a related model '{self.identifier}' to a load/unload request is currently loading or unloading"
            )

    def _refuse(self, loading: Loading, error: ShoalError) -> None:
        """What lies on disk cannot be loaded at all."""
        found = loading.found
        _log.error("failed to load '%s': %s", self.identifier, error)
        if self.serving:
            self._note(error)
        elif self.problem is not None or not found.versions:
            self.problem = self._registry.create_problem(self.identifier, error, is_polled=bool(found.config))
        else:
            for number in found.versions:
                self._replace(number, self._registry.create(found, number, self))
                self.versions[number].refuse(error)
        self._tell(self.rows, lambda: loading.end(error))

    def _note(self, error: ShoalError) -> None:
        """The versions that go on serving say why nothing newer does."""
        for served in self.serving.values():
            served.version.reason = f"serving what was loaded before: {errors.index_reason(error)}"

    def _begin(self, loading: Loading, number: int) -> None:
        loading.num_tries[number] += 1
        loading.missing.add(number)
        try:
            served = self._registry.create(loading.found, number, self)
        except ShoalError as error:
            self._missed(loading, number, error)
            return
        loading.fresh[number] = served
        if number not in self.serving:
            self.problem = None
            self._replace(number, served)
        self._registry.queue(served)

    def _replace(self, number: int, served: Served) -> None:
        """Clients hear of this copy from now on. One whose instances die again and again is still there, and goes."""
        if (failed := self.versions.get(number)) is not None and failed.is_there:
            failed.retire()
        self.versions[number] = served

    def _resize(self, loading: Loading, number: int) -> None:
        served = self.serving[number]

        def resized(error: ShoalError | None) -> None:
            if error is None:
                served.source = served.source._replace(config=loading.found.config)
                self._arrived(loading, number)
            else:
                self._missed(loading, number, error)

        try:
            served.resize(loading.found.config["instance_group"], resized)
        except ShoalError as error:
            self._missed(loading, number, error)

    def _arrived(self, loading: Loading, number: int) -> None:
        loading.missing.discard(number)
        if not loading.missing and loading is self._loading:
            self._settle(loading)

    def _missed(self, loading: Loading, number: int, error: ShoalError) -> None:
        loading.errors[number] = error
        self._arrived(loading, number)

    def _settle(self, loading: Loading) -> None:
        """Everything has come up, or has not."""
        self._end_loading(self._give_up if loading.errors else self._switch, loading)

    def _end_loading(self, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Act upon the result of the load under way, then begin the loads and unloads that wait, up to the first load
        that does not end at once."""
        self._loading = None
        try:
            act(*args, **kwargs)
        finally:
            if not self._takes_turns:  # else _take_turns has begun this load, and begins the next one
                self._take_turns()

    def _take_turns(self) -> None:
        self._takes_turns = True
        try:
            while self._turns and self._loading is None:
                self._turns.popleft()()
        finally:
            self._takes_turns = False

    def _give_up(self, loading: Loading) -> None:
        for served in loading.fresh.values():
            run_in(served, served.discard)
        if not self.versions:
            self.problem = self._registry.create_problem(self.identifier, next(iter(loading.errors.values())))
        reasons = "".join(
            f"version {number} is at UNAVAILABLE state: {errors.index_reason(error)};\n"
            for number, error in sorted(loading.errors.items())
        )
        error = InvalidArgumentError(f"load failed for model '{self.identifier}': {reasons}")
        if self.serving:
            self._note(next(iter(loading.errors.values())))
        self._tell(self.rows, lambda: loading.end(error))

    def _switch(self, loading: Loading) -> None:
        """The one moment at which clients go from the old versions to the new ones."""
        wanted = loading.found.versions
        retired = [each for number, each in self.versions.items() if number not in wanted and each.is_there]
        for served in retired:
            served.version.move(VersionState.UNLOADING)
        for number, served in loading.fresh.items():
            known = self.versions[number]
            if known is not served:
                retired.append(known)
            self.versions[number] = served
            served.publish()
        for served in self.serving.values():
            served.version.reason = ""
        self._given = loading.found if loading.found.is_given else None
        if loading.is_change:
            _log.info("successfully loaded '%s'", self.identifier)

        # First what is new: a client that asks for no version must find one at any time.
        rows = sorted(self.rows, key=lambda version: version.state is VersionState.UNLOADING)
        messages, replaced = [version.message() for version in rows], tuple(retired)
        self._retire(messages, retired, lambda: self._await_idle(replaced, lambda: loading.end(None)))

    def _await_idle(self, retired: Sequence[Served], then: Callable[[], None]) -> None:
        """`then` when those of the retired versions that have no request to answer have finalised, as in Triton."""
        if retired:
            self._registry.settle_retired(lambda: self._await_end([each for each in retired if each.is_ending], then))
        else:
            then()

    def _await_end(self, versions: Sequence[Served], then: Callable[[], None]) -> None:
        self._ends.append((set(versions), bound(then)))
        self._tell_ended()

    def _tell_ended(self) -> None:
        ended, self._ends = (
            [then for missing, then in self._ends if not missing],
            [each for each in self._ends if each[0]],
        )
        for then in ended:
            then()

    # --- unload ---

    def unload(self, then: Callable[[], None]) -> None:
        """Answer nothing more; `then` when clients know, while what was accepted is still answered."""
        if self._loading is not None:
            self._turns.append(bound(lambda: self.unload(then)))
            return
        self._given = None
        leaving = [each for each in self.versions.values() if each.is_there]
        for served in self.versions.values():
            if served in leaving:
                served.version.move(VersionState.UNLOADING)
            elif served.version.state is VersionState.UNAVAILABLE:
                served.version.reason = UNLOADED
        messages: list[Message] = [version.message() for version in self.rows if version is not self.problem]
        if self.problem is not None:
            messages.append(ModelForgotten(*self.identifier, NO_VERSION))
            self.problem = None
        self._retire(messages, leaving, then)

    def _retire(self, messages: Sequence[Message], leaving: list[Served], then: Callable[[], None]) -> None:
        """Retire versions, and call `then`, when clients act upon the messages, which say that the versions leave.

        Where an unexpected error keeps the messages from clients, the versions are retired at once: clients find out
        when the batcher refuses their requests.
        """

        def retire() -> None:
            while leaving:
                served = leaving.pop(0)
                run_in(served, served.retire)

        def told() -> None:
            retire()
            then()

        try:
            self._registry.tell(messages, told)
        except BaseException:
            retire()
            raise

    def when_ended(self, then: Callable[[], None]) -> None:
        """`then` when the versions that are being unloaded have ended; at once where there are none."""
        leaving = [each for each in self.versions.values() if each.version.state is VersionState.UNLOADING]
        self._await_end(leaving, then)

    # --- what becomes of versions ---

    def on_ready(self, served: Served) -> None:
        """It has come up; it serves when all the others of its load have."""
        run_in(self._loading, self._came_up, served)

    def _came_up(self, served: Served) -> None:
        self._registry.settled(served)
        loading, number = self._loading, served.version.version
        if loading is not None and loading.fresh.get(number) is served:
            self._arrived(loading, number)

    def on_load_failed(self, served: Served, error: ShoalError) -> None:
        """Another attempt, or the load fails."""
        run_in(self._loading, self._failed_to_load, served, error)

    def _failed_to_load(self, served: Served, error: ShoalError) -> None:
        self._registry.settled(served)
        loading, number = self._loading, served.version.version
        if loading is None or loading.fresh.get(number) is not served:
            return
        del loading.fresh[number]
        if loading.num_tries[number] <= self._registry.num_retries:
            self._begin(loading, number)
        else:
            self._missed(loading, number, error)

    def on_changed(self, served: Served) -> None:
        """Clients hear of what they know of."""
        if self.versions.get(served.version.version) is served:
            self._tell([served.version])

    def on_over(self, served: Served) -> None:
        """It has drained and ended."""
        if served.version.state is VersionState.UNLOADING:
            served.version.move(VersionState.UNAVAILABLE, UNLOADED)
        self._registry.release(served)
        self.on_changed(served)
        for missing, _ in self._ends:
            missing.discard(served)
        self._tell_ended()

    def _tell(self, versions: Sequence[ModelVersion], then: Callable[[], None] = lambda: None) -> None:
        self._registry.tell([version.message() for version in versions], then)
