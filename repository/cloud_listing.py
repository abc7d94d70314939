"""Models from the objects in a bucket: each model's files, and a digest that changes when a file does.

Pure. Names of objects come from a network and become paths: a name that could lead out of a model's directory, or
cannot be a path at all, is refused with a sentence that names bucket and key.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.cloud_url import CloudUrl
from shoal.repository.identifier import MAX_NAME_BYTES, UNSAFE_CHARACTERS

#: A bucket with more objects is taken for data, not a repository (ours); 200 models have some thousand.
MAX_OBJECTS = 100_000
#: The most bytes of a key, in every cloud.
_MAX_KEY_BYTES = 1024


class CloudObject(NamedTuple):
    """An object, or a directory that the cloud's library lists because keys share a prefix."""

    key: str  # relative to the repository, as the cloud lists it
    size: int = 0
    tag: str = ""  # changes with the content: S3's and Azure's ETag, Google's generation
    modified_s: int = 0
    is_directory: bool = False  # True: such a directory, not an object


@dataclass(frozen=True, slots=True)
class CloudModel:
    """One model in the cloud; all paths are relative to the model's directory, and safe."""

    name: str
    files: Mapping[str, CloudObject] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()

    @property
    def tag(self) -> str:
        """A digest that changes when any object of the model changes, comes or goes. Safe as a directory's name."""
        return self.subtree_tag("")

    def subtree_tag(self, directory: str) -> str:
        """A digest like `tag`, of all files below `directory`, one of the model's directories; "" means the whole
        model."""
        top = f"{directory}/" if directory else ""
        facts = [f"{path}\0{each.size}\0{each.tag}" for path, each in self.files.items() if path.startswith(top)]
        facts += [path for path in self.directories if path.startswith(top)]
        return hashlib.sha256("\0\0".join([self.name, *sorted(facts)]).encode()).hexdigest()[:32]


class CloudListing(NamedTuple):
    """The contents of a repository. Each model's name is in `models` or in `problems`."""

    models: dict[str, CloudModel]
    problems: dict[str, str]  # name → why it is no model
    strays: tuple[str, ...]  # errors about objects whose first path part is no usable name


def sort_out(objects: Iterable[CloudObject], url: CloudUrl) -> CloudListing:
    """The models among `objects`, sorted by name. Files beside models and hidden directories are skipped."""
    files: dict[str, dict[str, CloudObject]] = {}
    directories: dict[str, set[str]] = {}
    problems: dict[str, str] = {}
    strays: list[str] = []
    for each in objects:
        # Consoles make an empty object whose key ends with a slash when a user makes a directory.
        is_directory = each.is_directory or (each.key.endswith("/") and not each.size)
        key = each.key.removesuffix("/") if is_directory else each.key
        name, _, path = key.partition("/")
        is_hidden = name.startswith(".") and not _fault(name)
        if is_hidden or (not path and not is_directory):
            continue
        fault = _fault(key)
        if fault:
            sentence = f"object {each.key!r} in bucket '{url.bucket}' of {url} cannot be copied: {fault}; rename it"
            if _fault(name):
                strays.append(sentence)
            else:
                problems[name] = sentence
        else:
            directories.setdefault(name, set()).update(_parents(path), {path} if path and is_directory else ())
            if not is_directory:
                files.setdefault(name, {})[path] = each
    models = {}
    for name in sorted(directories.keys() - problems.keys()):
        try:
            models[name] = _model(name, files.get(name, {}), frozenset(directories[name]), url)
        except ValueError as error:
            problems[name] = str(error)
    return CloudListing(models, problems, tuple(strays))


def _model(name: str, files: dict[str, CloudObject], directories: frozenset[str], url: CloudUrl) -> CloudModel:
    """A model from its files. Raises ValueError where an object with content has a directory's name."""
    for path in files.keys() & directories:
        if files[path].size:
            raise ValueError(
                f"object '{name}/{path}' in bucket '{url.bucket}' of {url} cannot be copied: "
                "other objects lie below it as below a directory; rename it"
            )
    return CloudModel(name, {path: files[path] for path in sorted(files) if path not in directories}, directories)


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:length]) for length in range(1, len(parts)))


def _fault(key: str) -> str:
    """Why `key` is no relative path inside a directory; "" if it is one."""
    parts = key.split("/")
    if "" in parts:
        return "a name in it is empty"
    if "." in parts or ".." in parts:
        return "it goes through '.' or '..'"
    if UNSAFE_CHARACTERS.search(key):
        return "it has a control character or is no UTF-8"
    if len(key.encode()) > _MAX_KEY_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        return f"a name in it is longer than {MAX_NAME_BYTES} bytes, or all of it longer than {_MAX_KEY_BYTES}"
    return ""
