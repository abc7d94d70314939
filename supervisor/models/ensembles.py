"""Dependencies of ensembles: the models that a load must bring along, and those that may be unloaded with an ensemble.

Runs in the supervisor, part of model control. A model that was loaded only because an ensemble needs it is remembered
as such: where the client asks for that, it is unloaded with the last ensemble that needs it.
"""

from collections.abc import Collection

from shoal.errors import ShoalError
from shoal.model_config.ensemble import steps
from shoal.model_config.messages import Config
from shoal.repository.found import FoundModel, PollResult
from shoal.repository.identifier import ModelIdentifier
from shoal.supervisor.event_loop import gather
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.processes.repository import RepositoryPoller


class Dependencies:
    """The models that ensembles depend on, and which of them were loaded for that reason only."""

    def __init__(self, repository: RepositoryPoller, models: Models) -> None:
        self._repository = repository
        self._models = models
        #: Models that were loaded for an ensemble, not by name. Changed by poll, load and unload.
        self._implicit: set[ModelIdentifier] = set()

    def asked_for(self, name: str) -> None:
        """Note that a client has asked for this model by name: it is not unloaded with an ensemble."""
        self._implicit = {each for each in self._implicit if each.name != name}

    def is_implicit(self, identifier: ModelIdentifier) -> bool:
        """Whether a model was loaded for an ensemble only."""
        return identifier in self._implicit

    async def complete(self, names: Collection[str], poll: PollResult) -> PollResult:
        """A poll of these models, and of all that ensembles among them are made of; `poll` is of these models alone."""
        wanted = set(names)
        while more := {each.name for found in poll.models.values() for each in needed(found)} - wanted:
            wanted |= more
            poll = await self._repository.poll(wanted)
        self._implicit |= {each for each in poll.models if each.name not in names}
        return poll

    async def begin_to_load(self, found: FoundModel, seen: set[ModelIdentifier] | None = None) -> None:
        """Begin to load the models that an ensemble lacks; those in `seen` have been looked for already."""
        seen = set() if seen is None else seen
        for identifier in needed(found):
            if identifier in seen or self._is_there(identifier):
                continue
            seen.add(identifier)
            try:
                lacking = await self._repository.look(identifier.name, preferred=identifier.namespace)
            except ShoalError:
                continue  # the ensemble's own load reports what is missing
            if lacking is None:
                continue
            await self.begin_to_load(lacking, seen)
            if not self._is_there(lacking.identifier):
                self._implicit.add(lacking.identifier)
                self._models.load(lacking)

    def _is_there(self, identifier: ModelIdentifier) -> bool:
        model = self._models.models.get(identifier)
        return model is not None and (model.is_loading or bool(model.serving))

    async def unload_all(self, models: Collection[Model]) -> None:
        """Unload models that came with an ensemble; returns when every client has applied the change."""
        for each in models:
            self._implicit.discard(each.identifier)
        await gather(*[each.unload() for each in models])

    async def unload(self, ensemble: Model) -> None:
        """Unload the models that came with an unloaded ensemble and that no other model needs."""
        others = [each for each in self._models.models.values() if each is not ensemble and each.is_wanted]
        kept = {model.identifier for each in others for model in self._composing(each)}
        going = [model for model in self._composing(ensemble) if model.identifier in self._implicit - kept]
        going.sort(key=lambda model: model.identifier)
        for model in [each for each in going if not each.is_loading]:
            self._implicit.discard(model.identifier)
            await model.unload()
            await self.unload(model)

    def _composing(self, ensemble: Model) -> list[Model]:
        """The models that an ensemble's steps name, each once."""
        configs = [served.source.config for served in ensemble.versions.values()]
        meant = [each for config in configs for each in _needed_by(config, ensemble.identifier.namespace)]
        found = [self._models.find_composing(each) for each in meant]
        return list(dict.fromkeys([model for model in found if model is not None]))


def needed(found: FoundModel) -> list[ModelIdentifier]:
    """The models that an ensemble's steps name, in the ensemble's own repository; none for other models."""
    return _needed_by(found.config, found.namespace)


def _needed_by(config: Config, namespace: str) -> list[ModelIdentifier]:
    return [ModelIdentifier(name, namespace) for name in dict.fromkeys([step["model_name"] for step in steps(config)])]
