"""Model control: the models loaded at start, requests to load and unload, and the effect of changes in repositories.

    none      everything at start, nothing later
    explicit  what --load-model names at start, then what clients request
    poll      everything at start, then every change of the repositories

A model that was loaded only because an ensemble needs it is unloaded with the last such ensemble, where the client asks
for that (`unload_dependents`). Runs in the supervisor. The rules and sentences are those of Triton's model management.
"""

import json
import logging
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
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
from shoal.repository import override_files
from shoal.repository.found import FoundModel, PollResult
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_VERSION, ModelVersion
from shoal.supervisor.event_loop import Future, Task, first, gather, shared, sleep
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models, steps_of
from shoal.supervisor.processes.repository import RepositoryPoller
from shoal.supervisor.questions.questions import Verb

_log = logging.getLogger(__name__)

Arguments = dict[str, Any]
#: A load that came with a configuration: name of the model, configuration as JSON, directory of its files, if any.
Given = tuple[str, str, str | None]
#: How long a poll waits for copies from a cloud before the other changes are loaded (ours).
COPY_PATIENCE_S = 2.0
#: The value of --load-model that means every model of the repositories, where it is the only one.
ALL = "*"


@dataclass(slots=True)
class Registration:
    """A repository that a client has registered for one model."""

    repository: str
    load: Task[None]
    # Set when the unload of the model, once loaded, has begun.
    removal: Task[None] | None = None


class ModelControl:
    """The server's mode of model control, applied to all models."""

    def __init__(
        self,
        options: ServerOptions,
        repository: RepositoryPoller,
        models: Models,
        is_registered: Callable[[ModelIdentifier], bool] = lambda _: False,
    ) -> None:
        self._is_of_store = is_registered  # whether a model is of TorchServe's store: no poll finds it
        self._loop = models.loop
        self._options = options
        self._mode = options.model_control_mode
        self._repository = repository
        self._models = models
        self.verbs: dict[str, Verb] = {
            "index": self._index,
            "load": self._load,
            "unload": self._unload,
            "register": self._register,
            "unregister": self._unregister,
            "registered": self._list_registered,
        }
        # Registrations by the name of their model. Changed by questions.
        self._registered: dict[str, Registration] = {}
        self._copies: list[Path] = []  # directories for a new server, with copies of files that came with requests
        #: Models that were loaded for an ensemble, not by name. Changed by loads and unloads.
        self._implicit: set[ModelIdentifier] = set()
        #: False if the repositories could not be read at the start. Changed by load_at_start.
        self.has_repositories = True

    # --- start ---

    def load_at_start(self) -> Task[None]:
        """Load the models that the server starts with; the task ends when each has loaded or failed.

        Where the repositories cannot be read, the task raises ShoalError, except under --exit-on-error=false.
        """
        loads_all = self._mode != "explicit" or self._options.load_model == (ALL,)
        names = None if loads_all else self._options.load_model
        return self._loop.begin(self._load_at_start(names, self._repository.poll(names)))

    async def _load_at_start(self, names: Sequence[str] | None, polled: Future[PollResult]) -> None:
        try:
            poll = await polled
            if names is not None:
                poll = await self._with_steps(names, poll)
        except ShoalError as error:
            if self._options.exit_on_error:
                raise
            sentence = index_reason(error).replace(": ", " - ", 1)
            _log.error("error: creating server: %s; the server stays, not live", sentence)
            self.has_repositories = False
            return
        if names is not None:
            self._note_missing(names, poll)
            poll = poll._replace(problems={})
        elif not poll.identifiers and self._options.model_repository:
            _log.warning(
                "no models in %s: each is a directory in the repository, with a version in it, as in "
                "MODEL/1/model.onnx. Is it the right directory?",
                ", ".join(map(repr, map(str, self._options.model_repository))),
            )
        if self._mode == "poll" and self._options.repository_poll_secs:
            self._loop.start(self._follow_repositories())
        await self._models.load_all(poll)

    def _note_missing(self, names: Sequence[str], poll: PollResult) -> None:
        unloadable = {identifier.name: identifier for identifier in poll.problems}
        for name in set(names) - {identifier.name for identifier in poll.models}:
            identifier = unloadable.get(name, ModelIdentifier(name))
            reason = poll.problems.get(identifier)
            error = InternalError(f"failed to load '{name}', failed to poll from model repository")
            self._models.add_problem(identifier, error if reason is None else NoModelError(reason))

    # --- poll ---

    def poll_now(self) -> bool:
        """Look at the repositories now, and not only when it is time; false in a mode that does not follow them."""
        if self._mode != "poll":
            return False
        self._loop.start(self._poll())
        return True

    async def _follow_repositories(self) -> None:
        while True:
            await sleep(self._options.repository_poll_secs)
            await self._poll()

    async def _poll(self) -> None:
        try:
            poll = await self._repository.poll(None, COPY_PATIENCE_S)
        except ShoalError as error:
            _log.error("failed to poll from model repository: %s", error)
        else:
            self._loop.start(self._follow(poll))  # a task of its own: an unexpected error in it ends no later poll

    async def _follow(self, poll: PollResult) -> None:
        """Load models that are new or changed, unload those that are gone. A changed model that is being loaded waits
        for its turn; one that failed to load is tried again only after a change."""
        self._models.forget_failures(poll.identifiers)
        for identifier, found in poll.models.items():
            model = self._models.models.get(identifier)
            if model is None or not (model.is_loading or self._models.is_known_to_fail(found)):
                self._models.load(found)  # the outcome is in the log and in the index
        for identifier, reason in poll.problems.items():
            self._models.add_problem(identifier, NoModelError(reason))
        for identifier, model in self._models.models.items():
            is_gone = identifier not in poll.identifiers and not self._is_of_store(identifier)
            if is_gone and not model.is_loading and not model.is_unloaded:
                _log.info("model '%s' is gone from the repository", identifier)
                with contained(model):
                    self._loop.start(model.unload())

    # --- what clients ask ---

    async def _index(self, _arguments: Arguments) -> list[dict[str, Any]]:
        """Every known version and, by name, the models on disk that were never loaded."""
        poll = await self._repository.poll(())
        versions = self._models.versions
        unknown = set(poll.identifiers) - {version.identifier for version in versions}
        rows = [_row(version) for version in versions]
        for identifier in unknown:
            problem = poll.problems.get(identifier)  # why the model cannot be loaded, where that is known
            why = {} if problem is None else {"state": "UNAVAILABLE", "reason": problem}
            rows.append({"name": identifier.name, **why})
        return sorted(rows, key=lambda row: str(row["name"]))

    async def _load(self, arguments: Arguments) -> None:
        self._refuse_unless_explicit()
        name, config, directory = arguments["model"], arguments["config"], arguments["directory"]
        if not name:
            raise InvalidArgumentError("Model name cannot be empty. Please enter a valid name to deploy.")
        if directory is not None:
            self._models.lend(Path(directory))
        try:
            await self._find_and_load(name, config=config, directory=directory)
        except Exception:
            if directory is not None:
                self._models.disown(Path(directory))  # the front end made this directory, and removes it
            raise

    async def _find_and_load(
        self, name: str, *, config: str | None = None, directory: str | None = None, repository: str | None = None
    ) -> None:
        """Load the model of a name, with namespacing all models of that name; returns or raises when each has loaded or
        failed."""
        self._implicit = {each for each in self._implicit if each.name != name}
        models = await self._repository.look_all(name, config=config, directory=directory, repository=repository)
        if not models:
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        loads = [self._load_one(found, has_config=config is not None) for found in models]
        errors = [each for each in await gather(*loads, return_exceptions=True) if isinstance(each, Exception)]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise InvalidArgumentError("\n".join(str(error).removesuffix("\n") for error in errors) + "\n")

    async def _load_one(self, found: FoundModel, *, has_config: bool) -> None:
        """Load a model that was found and, for an ensemble, the models that it lacks."""
        try:
            if found.error is not None and has_config:
                raise found.error  # the request's fault; the model's state does not change
            found = self._models.with_kept_config(found)
            await self._begin_to_load_steps(found)
            await self._models.load(found)
        except ShoalError as error:
            if found.error is None:
                raise
            # In Triton's words, and with the cause, which Triton leaves to its log.
            if found.config and not found.versions:
                raise InvalidArgumentError(f"load failed for model '{found.name}': {error}\n") from error
            raise InternalError(
                f"failed to load '{found.name}', failed to poll from model repository: {error}"
            ) from error

    async def _unload(self, arguments: Arguments) -> None:
        """Unload the model of a name, with namespacing all of that name; answered as soon as no more requests are
        accepted. An unknown model counts as unloaded.

        With `unload_dependents`, models that were loaded along with an ensemble are unloaded, too.
        """
        self._refuse_unless_explicit()
        for model in self._models.find_all(arguments["model"]):
            await model.unload()
            if arguments.get("unload_dependents"):
                await self._unload_steps(model)

    # --- the models of ensembles' steps ---

    async def _with_steps(self, names: Collection[str], poll: PollResult) -> PollResult:
        """A poll of these models, and of all that ensembles among them are made of; `poll` is of these models alone."""
        wanted = set(names)
        while (
            more := {each.name for found in poll.models.values() for each in steps_of(found.config, found.namespace)}
            - wanted
        ):
            wanted |= more
            poll = await self._repository.poll(wanted)
        self._implicit |= {each for each in poll.models if each.name not in names}
        return poll

    async def _begin_to_load_steps(self, found: FoundModel, seen: set[ModelIdentifier] | None = None) -> None:
        """Begin to load the models that an ensemble lacks; those in `seen` have been looked for already."""
        seen = set() if seen is None else seen
        for identifier in steps_of(found.config, found.namespace):
            if identifier in seen or self._is_there(identifier):
                continue
            seen.add(identifier)
            try:
                lacking = await self._repository.look(identifier.name, preferred=identifier.namespace)
            except ShoalError:
                continue  # the ensemble's own load reports what is missing
            if lacking is None:
                continue
            await self._begin_to_load_steps(lacking, seen)
            if not self._is_there(lacking.identifier):
                self._implicit.add(lacking.identifier)
                self._models.load(lacking)

    def _is_there(self, identifier: ModelIdentifier) -> bool:
        model = self._models.models.get(identifier)
        return model is not None and (model.is_loading or bool(model.serving))

    async def _unload_steps(self, ensemble: Model) -> None:
        """Unload the models that came with an unloaded ensemble and that no other model needs."""
        others = [each for each in self._models.models.values() if each is not ensemble and each.is_wanted]
        kept = {model.identifier for each in others for model in self._composing(each)}
        going = [model for model in self._composing(ensemble) if model.identifier in self._implicit - kept]
        going.sort(key=lambda model: model.identifier)
        for model in [each for each in going if not each.is_loading]:
            self._implicit.discard(model.identifier)
            await model.unload()
            await self._unload_steps(model)

    def _composing(self, ensemble: Model) -> list[Model]:
        """The models that an ensemble's steps name, each once."""
        sources = [served.source for served in ensemble.versions.values()]
        meant = [each for source in sources for each in steps_of(source.config, ensemble.identifier.namespace)]
        found = [self._models.find_composing(each) for each in meant]
        return list(dict.fromkeys([model for model in found if model is not None]))

    # --- upgrades ---

    def carried(self) -> tuple[list[str] | None, list[Given], list[tuple[str, str]]]:
        """The changes by requests, for a new server: names of the models to load at its start (None: by its mode),
        models whose configuration or files came with a request, and registered repositories. The directories are
        copies, which the new server owns. Raises OSError where they cannot be made."""
        if self._mode != "explicit":
            return None, [], []
        serving = {each.identifier: each for each in self._models.models.values() if each.serving}
        repositories = {each.repository for each in self._registered.values()}
        own = {each: model for each, model in serving.items() if each.namespace not in repositories}
        given = [each for each in map(self._given, own.values()) if each is not None]
        plain = {each.name for each in own if each not in self._implicit} - {name for name, *_ in given}
        return sorted(plain), given, [(name, each.repository) for name, each in self._registered.items()]

    def _given(self, model: Model) -> Given | None:
        """The load request by which a new server would serve a model as this one does, with a copy of the files that
        came with a request; None for a model that is served as it lies in its repository."""
        served = next(iter(model.serving.values()))
        directory = served.version.version_dir.parent
        if self._models.is_lent(directory):
            self._copies.append(override_files.make_copy(directory))
            return model.identifier.name, json.dumps(served.source.config), str(self._copies[-1])
        return None if model.given is None else (model.identifier.name, json.dumps(model.given.config), None)

    def discard_copies(self) -> None:
        """Remove the copies of files that `carried` has made: the new server has not taken over."""
        copies, self._copies = self._copies, []
        for each in copies:
            shutil.rmtree(each, ignore_errors=True)
        if copies:
            override_files.sweep()  # the new server may have taken copies over before it ended

    async def restore(self, given: Sequence[Given], repositories: Sequence[tuple[str, str]]) -> None:
        """Load the models that an old server had loaded by request; returns when each has loaded or failed, which is
        logged."""
        loads = [self._load({"model": name, "config": text, "directory": copy}) for name, text, copy in given]
        loads += [self._register({"model": name, "repository": repository}) for name, repository in repositories]
        for error in await gather(*loads, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("a model that the old server had loaded by request does not load: %s", error)

    # --- repositories that clients register, each with one model, or an ensemble and its models ---

    async def _register(self, arguments: Arguments) -> None:
        """Load the model of a repository, or an ensemble with its models, under the name that the question gives."""
        self._refuse_unless_explicit()
        name, repository = arguments["model"], arguments["repository"]
        if name in self._registered or any(each.is_loading or each.serving for each in self._models.find_all(name)):
            raise AlreadyExistsError(f"model repository '{repository}' has already been registered")
        load = self._loop.begin(self._find_and_load(name, repository=repository))
        registration = self._registered[name] = Registration(repository, load)
        try:
            await shared(load)
        except Exception:
            await self._remove(name, registration)
            raise

    async def _unregister(self, arguments: Arguments) -> None:
        """Unload a registered model, and an ensemble's models, once it is loaded; answered when all have ended."""
        name = arguments["model"]
        registration = self._registered.get(name)
        if registration is None:
            raise NotFoundError(f"model '{name}' is not registered")
        await self._remove(name, registration)

    async def _list_registered(self, _arguments: Arguments) -> dict[str, str]:
        return {name: each.repository for name, each in self._registered.items()}

    async def _remove(self, name: str, registration: Registration) -> None:
        """Remove a registration. Several calls at a time remove it once; one after a failed removal tries again."""
        removal = registration.removal
        if removal is None or (removal.done() and removal.exception() is not None):
            removal = registration.removal = self._loop.begin(self._unload_registered(name, registration))
        await shared(removal)

    async def _unload_registered(self, name: str, registration: Registration) -> None:
        await first(registration.load)
        models, repository = self._models.models, registration.repository
        own = [models[each] for each in (ModelIdentifier(name, repository), ModelIdentifier(name)) if each in models]
        others = [each for each in models.values() if each.identifier.namespace == repository and each not in own]
        for group in (own, others):
            self._implicit -= {each.identifier for each in group}
            await gather(*[each.unload() for each in group])
        await gather(*[model.ended() for model in (*own, *others)])
        del self._registered[name]

    def _refuse_unless_explicit(self) -> None:
        if self._mode != "explicit":
            raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")


def _row(version: ModelVersion) -> dict[str, Any]:
    row: dict[str, Any] = {"name": version.name}
    if version.version != NO_VERSION:
        row["version"] = str(version.version)
    row["state"] = version.state.value
    if version.reason:
        row["reason"] = version.reason
    return row
