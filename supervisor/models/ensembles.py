"""What ensembles depend on: the models that a load must bring along, and those that may go with an ensemble.

Runs in the supervisor, part of model control. A model that was loaded only because an ensemble needs it is remembered
as such: it goes with the last ensemble that does, where the client asks for that.
"""

from collections.abc import Callable, Collection

from shoal.model_config.ensemble import steps
from shoal.model_config.messages import Config
from shoal.repository.found import FoundModel, Poll
from shoal.repository.identifier import ModelIdentifier
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.processes.repository import Failed, Repository


class Dependencies:
    """Of all ensembles."""

    def __init__(self, repository: Repository, models: Models) -> None:
        self._repository = repository
        self._models = models
        #: Models that nobody has asked for by their names. Changed by poll, load and unload.
        self._implicit: set[ModelIdentifier] = set()

    def asked_for(self, name: str) -> None:
        """Somebody wants this model for itself."""
        self._implicit = {each for each in self._implicit if each.name != name}

    def poll(self, names: Collection[str], then: Callable[[Poll], None], failed: Failed) -> None:
        """These models, and all that ensembles among them are made of."""
        wanted = set(names)

        def polled(poll: Poll) -> None:
            more = {each.name for found in poll.models.values() for each in needed(found)} - wanted
            if not more:
                self._implicit |= {each for each in poll.models if each.name not in names}
                then(poll)
                return
            wanted.update(more)
            self._repository.poll(wanted, polled, failed)

        self._repository.poll(wanted, polled, failed)

    def load(self, found: FoundModel, then: Callable[[], None]) -> None:
        """Begin to load what this model, if it is an ensemble, lacks; `then` when all has begun."""
        self._load([found], set(), then)

    def _load(self, ensembles: list[FoundModel], seen: set[ModelIdentifier], then: Callable[[], None]) -> None:
        meant = [each for found in ensembles for each in needed(found) if each not in seen]
        lacking = next((each for each in meant if not self._is_there(each)), None)
        if lacking is None:
            then()
            return
        seen.add(lacking)

        def looked(model: FoundModel | None) -> None:
            if model is not None:
                self._load([model], seen, lambda: begin(model))
            else:
                self._load(ensembles, seen, then)  # the ensemble will say what it lacks

        def begin(model: FoundModel) -> None:
            if not self._is_there(model.identifier):
                self._implicit.add(model.identifier)
                self._models.load(model, lambda _error: None)
            self._load(ensembles, seen, then)

        name, namespace = lacking
        self._repository.look(name, looked, lambda _error: self._load(ensembles, seen, then), preferred=namespace)

    def _is_there(self, identifier: ModelIdentifier) -> bool:
        model = self._models.models.get(identifier)
        return model is not None and (model.is_loading or bool(model.serving))

    def unload_all(self, models: Collection[Model], then: Callable[[], None]) -> None:
        """Unload models that came with an ensemble; `then` when clients know of all of them."""
        missing = len(models)

        def unloaded() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                then()

        if not models:
            then()
        for each in models:
            self._implicit.discard(each.identifier)
            each.unload(unloaded)

    def unload(self, ensemble: Model, then: Callable[[], None]) -> None:
        """Of an ensemble that has been unloaded, unload the models that came with it and that no other needs."""
        others = [each for each in self._models.models.values() if each is not ensemble and each.is_wanted]
        kept = {model.identifier for each in others for model in self._composing(each)}
        going = [model for model in self._composing(ensemble) if model.identifier in self._implicit - kept]
        going.sort(key=lambda model: model.identifier)
        self._unload_each([model for model in going if not model.is_loading], then)

    def _composing(self, ensemble: Model) -> list[Model]:
        """What an ensemble is made of, each model once."""
        configs = [served.source.config for served in ensemble.versions.values()]
        meant = [each for config in configs for each in _needed_by(config, ensemble.identifier.namespace)]
        found = [self._models.find_composing(each) for each in meant]
        return list(dict.fromkeys([model for model in found if model is not None]))

    def _unload_each(self, models: list[Model], then: Callable[[], None]) -> None:
        if not models:
            then()
            return
        first, *rest = models
        self._implicit.discard(first.identifier)
        first.unload(lambda: self.unload(first, lambda: self._unload_each(rest, then)))


def needed(found: FoundModel) -> list[ModelIdentifier]:
    """The models that an ensemble is made of, as its own repository has them; none where it is no ensemble."""
    return _needed_by(found.config, found.namespace)


def _needed_by(config: Config, namespace: str) -> list[ModelIdentifier]:
    return [ModelIdentifier(name, namespace) for name in dict.fromkeys([step["model_name"] for step in steps(config)])]
