"""All models of the server and their versions: which model a name means, how loads have ended, versions' ids and rows,
how many load at once, and their announcement.

Runs in the supervisor. A model that fails to load leaves the others alone; the index says why.
"""

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from shoal import errors, temporary_folders
from shoal.errors import InternalError, NoModelError, NotFoundError, ShoalError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.shared import Ping, PoisonFound
from shoal.messages.to_client import ModelChanged
from shoal.model_config.ensemble import is_ensemble, steps
from shoal.model_config.messages import Config
from shoal.open_files import explain
from shoal.repository.found import FoundModel, PollResult
from shoal.repository.identifier import ModelIdentifier, only_model
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, ModelVersion, VersionState
from shoal.repository.plan import source_of
from shoal.shm.counters import MAX_ROWS
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, Task, gather, shared
from shoal.supervisor.failure_domains import contained, report
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.models.load_slots import LoadSlots
from shoal.supervisor.models.model import Model, UnversionedTraffic
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.served_ensemble import ServedEnsemble
from shoal.supervisor.models.served_version import ServedVersion

_log = logging.getLogger(__name__)


class Models:
    """Every model for which a load has been requested, and all their versions.

    `on_changed` is called after each announcement, `discard` removes a directory that was made for one load, `forget`
    removes copies of versions other than those given.
    """

    def __init__(
        self,
        context: InstanceContext,
        roster: Roster,
        on_changed: Callable[[], None],
        discard: Callable[[Path], None],
        forget: Callable[[Collection[Path]], None],
    ) -> None:
        self.loop = context.loop
        #: The version for requests that name none (rollouts.py). Set once.
        self.traffic: UnversionedTraffic | None = None
        #: Looks into a model's directory again (processes/repository.py). Set once.
        self.look_at: Callable[[FoundModel], Future[FoundModel]] | None = None
        self._context = context
        self._roster = roster
        self._on_changed = on_changed
        self._discard = discard
        self._forget = forget
        self.ids = itertools.count(1)  # the next id of a version or split; none is used again
        self._slots = LoadSlots(context.loop, context.options.model_load_thread_count)
        # Changed by loads, and as versions are created and end.
        self.models: dict[ModelIdentifier, Model] = {}
        self._failures: dict[ModelIdentifier, object] = {}  # the circumstances under which the last load failed
        self._served: dict[int, ServedVersion] = {}
        self._free_rows = deque(range(MAX_ROWS))
        self._borrowed: dict[Path, int] = {}  # directories made for one load: the number of versions from each
        self._locks: dict[Path, int] = {}  # the descriptors by which these directories are locked
        #: Whether the server is ending all versions.
        self.is_stopping = False

    # --- load requests and polls ---

    async def load_all(self, poll: PollResult) -> None:
        """Load every model of a poll; returns when each has loaded or failed."""
        for identifier, reason in poll.problems.items():
            self.add_problem(identifier, NoModelError(reason))
        await gather(*[self.load(found) for found in poll.models.values()], return_exceptions=True)

    def load(self, found: FoundModel) -> Task[None]:
        """Serve a model as it was found. The task raises ShoalError where that fails."""
        model = self._model(found.identifier)
        return self.loop.begin(self._load(model, found, model.load(found)))

    async def _load(self, model: Model, found: FoundModel, load: Task[None]) -> None:
        try:
            await load
        except Exception as error:
            self._failures[found.identifier] = self._circumstances(found)
            raise report(model, error) from error
        self._failures[found.identifier] = None

    def is_known_to_fail(self, found: FoundModel) -> bool:
        """Whether the last load has failed, and nothing has changed since in the model's directory or, for an ensemble,
        in the models that it needs. False for a model that could not be read."""
        return bool(found.fingerprint) and self._failures.get(found.identifier) == self._circumstances(found)

    def forget_failures(self, keep: Collection[ModelIdentifier]) -> None:
        """Forget the failures of all models but those to `keep`: the others have been removed."""
        self._failures = {each: failure for each, failure in self._failures.items() if each in keep}

    def _circumstances(self, found: FoundModel) -> object:
        needed = [self.find_composing(each) for each in steps_of(found.config, found.namespace)]
        serving = [model and [each.version.model_id for each in model.serving.values()] for model in needed]
        return found.fingerprint, found.changed_ns, serving

    def with_kept_config(self, found: FoundModel) -> FoundModel:
        """A found model, with an earlier request's configuration if that is kept (Model.with_kept_config)."""
        model = self.models.get(found.identifier)
        return found if model is None else model.with_kept_config(found)

    def add_problem(self, identifier: ModelIdentifier, error: ShoalError) -> None:
        """Note that the directory of this name is no valid model, and announce that to clients."""
        model = self._model(identifier)
        reason = errors.index_reason(error)
        is_known = model.problem is not None and model.problem.reason == reason
        if not (model.serving or is_known):
            _log.error("failed to load '%s': %s", identifier, error)
            model.problem = self.create_problem(identifier, reason, is_polled=False)
            self.send([model.problem.message()])

    def _model(self, identifier: ModelIdentifier) -> Model:
        if identifier not in self.models:
            self.models[identifier] = Model(identifier, self)
        return self.models[identifier]

    # --- what other parts of the supervisor look up ---

    def find_composing(self, identifier: ModelIdentifier) -> Model | None:
        """The model that an ensemble's step names: from the ensemble's own repository if there is one, else the only
        model of that name; None if there is none or the name is ambiguous."""
        model = self.models.get(identifier)
        if model is not None and model.is_wanted:
            return model
        try:
            return self.find(identifier.name)
        except ShoalError:
            return None

    def find(self, name: str) -> Model | None:
        """The model that a request means by a name, or None. Raises InvalidArgumentError if it is ambiguous."""
        bearers = self.find_all(name)
        return only_model(name, [model for model in bearers if model.is_wanted] or bearers)

    def find_all(self, name: str) -> list[Model]:
        """The models of a name: several only with namespacing."""
        return [model for identifier, model in sorted(self.models.items()) if identifier.name == name]

    def get(self, name: str) -> Model:
        """The model that a request means by a name. Raises NotFoundError where there is none or it has no version,
        InvalidArgumentError where the name is ambiguous."""
        model = self.find(name)
        if model is None or not model.versions:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return model

    @property
    def versions(self) -> list[ModelVersion]:
        return [version for identifier in sorted(self.models) for version in self.models[identifier].known_versions]

    def messages(self) -> list[ModelChanged]:
        """The messages that announce all versions to a front end that has just joined."""
        return [version.message() for version in self.versions]

    # --- versions ---

    @property
    def num_retries(self) -> int:
        """The number of further attempts, at once, to load a version whose load has failed."""
        return self._context.options.model_load_retry_count

    def create(self, found: FoundModel, number: int) -> ServedVersion:
        """Make a version, not started and not public. Raises UnavailableError where there are too many, the server
        stops, or there is no memory for the version's statistics."""
        if self.is_stopping:
            raise UnavailableError("the server is stopping")
        if not self._free_rows:
            raise UnavailableError(
                f"model '{found.name}' is one too many: at most {MAX_ROWS} model versions can be loaded"
            )
        try:
            self._context.star.counter_memory.reserve(self._free_rows[0])
        except OutOfSharedMemoryError as error:
            raise UnavailableError(str(error)) from error
        row = self._free_rows.popleft()
        directory, config = found.versions[number].directory, found.config_of(number)
        version = ModelVersion(
            found.name, number, next(self.ids), row, directory, config, found.labels, found.namespace
        )
        if self.traffic is not None:
            self.traffic.mark(version)
        arguments = version, source_of(found, number), self._context, self._roster, self.send
        served = ServedEnsemble(*arguments, self.find_composing) if is_ensemble(config) else ServedVersion(*arguments)
        with contained(served):
            self.loop.after(served.ended, lambda: self._release(served))
        self._served[version.model_id] = served
        if directory.parent in self._borrowed:
            self._borrowed[directory.parent] += 1
        return served

    def create_problem(self, identifier: ModelIdentifier, reason: str, *, is_polled: bool = True) -> ModelVersion:
        """A placeholder version with a reason, for a model of which no version is known."""
        name, namespace = identifier
        ids = next(self.ids), NO_ROW
        version = ModelVersion(name, NO_VERSION, *ids, Path(), namespace=namespace, is_polled=is_polled)
        version.move(VersionState.UNAVAILABLE, reason)
        return version

    def slot_for(self, served: ServedVersion) -> AbstractAsyncContextManager[None]:
        """A place among the versions that load at once. An ensemble needs none: it waits for its steps' models,
        and must not keep these waiting."""
        return nullcontext() if isinstance(served, ServedEnsemble) else self._slots.taken(served.version.identifier)

    # --- messages to clients and batcher ---

    def announce(self, messages: Sequence[Message]) -> Future[None]:
        """Send messages to clients. The future is done when front ends have applied them, and the batcher has applied
        what was sent to it before."""
        self._refresh()
        applied = self._context.star.announce_to_clients(messages)
        self._on_changed()
        return applied

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages about changes that no flow waits for: no client acknowledges them."""
        self._refresh()
        self._context.star.send_to_clients(messages)
        self._on_changed()

    def _refresh(self) -> None:
        """Bring ensembles and divisions of traffic up to date with other models, before a change is sent."""
        for served in tuple(self._served.values()):
            if isinstance(served, ServedEnsemble):
                with contained(served):  # first: what follows may end a version that is one of the ensemble's steps
                    served.look()
        if self.traffic is not None:
            self.traffic.refresh()

    def settle(self) -> Future[None]:
        """A future that is done when clients and the batcher have applied everything sent so far."""
        return self._context.star.announce_to_clients([Ping()])

    async def settle_retired(self) -> None:
        """Return once all versions that were retired before this call, and have no open request, are ending. The
        batcher reports a drained version right after the message that it is handling, so perhaps after it has
        acknowledged the first ping, but always before it acknowledges the second."""
        star = self._context.star
        for _ in range(2):
            await star.acknowledgements.announce(star.to_batcher(Ping()))

    def introduce(self) -> None:
        """Send a successor every version that has a queue."""
        for served in self._served.values():
            served.introduce()
        if self.traffic is not None:
            self.traffic.introduce()

    def introduce_retiring(self) -> None:
        """Send a successor, which has been sent the workers, the versions that retire."""
        for served in self._served.values():
            served.introduce_retiring()

    def on_drained(self, model_id: int) -> None:
        """End a retiring version: the batcher has no more requests of it."""
        if model_id in self._served:
            self._served[model_id].on_drained()

    def on_poison(self, message: PoisonFound) -> None:
        """Remember a request that ends a version's instances, for the batcher's successor."""
        if message.model_id in self._served:
            self._served[message.model_id].on_poison(message)

    # --- directories made for one load ---

    def lend(self, directory: Path) -> None:
        """Take over a directory made for one load, locked from now on; it is discarded when every version loaded from
        it has ended. Raises UnavailableError where it cannot be locked."""
        try:
            self._locks[directory] = temporary_folders.hold(directory)
        except OSError as error:
            raise UnavailableError(f"the files that came with the load are not to be had: {explain(error)}") from error
        self._borrowed[directory] = 0

    def is_lent(self, directory: Path) -> bool:
        """Whether a directory was made for one load, and is in use."""
        return directory in self._borrowed

    def disown(self, directory: Path) -> None:
        """Leave a directory to the process that made it: its load has failed."""
        if self._borrowed.pop(directory, None) is not None:
            os.close(self._locks.pop(directory))

    def _give_back(self, directory: Path) -> None:
        if directory in self._borrowed:
            self._borrowed[directory] -= 1
            if self._borrowed[directory] <= 0:
                del self._borrowed[directory]
                self._discard(directory)
                os.close(self._locks.pop(directory))

    # --- the end ---

    def _release(self, served: ServedVersion) -> None:
        version = served.version
        self._served.pop(version.model_id, None)
        self._context.metrics.forget(version.model_id)
        self._context.star.payloads.ensembles.discard(version.model_id)
        self._free_rows.append(version.row)
        self._give_back(version.version_dir.parent)
        self._forget([each.version.version_dir for each in self._served.values()])

    async def stop(self) -> None:
        """End all instances; returns after the last has ended."""
        self.is_stopping = True
        leaving = tuple(self._served.values())
        for served in leaving:
            served.stop()
        await gather(*[shared(served.ended) for served in leaving])


def steps_of(config: Config, namespace: str) -> list[ModelIdentifier]:
    """The models that an ensemble's steps name, each once, in the ensemble's own repository; none for other models."""
    return [ModelIdentifier(name, namespace) for name in dict.fromkeys([step["model_name"] for step in steps(config)])]


def no_models_error() -> ShoalError:
    """The error, in Triton's words, of a start at which a model failed to load."""
    return InternalError("failed to load all models")
