"""The models of a test on disk: a model repository, or the directory of a single model."""

import os
from pathlib import Path

from shoal.errors import NotFoundError
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.misplaced import is_model
from shoal.repository.poll import Override, Repositories


class Repository:
    """A repository or a single model's directory, which is only read."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))
        self._repositories = Repositories([self._path])

    def names(self) -> list[str]:
        """The names of all models. Raises InvalidArgumentError for a path that cannot be read."""
        if is_model(self._path):
            return [self._path.name]
        return [identifier.name for identifier in self._repositories.scan().models]

    def look(self, name: str, config: str | None = None, directory: Path | None = None) -> FoundModel:
        """A model of the repository, or one beside the single model, with `config`, a ModelConfig in JSON, in place of
        its file, and `directory` in place of its own. Raises ShoalError for an invalid model."""
        place = directory or (self._path.parent / name if is_model(self._path) else None)
        found: FoundModel | None = None
        if place is None:
            found = self._repositories.look(name, Override(config))
        elif place.is_dir():
            found = self._repositories.look_at(ModelIdentifier(name), place, config)
        if found is None:
            raise NotFoundError(f"there is no model '{name}' in '{self._path}'; it has: {', '.join(self.names())}")
        if found.error is not None:
            raise found.error
        return found
