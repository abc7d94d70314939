"""Model control: what is loaded at start, what load and unload requests may do, what happens when repositories change.

    none      everything at start, nothing later
    explicit  what --load-model names at start, then what clients ask for
    poll      everything at start, then whatever the repositories have become

Runs in the supervisor. The rules and sentences are those of Triton's model management.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NoModelError,
    NotFoundError,
    ShoalError,
    UnavailableError,
    index_reason,
)
from shoal.options import ServerOptions
from shoal.repository.found import FoundModel, Poll
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_VERSION, ModelVersion
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.failure_domains import run_in
from shoal.supervisor.models.ensembles import Dependencies
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.version_owner import Outcome
from shoal.supervisor.processes.repository import Repository
from shoal.supervisor.questions.questions import Handler, Question

_log = logging.getLogger(__name__)

#: As the only --load-model: every model there is.
ALL = "*"


@dataclass(slots=True)
class Registration:
    """A repository that a client has registered, with a model that no repository of the server's has."""

    repository: str
    # Changed as its model is loaded and unloaded.
    is_busy: bool = True  # one of both is under way
    on_removed: list[Callable[[], None]] = field(default_factory=list)


class ModelControl:
    """One of the three modes, over all models."""

    def __init__(self, loop: EventLoop, options: ServerOptions, repository: Repository, models: Models) -> None:
        self._loop = loop
        self._options = options
        self._mode = options.model_control_mode
        self._repository = repository
        self._models = models
        self._dependencies = Dependencies(repository, models)
        # Changed by questions: by the name of its model.
        self._registered: dict[str, Registration] = {}
        #: False once the repositories could not be read at the start. Changed by start.
        self.has_repositories = True

    @property
    def verbs(self) -> dict[str, Handler]:
        """What front ends may ask."""
        return {
            "index": self._index,
            "load": self._load,
            "unload": self._unload,
            "register": self._register,
            "unregister": self._unregister,
            "registered": lambda question: question.answer(
                {name: each.repository for name, each in self._registered.items()}
            ),
        }

    # --- start ---

    def start(self, then: Callable[[], None], failed: Callable[[ShoalError], None]) -> None:
        """Load what is to be there from the start; `then` when all of it has loaded or failed.

        Where the repositories cannot be read, `failed` or, with --exit-on-error=false, `then` as well.
        """
        wanted = None if self._loads_all else self._options.load_model

        def polled(poll: Poll) -> None:
            unloadable = {identifier.name: identifier for identifier in poll.problems}
            for name in set(wanted or ()) - {identifier.name for identifier in poll.models}:
                identifier = unloadable.get(name, ModelIdentifier(name))
                reason = poll.problems.get(identifier)
                error = InternalError(f"failed to load '{name}', failed to poll from model repository")
                self._models.add_problem(identifier, error if reason is None else NoModelError(reason))
            if wanted is None and not poll.identifiers:
                _log_no_models(self._options.model_repository)
            problems = poll.problems if wanted is None else {}
            self._models.load_all(poll._replace(problems=problems), then)
            if self._mode == "poll" and self._options.repository_poll_secs:
                self._loop.call_after(self._options.repository_poll_secs, self._look_again)

        def unread(error: ShoalError) -> None:
            if self._options.exit_on_error:
                failed(error)
                return
            _log.error(
                "error: creating server: %s; the server stays, not live", index_reason(error).replace(": ", " - ", 1)
            )
            self.has_repositories = False
            then()

        if wanted is None:
            self._repository.poll(None, polled, unread)
        else:
            self._dependencies.poll(wanted, polled, unread)

    @property
    def _loads_all(self) -> bool:
        return self._mode != "explicit" or self._options.load_model == (ALL,)

    # --- poll ---

    def _look_again(self) -> None:
        self._repository.poll(None, self._on_polled, self._on_poll_failed)

    def _on_poll_failed(self, error: ShoalError) -> None:
        _log.error("failed to poll from model repository: %s", error)
        self._loop.call_after(self._options.repository_poll_secs, self._look_again)

    def _on_polled(self, poll: Poll) -> None:
        """Load what is new or different, unload what is gone. A model that is still being loaded waits for its turn;
        one that has failed to load is tried again when something has changed."""
        self._loop.call_after(self._options.repository_poll_secs, self._look_again)
        self._models.forget_failures(poll.identifiers)
        for identifier, found in poll.models.items():
            model = self._models.models.get(identifier)
            if model is None or not (model.is_loading or self._models.is_known_to_fail(found)):
                self._models.load(found, _logged)
        for identifier, reason in poll.problems.items():
            self._models.add_problem(identifier, NoModelError(reason))
        for identifier, model in self._models.models.items():
            if identifier not in poll.identifiers and not model.is_loading and not model.is_unloaded:
                _log.info("model '%s' is gone from the repository", identifier)
                run_in(model, model.unload, _done)

    # --- what clients ask ---

    def _index(self, question: Question) -> None:
        """Every version that is known, and by their names the models that lie on disk and were never loaded."""

        def polled(poll: Poll) -> None:
            versions = self._models.versions
            unknown = set(poll.identifiers) - {version.identifier for version in versions}
            rows = [_row(version) for version in versions]
            rows += [_row_of_unknown(identifier.name, poll.problems.get(identifier)) for identifier in unknown]
            question.answer(sorted(rows, key=lambda row: str(row["name"])))

        self._repository.poll((), polled, question.refuse)

    def _load(self, question: Question) -> None:
        self._refuse_unless_explicit()
        name = question.arguments["model"]
        config, directory = question.arguments["config"], question.arguments["directory"]
        if not name:
            raise InvalidArgumentError("Model name cannot be empty. Please enter a valid name to deploy.")

        def outcome(error: ShoalError | None) -> None:
            if error is None:
                question.answer()
                return
            if directory is not None:
                self._models.disown(Path(directory))  # whoever asked made it, and removes it
            question.refuse(error)

        if directory is not None:
            self._models.lend(Path(directory))
        self._find_and_load(name, outcome, config=config, directory=directory)

    def _find_and_load(
        self,
        name: str,
        outcome: Outcome,
        *,
        config: str | None = None,
        directory: str | None = None,
        repository: str | None = None,
    ) -> None:
        """Load the model of a name, with namespacing all of that name; `outcome` when each has loaded or failed."""
        missing: set[ModelIdentifier] = set()
        errors: list[ShoalError] = []

        def found(models: list[FoundModel]) -> None:
            if not models:
                outcome(InternalError(f"failed to load '{name}', failed to poll from model repository"))
            missing.update(model.identifier for model in models)
            for model in models:
                if model.error is not None and config is not None:
                    # The request's fault, of which the model itself knows nothing.
                    ended(model, _in_words(model, model.error))
                else:
                    begin(self._models.with_kept_config(model))

        def begin(model: FoundModel) -> None:
            told: Outcome = lambda error: ended(model, error and _in_words(model, error))  # noqa: E731
            self._dependencies.load(model, lambda: self._models.load(model, told))

        def ended(model: FoundModel, error: ShoalError | None) -> None:
            missing.discard(model.identifier)
            if error is not None:
                errors.append(error)
            if not missing:
                outcome(_as_one(errors))

        self._dependencies.asked_for(name)
        self._repository.look_all(name, found, outcome, config=config, directory=directory, repository=repository)

    def _unload(self, question: Question) -> None:
        """Answered as soon as nothing more is accepted, with namespacing by all models of the name. A model that nobody
        knows is unloaded already.

        With `unload_dependents` the models that were loaded along with an ensemble go, too.
        """
        self._refuse_unless_explicit()
        models = self._models.find_all(question.arguments["model"])

        def unload_next() -> None:
            if not models:
                question.answer()
                return
            model = models.pop(0)
            if question.arguments.get("unload_dependents"):
                model.unload(lambda: self._dependencies.unload(model, unload_next))
            else:
                model.unload(unload_next)

        unload_next()

    # --- repositories that clients register, each with a model, or an ensemble and its models, in it ---

    def _register(self, question: Question) -> None:
        """Load the model, or the ensemble with its models, of a repository, under the name that the question gives."""
        self._refuse_unless_explicit()
        name, repository = question.arguments["model"], question.arguments["repository"]
        if name in self._registered or any(each.is_loading or each.serving for each in self._models.find_all(name)):
            raise AlreadyExistsError(f"model repository '{repository}' has already been registered")
        registration = self._registered[name] = Registration(repository)

        def outcome(error: ShoalError | None) -> None:
            registration.is_busy = False
            if error is None:
                question.answer()
            else:
                registration.on_removed.append(lambda: question.refuse(error))
            if registration.on_removed:
                self._remove(name, registration)

        self._find_and_load(name, outcome, repository=repository)

    def _unregister(self, question: Question) -> None:
        """Unload a registered model, and what it is made of, once it has been loaded; answered when nothing is left."""
        name = question.arguments["model"]
        registration = self._registered.get(name)
        if registration is None:
            raise NotFoundError(f"model '{name}' is not registered")
        registration.on_removed.append(question.answer)
        if not registration.is_busy:
            self._remove(name, registration)

    def _remove(self, name: str, registration: Registration) -> None:
        registration.is_busy = True

        def wait_for(models: list[Model]) -> None:
            if models:
                models[0].when_ended(lambda: wait_for(models[1:]))
                return
            del self._registered[name]
            for then in registration.on_removed:
                then()

        models, repository = self._models.models, registration.repository
        own = [models[each] for each in (ModelIdentifier(name, repository), ModelIdentifier(name)) if each in models]
        others = [each for each in models.values() if each.identifier.namespace == repository and each not in own]
        unload_all = self._dependencies.unload_all
        unload_all(own, lambda: unload_all(others, lambda: wait_for([*own, *others])))

    def _refuse_unless_explicit(self) -> None:
        if self._mode != "explicit":
            raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")


def _in_words(found: FoundModel, error: ShoalError) -> ShoalError:
    """What Triton says where a model could not even be read, and why, which it leaves to its log."""
    if found.error is None:
        return error
    what = "no version is available" if found.config and not found.versions else "failed to poll from model repository"
    return InternalError(f"failed to load '{found.name}', {what}: {error}")


def _as_one(errors: list[ShoalError]) -> ShoalError | None:
    """What went wrong with the models of one name; None if nothing did."""
    if len(errors) < 2:
        return errors[0] if errors else None
    return InvalidArgumentError("\n".join(str(error).removesuffix("\n") for error in errors) + "\n")


def _row(version: ModelVersion) -> dict[str, Any]:
    row: dict[str, Any] = {"name": version.name}
    if version.version != NO_VERSION:
        row["version"] = str(version.version)
    row["state"] = version.state.value
    if version.reason:
        row["reason"] = version.reason
    return row


def _log_no_models(repositories: Sequence[object]) -> None:
    names = ", ".join(map(repr, map(str, repositories)))
    _log.warning(
        "no models in %s: each is a directory in the repository, with a version in it, as in MODEL/1/model.onnx. Is it "
        "the right directory?", names,
    )  # fmt: skip


def _row_of_unknown(name: str, problem: str | None) -> dict[str, Any]:
    """A model that was never loaded, and why it cannot be, where that is known."""
    return {"name": name} if problem is None else {"name": name, "state": "UNAVAILABLE", "reason": problem}


def _logged(_error: ShoalError | None) -> None:
    """It stands in the log, and in the index."""


def _done() -> None:
    """Nobody waits for it."""
