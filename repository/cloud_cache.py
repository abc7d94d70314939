"""Copies of models from cloud storage on the local disk: complete or absent, one directory for each content.

    <root>/<bucket>-<digest of the address>/<slot>/
    ├── lock                    held by the server that uses this slot; the next server takes the next slot
    ├── objects/<digest>        every object that has come whole, hard-linked into the copies that have it
    ├── <tag>/<model>/…         a copy; its tag changes with its content, so equal paths mean equal contents
    └── .<anything>             in the making, or on its way out: what a killed process leaves

Every object and every copy gets its name by a rename, after it is complete. Objects in `objects` are not fetched again:
neither after a restart, nor the old versions of a model that got a new one. Knows no network.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from threading import Lock

from shoal.cloud_url import CloudUrl
from shoal.errors import UnavailableError
from shoal.repository import slots
from shoal.repository.cloud_listing import CloudModel, CloudObject
from shoal.repository.slots import Slot

#: Scheme → environment variable with the directory of copies. Triton's variables.
ROOT_VARIABLES = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}


def take_slot(url: CloudUrl, environ: Mapping[str, str]) -> Slot:
    """The first slot for copies of this repository that no running server uses; older copies may still lie there.

    Without Triton's variable, copies lie in the directory for temporary files, as Triton's do, open to this user only.
    Raises UnavailableError where that is not writable, or all slots are taken.
    """
    variable = ROOT_VARIABLES[url.scheme]
    given = environ.get(variable)
    root = Path(given) if given else slots.private_root()
    try:
        slot = slots.take(root, f"{url.bucket}-{slots.digest(str(url))}", is_private=not given)
    except OSError as error:
        raise UnavailableError(
            f"copies of models from {url} cannot be kept in '{root}': {error.strerror}; "
            f"set {variable} to a directory that the server's user can write to"
        ) from error
    if slot is None:
        raise UnavailableError(
            f"{slots.MAX_SLOTS} servers keep copies of {url} in '{root}' already; set {variable} to another directory"
        )
    return slot


class CopyCache:
    """The copies of models in one slot."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects = directory / "objects"
        # The lock, and what it guards: the directories of `workplace` that are in use.
        self._lock = Lock()
        self._workplaces: set[Path] = set()

    def find(self, model: CloudModel) -> Path | None:
        """The copy with exactly this content; None where there is none, or a power failure has truncated it."""
        copy = self._directory / model.tag / model.name
        return (
            copy if all(_is_whole(copy / path, each) for path, each in model.files.items()) and copy.is_dir() else None
        )

    def missing(self, model: CloudModel) -> dict[str, CloudObject]:
        """The objects of a model that have to be fetched, by their path in the model."""
        return {
            path: each for path, each in model.files.items() if not _is_whole(self._object(model, path, each), each)
        }

    def free_nbytes(self) -> int:
        """Free bytes on the disk of this slot."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._directory).free

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A fresh directory for downloads, removed at the end of the `with` with all that was not kept."""
        self._objects.mkdir(parents=True, exist_ok=True)
        with self._lock:
            directory = Path(tempfile.mkdtemp(prefix=".", dir=self._directory))
            self._workplaces.add(directory)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            with self._lock:
                self._workplaces.discard(directory)

    def keep_object(self, download: Path, model: CloudModel, path: str) -> None:
        """Move a download to the kept objects, if it is complete."""
        each = model.files[path]
        if not _is_whole(download, each):
            return
        stamp_ns = _stamp_ns(each.modified_s, each.tag, is_directory=False)
        os.utime(download, ns=(stamp_ns, stamp_ns))
        download.replace(self._object(model, path, each))  # publishes: an object that later fetches rely on

    def assemble(self, model: CloudModel, workplace: Path) -> Path:
        """Make a copy of a model from the kept objects; its modification times are explained at `_stamp_ns`.

        Raises UnavailableError where an object is missing.
        """
        for path, each in self.missing(model).items():
            raise UnavailableError(
                f"object '{model.name}/{path}' did not come with the {each.size} bytes it should have"
            )
        top = workplace / "copy" / model.name
        for directory in ("", *sorted(model.directories)):
            (top / directory).mkdir(parents=True)
        for path, each in model.files.items():
            _link(self._object(model, path, each), top / path)
        for directory in ("", *model.directories):
            below = f"{directory}/" if directory else ""
            newest_s = max((each.modified_s for path, each in model.files.items() if path.startswith(below)), default=0)
            stamp_ns = _stamp_ns(newest_s, model.subtree_tag(directory), is_directory=True)
            os.utime(top / directory, ns=(stamp_ns, stamp_ns))
        copy = self._directory / model.tag
        if copy.exists():  # truncated, or made by another thread meanwhile
            copy.rename(workplace / "old")
        top.parent.rename(copy)  # publishes: the copy
        return copy / model.name

    def forget(self, keep: Collection[Path], under_way: Collection[CloudModel] = ()) -> None:
        """Remove copies that contain none of `keep`, objects that no copy has, and leftovers of killed processes.
        Copies and objects of models `under_way`, which are being fetched, stay."""
        tags = {model.tag for model in under_way}
        for entry in self._entries():
            if entry.name[0] == ".":
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name not in tags and not any(entry in path.parents for path in keep):
                with self.workplace() as workplace:
                    entry.rename(workplace / entry.name)  # a kill from here on leaves no half of a copy
        if self._objects.is_dir():
            needed = {self._object(model, path, each) for model in under_way for path, each in model.files.items()}
            for stored in self._objects.iterdir():
                with contextlib.suppress(FileNotFoundError):  # a thread moved it into a copy, as hard links are missing
                    if stored not in needed and stored.stat().st_nlink == 1:
                        stored.unlink()

    def _entries(self) -> list[Path]:
        """The directories of the slot but those of objects and of workplaces in use."""
        if not self._directory.is_dir():
            return []
        with self._lock:
            return [each for each in self._directory.iterdir() if each.is_dir() and not self._is_in_use(each)]

    def _is_in_use(self, entry: Path) -> bool:
        return entry == self._objects or entry in self._workplaces

    def _object(self, model: CloudModel, path: str, each: CloudObject) -> Path:
        facts = "\0".join([model.name, path, str(each.size), each.tag])
        return self._objects / hashlib.sha256(facts.encode()).hexdigest()[:32]


def _stamp_ns(modified_s: int, tag: str, *, is_directory: bool) -> int:
    """A modification time for a copied file or directory: the second is the cloud's, its fraction is made from the tag.

    So a comparison of modification times shows files replaced within a second and, by the stamp of a directory,
    which is later than those of its files, removed files.
    """
    fraction_ns = int(hashlib.sha256(tag.encode()).hexdigest()[:12], 16) % 500_000_000
    return modified_s * 1_000_000_000 + fraction_ns + is_directory * 500_000_000


def _is_whole(file: Path, each: CloudObject) -> bool:
    try:
        return file.stat().st_size == each.size
    except OSError:
        return False


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links: the object is fetched again when another copy needs it
        source.rename(target)
