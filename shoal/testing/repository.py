"""What a test names as the place of its models: a model repository, or the directory of a single model."""

import os
from pathlib import Path

from shoal.errors import NotFoundError
from shoal.model_config.load import CONFIG_FILENAME
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.poll import Override, Repositories
from shoal.repository.scan import is_version_name


class Repository:
    """One of the two. Only looks."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))
        self._repositories = Repositories([self._path])

    def names(self) -> list[str]:
        """Its models. Raises InvalidArgumentError for a path that cannot be read."""
        if self._is_model():
            return [self._path.name]
        return [identifier.name for identifier in self._repositories.scan().models]

    def look(self, name: str, config: str | None = None, directory: Path | None = None) -> FoundModel:
        """One of its models, with `config`, a ModelConfig in JSON, in the place of the file, `directory` in that of its
        own. Raises what is wrong with it.
        """
        place = self._path if self._is_model() and name == self._path.name else directory
        if place is not None:
            found: FoundModel | None = self._repositories.look_at(ModelIdentifier(name), directory or place, config)
        else:
            found = None if self._is_model() else self._repositories.look(name, Override(config))
        if found is None:
            raise NotFoundError(f"there is no model '{name}' in '{self._path}'; it has: {', '.join(self.names())}")
        if found.error is not None:
            raise found.error
        return found

    def _is_model(self) -> bool:
        path = self._path
        if os.path.lexists(path / CONFIG_FILENAME):
            return True
        return path.is_dir() and any(is_version_name(entry.name) for entry in path.iterdir() if entry.is_dir())
