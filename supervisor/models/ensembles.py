"""What ensembles depend on: the models that a load must bring along, and those that may go with an ensemble.

Runs in the supervisor, part of model control. A model that was loaded only because an ensemble needs it is remembered
as such: it goes with the last ensemble that does, where the client asks for that.
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
    """Of all ensembles."""

    def __init__(self, repository: RepositoryPoller, models: Models) -> None:
        self._repository = repository
        self._models = models
        #: Models that no client has asked for by their names. Changed by poll, load and unload.
        self._implicit: set[ModelIdentifier] = set()

    def asked_for(self, name: str) -> None:
        """A client wants this model for itself."""
        self._implicit = {each for each in self._implicit if each.name != name}

    async def complete(self, names: Collection[str], poll: PollResult) -> PollResult:
        """A poll of these models, and of all that ensembles among them are made of; `poll` is of these models alone."""
        wanted = set(names)
        while more := {each.name for found in poll.models.values() for each in needed(found)} - wanted:
            wanted |= more
            poll = await self._repository.poll(wanted)
        self._implicit |= {each for each in poll.models if each.name not in names}
        return poll

    async def begin_to_load(self, found: FoundModel, seen: set[ModelIdentifier] | None = None) -> None:
        """Begin to load what this model, if it is an ensemble, lacks; `seen` has been looked for already."""
        seen = set() if seen is None else seen
        for identifier in needed(found):
            if identifier in seen or self._is_there(identifier):
                continue
            seen.add(identifier)
            try:
                lacking = await self._repository.look(identifier.name, preferred=identifier.namespace)
            except ShoalError:
                continue  # the ensemble will say what it lacks
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
        """Unload models that came with an ensemble; returns when clients know of all of them."""
        for each in models:
            self._implicit.discard(each.identifier)
        await gather(*[each.unload() for each in models])

    async def unload(self, ensemble: Model) -> None:
        """Of an ensemble that has been unloaded, unload the models that came with it and that no other needs."""
        others = [each for each in self._models.models.values() if each is not ensemble and each.is_wanted]
        kept = {model.identifier for each in others for model in self._composing(each)}
        going = [model for model in self._composing(ensemble) if model.identifier in self._implicit - kept]
        going.sort(key=lambda model: model.identifier)
        for model in [each for each in going if not each.is_loading]:
            self._implicit.discard(model.identifier)
            await model.unload()
            await self.unload(model)

    def _composing(self, ensemble: Model) -> list[Model]:
        """What an ensemble is made of, each model once."""
        configs = [served.source.config for served in ensemble.versions.values()]
        meant = [each for config in configs for each in _needed_by(config, ensemble.identifier.namespace)]
        found = [self._models.find_composing(each) for each in meant]
        return list(dict.fromkeys([model for model in found if model is not None]))


def needed(found: FoundModel) -> list[ModelIdentifier]:
    """The models that an ensemble is made of, as its own repository has them; none where it is no ensemble."""
    return _needed_by(found.config, found.namespace)


def _needed_by(config: Config, namespace: str) -> list[ModelIdentifier]:
    return [ModelIdentifier(name, namespace) for name in dict.fromkeys([step["model_name"] for step in steps(config)])]
