"""All models of the server: which there are, whose turn it is to load, what front ends and batcher hear of them.

Runs in the supervisor. One model that fails to load leaves the others alone; the index says why.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from shoal import errors
from shoal.errors import InternalError, NoModelError, NotFoundError, ShoalError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.shared import Ping
from shoal.messages.to_client import ModelChanged
from shoal.model_config.ensemble import is_ensemble, steps
from shoal.repository.found import FoundModel, Poll
from shoal.repository.identifier import ModelIdentifier, meant_by
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, ModelVersion, VersionState
from shoal.repository.plan import source_of
from shoal.shm.counters import MAX_ROWS
from shoal.supervisor.failure_domains import run_in
from shoal.supervisor.host import Host
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.served import Served
from shoal.supervisor.models.served_ensemble import ServedEnsemble
from shoal.supervisor.models.version_owner import Outcome, Owner

_log = logging.getLogger(__name__)


class Models:
    """Every model that has ever been asked for, and every version that has not ended yet."""

    def __init__(
        self,
        host: Host,
        on_changed: Callable[[], None],
        discard: Callable[[Path], None],
        forget: Callable[[Collection[Path]], None],
    ) -> None:
        self._host = host
        self._on_changed = on_changed
        self._discard = discard
        self._forget = forget
        self._ids = itertools.count(1)
        # Changed while models load, change and end.
        self.models: dict[ModelIdentifier, Model] = {}
        self._served: dict[int, Served] = {}
        self._waiting: deque[Served] = deque()
        self._loading: set[Served] = set()
        self._free_rows = deque(range(MAX_ROWS))
        self._borrowed: dict[Path, int] = {}
        self._failures: dict[ModelIdentifier, object] = {}  # under which circumstances the last load has failed
        self._on_stopped: Callable[[], None] | None = None

    # --- what a load request or a poll wants ---

    def load_all(self, poll: Poll, then: Callable[[], None]) -> None:
        """Load every model that was found; `then` when each has loaded or failed."""
        for identifier, reason in poll.problems.items():
            self.add_problem(identifier, NoModelError(reason))
        num_missing = len(poll.models)

        def settled(_error: ShoalError | None) -> None:
            nonlocal num_missing
            num_missing -= 1
            if not num_missing:
                then()

        if not num_missing:
            then()
        for found in poll.models.values():
            self.load(found, settled)

    def load(self, found: FoundModel, outcome: Outcome) -> None:
        """Serve a model as it was found; `outcome` when it serves, or does not."""

        def ended(error: ShoalError | None) -> None:
            self._failures[found.identifier] = None if error is None else self._circumstances(found)
            outcome(error)

        self._model(found.identifier).load(found, ended)

    def is_known_to_fail(self, found: FoundModel) -> bool:
        """Whether the last load has failed, and nothing has changed since in the model's directory or, for an ensemble,
        in the models that it needs. Where it could not be read there is no telling."""
        return bool(found.fingerprint) and self._failures.get(found.identifier) == self._circumstances(found)

    def forget_failures(self, keep: Collection[ModelIdentifier]) -> None:
        """Forget the failures of models that are not among those to `keep`: they are gone."""
        self._failures = {each: failure for each, failure in self._failures.items() if each in keep}

    def _circumstances(self, found: FoundModel) -> object:
        names = [step["model_name"] for step in steps(found.config)]
        needed = [self.find_composing(ModelIdentifier(name, found.namespace)) for name in names]
        serving = [model and [each.version.model_id for each in model.serving.values()] for model in needed]
        return found.fingerprint, found.changed_ns, serving

    def with_kept_config(self, found: FoundModel) -> FoundModel:
        """See Model.with_kept_config."""
        model = self.models.get(found.identifier)
        return found if model is None else model.with_kept_config(found)

    def lend(self, directory: Path) -> None:
        """A directory made for one load; it is discarded when nothing that was loaded from it is left."""
        self._borrowed.setdefault(directory, 0)

    def disown(self, directory: Path) -> None:
        """The load it was made for has failed: it is no longer ours to discard."""
        self._borrowed.pop(directory, None)

    def add_problem(self, identifier: ModelIdentifier, error: ShoalError) -> None:
        """What lies on disk under this name is no model."""
        model = self._model(identifier)
        is_known = model.problem is not None and model.problem.reason == errors.index_reason(error)
        if not (model.serving or is_known):
            _log.error("failed to load '%s': %s", identifier, error)
            model.problem = self.create_problem(identifier, error, is_polled=False)
            self.tell([model.problem.message()], _nothing)

    def _model(self, identifier: ModelIdentifier) -> Model:
        if identifier not in self.models:
            self.models[identifier] = Model(identifier, self)
        return self.models[identifier]

    # --- what a model needs of all of them ---

    @property
    def num_retries(self) -> int:
        """How often a version that cannot be loaded is tried again at once."""
        return self._host.options.model_load_retry_count

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        """A version, not started. Raises UnavailableError where there are too many."""
        if not self._free_rows:
            raise UnavailableError(
                f"model '{found.name}' is one too many: at most {MAX_ROWS} model versions can be loaded"
            )
        row = self._free_rows.popleft()
        directory = found.versions[number].directory
        version = ModelVersion(
            found.name, number, next(self._ids), row, directory, found.config, found.labels, found.namespace
        )
        source = source_of(found, number)
        if is_ensemble(found.config):
            served: Served = ServedEnsemble(version, source, self._host, owner, self.find_composing)
        else:
            served = Served(version, source, self._host, owner)
        self._served[version.model_id] = served
        if directory.parent in self._borrowed:
            self._borrowed[directory.parent] += 1
        return served

    def create_problem(self, identifier: ModelIdentifier, error: ShoalError, *, is_polled: bool = True) -> ModelVersion:
        """What stands for a model of which no version is known, and says why."""
        name, namespace = identifier
        ids = next(self._ids), NO_ROW
        version = ModelVersion(name, NO_VERSION, *ids, Path(), namespace=namespace, is_polled=is_polled)
        version.move(VersionState.UNAVAILABLE, errors.index_reason(error))
        return version

    def queue(self, served: Served) -> None:
        """Load it as soon as it is its turn. An ensemble waits for others, so it must not keep them waiting."""
        if isinstance(served, ServedEnsemble):
            run_in(served, served.load)
        else:
            self._waiting.append(served)
            self._load_next()

    def settled(self, served: Served) -> None:
        """Its load is over, for better or worse: it is another's turn."""
        self._loading.discard(served)
        self._load_next()

    def _load_next(self) -> None:
        while self._waiting and len(self._loading) < self._host.options.model_load_thread_count:
            served = self._waiting.popleft()
            self._loading.add(served)
            run_in(served, served.load)

    def release(self, served: Served) -> None:
        """Nothing is left of it."""
        version = served.version
        self._served.pop(version.model_id, None)
        self._host.metrics.forget(version.model_id)
        self._host.star.payloads.ensembles.discard(version.model_id)
        self._free_rows.append(version.row)
        self._give_back(version.version_dir.parent)
        self._forget([each.version.version_dir for each in self._served.values()])
        if served in self._waiting:
            self._waiting.remove(served)
        self.settled(served)
        if self._on_stopped is not None and not self._served:
            done, self._on_stopped = self._on_stopped, None
            done()

    def _give_back(self, directory: Path) -> None:
        if directory in self._borrowed:
            self._borrowed[directory] -= 1
            if self._borrowed[directory] <= 0:
                del self._borrowed[directory]
                self._discard(directory)

    def tell(self, messages: Sequence[Message], then: Callable[[], None]) -> None:
        """Front ends hear of it; `then` when all act upon it, and the batcher upon what it was told before."""
        for served in tuple(self._served.values()):
            if isinstance(served, ServedEnsemble):
                run_in(served, served.look)  # first: `then` may be the end of a version that one of them has steps of
        self._host.star.announce_to_clients(messages, then)
        self._on_changed()

    def settle(self, then: Callable[[], None]) -> None:
        """`then` when clients and batcher act upon all that they were told."""
        self._host.star.announce_to_clients([Ping()], then)

    def settle_retired(self, then: Callable[[], None]) -> None:
        """Call `then` once all versions retired before that have no open request are ending. The batcher reports such
        versions after the message that it is dealing with: after its first acknowledgement, but before the second."""
        announce, to_batcher = self._host.star.acknowledgements.announce, self._host.star.to_batcher
        announce(to_batcher(Ping()), lambda: announce(to_batcher(Ping()), then))

    def find_composing(self, identifier: ModelIdentifier) -> Model | None:
        """What an ensemble means by a name: the model of its own repository, or the only one; None: there is none, or
        several."""
        model = self.models.get(identifier)
        if model is not None and model.is_wanted:
            return model
        try:
            return self.find(identifier.name)
        except ShoalError:
            return None

    # --- what others ask ---

    def find(self, name: str) -> Model | None:
        """The model that a request means by a name. Raises InvalidArgumentError where it could be several."""
        bearers = self.find_all(name)
        return meant_by(name, [model for model in bearers if model.is_wanted] or bearers)

    def find_all(self, name: str) -> list[Model]:
        """The models that bear a name: several only with namespacing."""
        return [model for identifier, model in sorted(self.models.items()) if identifier.name == name]

    def get(self, name: str) -> Model:
        """The same, of those that have a version. Raises NotFoundError where there is none, too."""
        model = self.find(name)
        if model is None or not model.versions:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return model

    @property
    def versions(self) -> list[ModelVersion]:
        """Every version that clients know of."""
        return [version for identifier in sorted(self.models) for version in self.models[identifier].rows]

    @property
    def failures(self) -> list[ModelVersion]:
        """The versions that should serve and do not."""
        return [version for version in self.versions if version.is_failure]

    @property
    def num_instances_up(self) -> int:
        """Instances that batches may go to."""
        return sum(version.num_instances_up for version in self.versions)

    def messages(self) -> list[ModelChanged]:
        """What a front end that has just joined must hear."""
        return [version.message() for version in self.versions]

    # --- the batcher ---

    def tell_batcher(self) -> None:
        """A batcher that takes a dead one's place hears of every version that has a queue."""
        for served in self._served.values():
            served.tell_batcher()

    def tell_batcher_again(self) -> None:
        """And, once it has heard of the workers, of those that have to end."""
        for served in self._served.values():
            served.tell_batcher_again()

    def on_drained(self, model_id: int) -> None:
        """The batcher has nothing more for this version."""
        if model_id in self._served:
            self._served[model_id].on_drained()

    # --- the end ---

    def stop(self, then: Callable[[], None]) -> None:
        """End all instances; `then` is called after the last."""
        if not self._served:
            then()
            return
        self._on_stopped = then
        for served in tuple(self._served.values()):
            served.stop()


def no_models_error() -> ShoalError:
    """Triton's sentence for a start-up on which a model failed."""
    return InternalError("failed to load all models")


def _nothing() -> None:
    """Nobody waits for it."""
