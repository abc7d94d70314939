"""The models and versions on disk, and which file of a version is the model.

Runs in the poller. Reads directories only, never a file's contents, and changes nothing. A directory that is no valid
model becomes a problem beside the others, never an exception that hides them.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.file_kinds import exists, is_dir, is_file
from shoal.model_config.checks import is_inside
from shoal.repository.identifier import MAX_NAME_BYTES, ModelIdentifier, is_model_name

if TYPE_CHECKING:  # the supervisor imports this module, too, and must import no module that reads clouds
    from shoal.repository.cloud import CloudRepository
    from shoal.repository.cloud_listing import CloudModel

_log = logging.getLogger(__name__)

#: Directories that a file system or Triton's layout has beside models and versions: skipped without a warning.
_NO_MODELS = frozenset({"lost+found"})
_NO_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
_MAX_VERSION = 2**63 - 1


class CloudPlace(NamedTuple):
    """A model in cloud storage, which is copied to this machine before it is read."""

    repository: "CloudRepository"
    model: "CloudModel"


class RepositoryScan(NamedTuple):
    """All models of the repositories: each identifier is in `models` or in `problems`."""

    models: dict[ModelIdentifier, Path | CloudPlace]  # identifier → the model's directory
    problems: dict[ModelIdentifier, str]  # identifier → why its directory is no model


def scan(repositories: Sequence["Path | CloudRepository"], *, namespacing: bool = False) -> RepositoryScan:
    """The models in `repositories`, sorted by name; links to directories count as directories.

    With `namespacing` each repository is the namespace of its models.

    Raises InvalidArgumentError for a repository that cannot be read, UnavailableError for one in a cloud that does not
    answer. Triton would take `.git` for a model; here hidden directories are skipped.
    """
    found: dict[ModelIdentifier, list[Path | CloudPlace]] = {}
    problems: dict[ModelIdentifier, str] = {}
    for repository in repositories:
        if isinstance(repository, Path):
            namespace = str(repository) if namespacing else ""
            for directory in _directories(repository):
                if directory.name not in _NO_MODELS:
                    found.setdefault(ModelIdentifier(directory.name, namespace), []).append(directory)
        else:
            namespace = str(repository.url) if namespacing else ""
            listing = repository.listing()
            problems |= {ModelIdentifier(name, namespace): reason for name, reason in listing.problems.items()}
            for name, model in listing.models.items():
                found.setdefault(ModelIdentifier(name, namespace), []).append(CloudPlace(repository, model))
    models: dict[ModelIdentifier, Path | CloudPlace] = {}
    for identifier in sorted(found):
        if len(found[identifier]) > 1 or identifier in problems:
            problems[identifier] = "model appears in two or more repositories"
        elif not is_model_name(identifier.name):
            shown = identifier._replace(name=identifier.name.encode("utf-8", "backslashreplace").decode())
            problems[shown] = (
                f"directory name {identifier.name!r} is no model name: expected at most {MAX_NAME_BYTES} bytes of "
                "UTF-8 without control characters; rename the directory"
            )
        else:
            models[identifier] = found[identifier][0]
    return RepositoryScan(models, problems)


def version_directories(model_dir: Path) -> dict[int, Path]:
    """The versions in `model_dir` and their directories, ascending; other directories are skipped, with a warning
    unless Triton's layout has them there."""
    versions: dict[int, Path] = {}
    for directory in _directories(model_dir):
        name = directory.name
        if name in _NO_VERSIONS:
            continue
        if not is_version_name(name):
            _log.warning(
                "ignore version directory '%s' which fails to convert to integral number; "
                "versions of '%s' have numbers for names", name, model_dir,
            )  # fmt: skip
        elif len(name) > 1 and name[0] == "0":
            _log.warning("ignore version directory '%s' which contains leading zeros in its directory name", name)
        else:
            versions[int(name)] = directory
    return dict(sorted(versions.items()))


def is_version_name(name: str) -> bool:
    """Whether this is the name of a version's directory, or would be one without its leading zeros."""
    return name.isascii() and name.isdigit() and int(name[:20]) <= _MAX_VERSION


def wanted_versions(available: Collection[int], version_policy: Mapping[str, Any], model_name: str) -> tuple[int, ...]:
    """The versions of `available` that `version_policy` (in JSON form) selects, ascending.

    Raises InvalidArgumentError if there is none. A version that `specific` lists and that does not exist is logged and
    skipped.
    """
    ascending = sorted(available)
    if "specific" in version_policy:
        specific = [int(version) for version in version_policy["specific"]["versions"]]
        for missing in sorted(set(specific) - set(ascending)):
            _log.warning("version %d is specified for model '%s', but the version directory is not present",
                         missing, model_name)  # fmt: skip
        wanted = [version for version in ascending if version in specific]
    elif "latest" in version_policy:
        num_versions: int = version_policy["latest"]["num_versions"]
        wanted = ascending[-num_versions:] if num_versions else []
    else:
        wanted = ascending
    if not wanted:
        raise InvalidArgumentError(
            f"at least one version must be available under the version policy of model '{model_name}'"
        )
    return tuple(wanted)


def model_file(
    version_dir: Path, config: Mapping[str, Any], instance_name: str, compute_capability: str = ""
) -> Path | None:
    """The file, or directory, that a backend loads from `version_dir`; None if the backend needs none.

    The configuration's path must not leave the directory. A link may: volumes mounted by Kubernetes and caches of model
    hubs are made of links, and a user who can make one can put any model there. `compute_capability` ("8.0") is that of
    the instance's GPU. Raises InvalidArgumentError, and UnavailableError if there is no such file, or a FIFO or device.
    """
    filename: str = config["cc_model_filenames"].get(compute_capability) or config["default_model_filename"]
    if not filename:
        return None
    path = version_dir / filename
    if not is_inside(filename):
        raise InvalidArgumentError(
            f"model file '{filename}' of model '{config['name']}' is outside its version directory '{version_dir}'; "
            "name a file in it"
        )
    if not exists(path):
        raise UnavailableError(f"unable to find '{path}' for model instance '{instance_name}'")
    if not is_file(path) and not is_dir(path):  # to read a FIFO waits for a writer; a device may have no end
        raise UnavailableError(
            f"'{path}' for model instance '{instance_name}' cannot be read: it is not a regular file; put the model's "
            "file in its place"
        )
    return path


def _directories(parent: Path) -> list[Path]:
    """The visible directories in `parent`, sorted by name."""
    try:
        return sorted(entry for entry in parent.iterdir() if entry.name[0] != "." and is_dir(entry))
    except OSError as error:
        raise InvalidArgumentError(
            f"failed to read the directory '{parent}': {error.strerror}; "
            "name an existing, readable directory with --model-repository"
        ) from error
