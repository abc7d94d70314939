"""All models of the server: which exist, which of them a name means, and how their loads have ended.

Runs in the supervisor. A model that fails to load leaves the others alone; the index says why.
"""

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from shoal import errors
from shoal.errors import InternalError, NoModelError, NotFoundError, ShoalError
from shoal.messages.to_client import ModelChanged
from shoal.model_config.ensemble import steps
from shoal.model_config.messages import Config
from shoal.repository.found import FoundModel, PollResult
from shoal.repository.identifier import ModelIdentifier, meant_by
from shoal.repository.lifecycle import ModelVersion
from shoal.supervisor.event_loop import Task, gather
from shoal.supervisor.failure_domains import report
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.versions import Versions

_log = logging.getLogger(__name__)


class Models:
    """Every model for which a load has been requested. The last three arguments are passed on to Versions."""

    def __init__(
        self,
        context: InstanceContext,
        roster: Roster,
        on_changed: Callable[[], None],
        discard: Callable[[Path], None],
        forget: Callable[[Collection[Path]], None],
    ) -> None:
        self.all_versions = Versions(context, roster, self.find_composing, on_changed, discard, forget)
        # Changed by loads.
        self.models: dict[ModelIdentifier, Model] = {}
        self._failures: dict[ModelIdentifier, object] = {}  # the circumstances under which the last load failed

    # --- load requests and polls ---

    async def load_all(self, poll: PollResult) -> None:
        """Load every model of a poll; returns when each has loaded or failed."""
        for identifier, reason in poll.problems.items():
            self.add_problem(identifier, NoModelError(reason))
        await gather(*[self.load(found) for found in poll.models.values()], return_exceptions=True)

    def load(self, found: FoundModel) -> Task[None]:
        """Serve a model as it was found. The task raises ShoalError where that fails."""
        model = self._model(found.identifier)
        return self.all_versions.loop.begin(self._load(model, found, model.load(found)))

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
            model.problem = self.all_versions.create_problem(identifier, reason, is_polled=False)
            self.all_versions.announce([model.problem.message()])

    def _model(self, identifier: ModelIdentifier) -> Model:
        if identifier not in self.models:
            self.models[identifier] = Model(identifier, self.all_versions)
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
        return meant_by(name, [model for model in bearers if model.is_wanted] or bearers)

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
        """Every version that clients know of."""
        return [version for identifier in sorted(self.models) for version in self.models[identifier].rows]

    @property
    def failures(self) -> list[ModelVersion]:
        """The versions that should serve and have failed."""
        return [version for version in self.versions if version.is_failure]

    @property
    def num_instances_up(self) -> int:
        """The number of instances that batches may go to."""
        return sum(version.num_instances_up for version in self.versions)

    def messages(self) -> list[ModelChanged]:
        """The messages that announce all versions to a front end that has just joined."""
        return [version.message() for version in self.versions]


def steps_of(config: Config, namespace: str) -> list[ModelIdentifier]:
    """The models that an ensemble's steps name, each once, in the ensemble's own repository; none for other models."""
    return [ModelIdentifier(name, namespace) for name in dict.fromkeys([step["model_name"] for step in steps(config)])]


def no_models_error() -> ShoalError:
    """The error, in Triton's words, of a start at which a model failed to load."""
    return InternalError("failed to load all models")
