"""Reading the repositories: the models that exist, their configurations, and when their files were modified.

Reads directories, configurations, label files and rollout.json, and changes nothing but the copies of models in clouds.
Runs in the poller (`repository/main.py`): no other process waits for a slow network file system.
"""

import logging
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config.backends import PLATFORMS
from shoal.model_config.ensemble import steps
from shoal.model_config.files import CONFIG_FILENAME, read
from shoal.model_config.load import (
    CONFIGS_DIRECTORY,
    parse_override,
    prepare_config,
    read_config,
)
from shoal.model_config.messages import Config
from shoal.repository import misplaced
from shoal.repository.cloud import CloudRepository
from shoal.repository.cloud_listing import CloudModel
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import ModelIdentifier, only_model
from shoal.repository.labels import read_labels
from shoal.repository.scan import (
    CloudPlace,
    RepositoryScan,
    is_version_name,
    scan,
    version_directories,
    wanted_versions,
)

_log = logging.getLogger(__name__)

#: Backends whose models are files of a framework, and no code of a user.
_FILE_BACKENDS = frozenset({"fil", *(each.backend for each in PLATFORMS)} - {"python"})
#: The file of a model's directory that says how a new version is rolled out; and its greatest size in bytes (ours).
ROLLOUT_FILENAME = "rollout.json"
_MAX_ROLLOUT_BYTES = 65536


class Override(NamedTuple):
    """The parts of a load request that replace the repository's model."""

    config: str | None = None  # ModelConfig as JSON, in place of the file
    directory: Path | None = None  # a model directory made for this request, in place of the repository's
    repository: Path | None = None  # a repository with the model, under any name, in place of the server's


NO_OVERRIDE = Override()


@dataclass(frozen=True, slots=True)
class Repositories:
    """The model repositories, and how their configurations are read."""

    sources: Sequence[Path | CloudRepository]
    strict: bool = False  # --disable-auto-complete-config
    config_name: str = ""  # --model-config-name
    namespacing: bool = False  # --model-namespacing
    backend_directory: Path | None = None  # --backend-directory

    def scan(self) -> RepositoryScan:
        """All models of the repositories. Raises InvalidArgumentError for a repository that cannot be read,
        UnavailableError for one in a cloud that does not answer."""
        return scan(self.sources, namespacing=self.namespacing)

    def look_all(self, name: str, override: Override = NO_OVERRIDE) -> list[FoundModel]:
        """All models of a name, as found on disk; with namespacing there may be several.

        A request's model directory or repository can replace only one model: then this is `look`. Raises as `scan`, and
        as `look`.
        """
        if override.repository is not None or override.directory is not None:
            found = self.look(name, override)
            return [] if found is None else [found]
        places = {identifier: place for identifier, place in self.scan().models.items() if identifier.name == name}
        given = override.config is not None
        return [replace(found, is_given=given) for found in self.look_at_each(places, override.config)]

    def look(self, name: str, override: Override = NO_OVERRIDE, *, preferred: str = "") -> FoundModel | None:
        """The model of a name, as found on disk; None where there is none.

        Raises InvalidArgumentError where the name is ambiguous, and none of the models is in the `preferred` namespace,
        or where the request's repository is not of one model; and as `scan`.
        """
        if override.repository is not None:
            return self._look_in(override.repository, name)
        # A directory in the request needs no repository, except for the namespace of the model that it replaces.
        is_known = override.directory is not None and not self.namespacing
        models = {} if is_known else self._models_of(preferred)
        bearers = [identifier for identifier in models if identifier.name == name]
        own = ModelIdentifier(name, preferred)
        identifier = own if own in models else only_model(name, bearers) or ModelIdentifier(name)
        place = override.directory or models.get(identifier)
        if place is None:
            return None
        found = next(self.look_at_each({identifier: place}, override.config))
        return replace(found, is_given=override.config is not None and override.directory is None)

    def _look_in(self, repository: Path, name: str) -> FoundModel:
        """The model of a repository that came with a request, under the name that the request gives: the repository
        itself if it has a config.pbtxt, else the only model there, or the ensemble whose steps are the other models.
        The steps' models have the repository as namespace."""
        if os.path.lexists(repository / CONFIG_FILENAME):
            return self.look_at(ModelIdentifier(name), repository, mapped=True)
        directories = [each for each in scan([repository]).models.values() if isinstance(each, Path)]
        if len(directories) == 1:
            return self.look_at(ModelIdentifier(name), directories[0], mapped=True)
        configs = {each: self.look_at(ModelIdentifier(each.name), each).config for each in directories}
        composing = {step["model_name"] for config in configs.values() for step in steps(config)}
        graphs = [each for each, config in configs.items() if steps(config) and each.name not in composing]
        if len(graphs) != 1:
            raise InvalidArgumentError(
                f"expected one model in '{repository}', found {len(directories)}, of which {len(graphs)} are ensembles "
                f"of the others; put {CONFIG_FILENAME} there, a single directory that is a model, or an ensemble and "
                "its models"
            )
        return self.look_at(ModelIdentifier(name, str(repository)), graphs[0], mapped=True)

    def _models_of(self, namespace: str) -> dict[ModelIdentifier, Path | CloudPlace]:
        """The models of all repositories, and those of the namespace if that is a repository which a client has
        registered."""
        models = self.scan().models
        own = {str(each if isinstance(each, Path) else each.url) for each in self.sources} if self.namespacing else ()
        if namespace and namespace not in own:
            models = {**models, **scan([Path(namespace)], namespacing=True).models}
        return models

    def look_at_each(
        self,
        places: Mapping[ModelIdentifier, Path | CloudPlace],
        override: str | None = None,
        patience_s: float | None = None,
    ) -> Iterator[FoundModel]:
        """Several models, as found on disk; those in cloud storage follow as soon as they are copied. With
        `patience_s`, those whose copy takes longer are left out (CloudRepository.fetch_some)."""
        clouds: dict[tuple[CloudRepository, str], list[CloudModel]] = {}
        for identifier, place in places.items():
            if isinstance(place, Path):
                yield self.look_at(identifier, place, override)
            else:
                clouds.setdefault((place.repository, identifier.namespace), []).append(place.model)
        for (repository, namespace), models in clouds.items():
            copies = repository.fetch_all(models) if patience_s is None else repository.fetch_some(models, patience_s)
            for name, copy in copies:
                if isinstance(copy, Path):
                    found = self.look_at(ModelIdentifier(name, namespace), copy, override)
                    yield replace(found, origin=f"{repository.url}/{name}")
                else:
                    yield FoundModel(name, Path(), {}, {}, {}, 0, copy, namespace=namespace)

    def forget(self, keep: Collection[Path]) -> None:
        """Remove the copies from cloud storage that contain none of `keep` (CloudRepository.forget)."""
        for source in self.sources:
            if isinstance(source, CloudRepository):
                source.forget(keep)

    def look_at(
        self, identifier: ModelIdentifier, directory: Path, override: str | None = None, *, mapped: bool = False
    ) -> FoundModel:
        """The model in a directory, as found on disk; a fault of its files becomes its `error`.

        With `mapped`, the model has the identifier's name, whatever its configuration says.
        """
        name, namespace = identifier
        how: dict[str, Any] = {"strict": self.strict, "backend_directory": self.backend_directory}
        versions: dict[int, FoundVersion] = {}
        config: Config = {}
        labels: dict[str, tuple[str, ...]] = {}
        error: ShoalError | None = None
        times, changed_ns, specials = _times(directory)
        try:
            if override is None:
                config = read_config(directory, name=name, mapped=mapped, config_name=self.config_name, **how)
            else:
                config = prepare_config(parse_override(override, name), directory, **how)
            available = version_directories(directory)
            for number in wanted_versions(available, config["version_policy"], name):
                place = available[number]
                _refuse_special(specials.get(place.name, ""), name, config)
                versions[number] = FoundVersion(place, times.get(place.name, 0))
            labels = read_labels(directory, config)
        except ShoalError as refusal:
            error = misplaced.explained(refusal, directory) if isinstance(refusal, InvalidArgumentError) else refusal
        known = {CONFIG_FILENAME, CONFIGS_DIRECTORY, ROLLOUT_FILENAME}  # not among the model's other files
        others = [times[entry] for entry in times if entry not in known and not is_version_name(entry)]
        others_ns = max(others, default=0)
        seen = _fingerprint(times), changed_ns
        return FoundModel(
            name, directory, config, labels, versions, others_ns, error, "", namespace, *seen,
            rollout=_read_rollout(directory),
        )  # fmt: skip


def _read_rollout(directory: Path) -> str:
    """The text of a model's rollout.json, "" without one. One that cannot be read is logged: the model is served."""
    path = directory / ROLLOUT_FILENAME
    try:
        text = read(path, _MAX_ROLLOUT_BYTES + 1)
        if len(text) > _MAX_ROLLOUT_BYTES:
            raise ValueError(f"it has more than {_MAX_ROLLOUT_BYTES} bytes")
        return text.decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        _log.error("'%s' cannot be read: %s", path, error)
        return ""


def newest_ns(path: Path) -> tuple[int, int, str]:
    """The newest times of modification and of change (st_ctime: access rights, too) of a file or of all entries below a
    directory, 0 where there is none; and the last FIFO, socket or device below the directory, "" without any."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, ""
    modified_ns, changed_ns, special = status.st_mtime_ns, status.st_ctime_ns, ""
    for directory, _, files in os.walk(path):
        for entry in (directory, *[os.path.join(directory, file) for file in files]):
            try:
                status = os.stat(entry)
            except OSError:
                continue  # a link that points nowhere, or removed meanwhile
            modified_ns, changed_ns = max(modified_ns, status.st_mtime_ns), max(changed_ns, status.st_ctime_ns)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                special = entry
    return modified_ns, changed_ns, special


def _times(directory: Path) -> tuple[dict[str, int], int, dict[str, str]]:
    """By visible entry of a model's directory, the newest modification time in it; the newest change of all; and by
    entry a FIFO, socket or device in it, "" without any."""
    try:
        newest = {entry.name: newest_ns(entry) for entry in directory.iterdir() if entry.name[0] != "."}
    except OSError:
        return {}, 0, {}  # reading the configuration fails next, and reports why
    modified = {name: modified_ns for name, (modified_ns, _, _) in newest.items()}
    changed_ns = max((changed_ns for _, changed_ns, _ in newest.values()), default=0)
    return modified, changed_ns, {name: special for name, (_, _, special) in newest.items()}


def _refuse_special(path: str, name: str, config: Config) -> None:
    """Raise UnavailableError for a FIFO, socket or device in the version directory of a model whose framework may open
    every file there, and would wait for a writer; a model of Python may have made it for itself."""
    if path and config["backend"] in _FILE_BACKENDS and config["runtime"] != "model.py":
        raise UnavailableError(
            f"'{path}' of model '{name}' cannot be read: it is not a regular file; put the model's file in its place"
        )


def _fingerprint(times: Mapping[str, int]) -> str:
    """A digest of `_times`, which the supervisor compares: messages have no room for many names, nor for names that are
    no UTF-8."""
    return blake2b(repr(sorted(times.items())).encode(), digest_size=16).hexdigest() if times else ""
