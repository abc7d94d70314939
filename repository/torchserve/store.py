"""TorchServe's model store: finds the archive that a registration names, unpacks it, and makes a model of it.

    STORE/a.mar   STORE/b.tar.gz   STORE/c/MAR-INF/MANIFEST.json   /elsewhere/folder   http(s):// and file:// URLs

A registered archive is a model with one version, whose directory is the unpacked archive (or the folder itself) and
whose configuration says what config.pbtxt would. Runs in the poller. Keeps no state but files: the supervisor knows
which archives are registered (supervisor/models/registrations.py).
"""

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.file_kinds import exists, is_dir, is_file
from shoal.model_config import files
from shoal.model_config.load import parse_override, prepare_config
from shoal.passwords import shown_url
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import is_model_name
from shoal.repository.poll import newest_ns
from shoal.repository.torchserve.archive import RefusedArchiveError, unpack
from shoal.repository.torchserve.configuration import (
    ArchiveFacts,
    Machine,
    StoreRequest,
    configuration,
    handler_of,
    invalid_model,
)
from shoal.repository.torchserve.download import download, is_allowed, is_url
from shoal.repository.torchserve.manifest import MANIFEST, RUNTIMES, Manifest, ManifestError, read_manifest
from shoal.repository.torchserve.snapshots import write_snapshot
from shoal.repository.torchserve.yaml_config import YamlError, read_yaml_config
from shoal.store_settings import ALL, StoreSettings
from shoal.torchserve_errors import torchserve_error

_log = logging.getLogger(__name__)

#: Endings of the archives that `all` takes, as in TorchServe.
_ENDINGS = (".mar", ".model", ".tar.gz", ".tgz")
#: A call of this name in a handler's source means that the model sends intermediate responses.
_STREAMING_CALL = b"send_intermediate_predict_response"
_MAX_SOURCES, _MAX_SOURCE_BYTES = 64, 1 << 20
#: The number of every version that the poller reports; the supervisor gives each its own.
_NUMBER = 1


class _Place(NamedTuple):
    """Where the archive or folder of a registration has been found."""

    path: Path
    is_folder: bool
    is_download: bool  # whether this registration has downloaded it into the store


@dataclass(frozen=True, slots=True)
class TorchServeStore:
    """The model store of a server. `work` is an empty directory of this server's own, for unpacked archives."""

    settings: StoreSettings
    work: Path
    machine: Machine

    def clean(self) -> None:
        """Remove the directories that earlier servers have left beside this server's."""
        self.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        for entry in self.work.parent.iterdir():
            if entry != self.work and entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)

    def load_at_start(self) -> Iterator[FoundModel]:
        """The models that `load_models` names, each as `register` finds it; a failure becomes its `error`. Raises
        ShoalError if all are named and the store cannot be read."""
        for request in self._startup_requests():
            try:
                yield self.register(request)
            except ShoalError as error:
                name = request.model_name or default_name(request.url)
                yield FoundModel(name, Path(), {}, {}, {}, 0, error, origin=request.url)

    def register(self, request: StoreRequest) -> FoundModel:
        """The model that a registration means, unpacked. Its only version has the number 1; the text of the version and
        all other facts are parameters of its configuration.

        Raises ShoalError with TorchServe's status, type and sentence; the files of a failed attempt are removed.
        """
        if request.runtime not in (None, "", *RUNTIMES):
            raise torchserve_error(400, "BadRequestException", f"Invalid RuntimeType value: {request.runtime}")
        place = self._find(request)
        model_dir = place.path
        try:
            modified_ns = newest_ns(place.path)[0]
            if not place.is_folder:
                model_dir = self.unpack(place.path, _refused)
            return self._describe(request, place, model_dir, modified_ns)
        except (ShoalError, OSError) as error:
            if not place.is_folder and model_dir != place.path:
                shutil.rmtree(model_dir, ignore_errors=True)
            if place.is_download:
                remove_download(place.path)
            if isinstance(error, ShoalError):
                raise
            # The manifest has a name that no file can have, or the server's user may not read the folder.
            raise _refused(f"Archive '{place.path.name}' cannot be read: {error.strerror}") from error

    def look_again(self, request: StoreRequest, modified_ns: int) -> FoundModel | None:
        """The model of a registered archive or folder whose modification time is no longer `modified_ns`; None where it
        was downloaded, is unchanged, or is gone: a model outlives its archive. Raises ShoalError like `register`."""
        path = None if is_url(request.url) else self._path(request.url, is_trusted=True)
        try:
            if path is not None and is_dir(path):
                path = _entered(path)
        except OSError:  # the archive cannot be read any more: the model is served on
            return None
        if path is None or newest_ns(path)[0] in (0, modified_ns):
            return None
        return self.register(request)

    def withdraw(self, directory: Path, archive: str) -> None:
        """Remove an unpacked archive and, if the archive was a download, `archive` from the store ("": it was none)."""
        if directory.parent == self.work:
            shutil.rmtree(directory, ignore_errors=True)
        if archive and is_model_name(archive):
            remove_download(self.settings.directory / archive)

    def save_snapshot(self, name: str, models: str) -> None:
        """Write a snapshot of the configuration (snapshots.py). Raises InternalError."""
        settings = self.settings
        write_snapshot(Path(settings.snapshot_directory), name, settings.snapshot_properties, models)

    # --- finding ---

    def _startup_requests(self) -> list[StoreRequest]:
        wanted = self.settings.load_models
        if [each.lower() for each in wanted] != [ALL]:  # SageMaker's toolkit writes ALL in capitals
            pairs = [entry.partition("=") if "=" in entry.partition("://")[0] else ("", "", entry) for entry in wanted]
            return [StoreRequest(url, name or None, is_startup=True) for name, _, url in pairs if url]
        try:
            entries = sorted(self.settings.directory.iterdir())
        except OSError as error:
            raise torchserve_error(
                404,
                "ModelNotFoundException",
                f"Model store '{self.settings.directory}' cannot be read: {error.strerror}",
            ) from error
        chosen = [
            each for each in entries if each.name[0] != "." and (each.name.endswith(_ENDINGS) or is_dir(each))
        ]  # fmt: skip
        return [StoreRequest(each.name, is_startup=True) for each in chosen]

    def _find(self, request: StoreRequest) -> _Place:
        url = request.url
        if not url:
            raise torchserve_error(404, "ModelNotFoundException", "empty url")
        if ".." in url:
            raise torchserve_error(
                404, "ModelNotFoundException", f"Relative path is not allowed in url: {shown_url(url)}"
            )
        if is_url(url):
            return _Place(download(url, self.settings.directory, self.settings.allowed_urls), False, True)
        is_unpacked = request.part is not None and bool(request.part.unpacked)
        path = self._path(url, is_trusted=request.is_startup or is_unpacked)
        try:
            if path is not None and is_dir(path):
                return _Place(_entered(path), True, False)
            if path is not None and is_file(path):
                return _Place(path, False, False)
        except OSError as error:  # the name is too long, or the server's user may not read a directory
            raise torchserve_error(
                404, "ModelNotFoundException", f"Model not found at: {shown_url(url)} ({error.strerror})"
            ) from error
        raise torchserve_error(404, "ModelNotFoundException", f"Model not found at: {shown_url(url)}")

    def _path(self, url: str, *, is_trusted: bool) -> Path | None:
        """The path that `url` means, a name in the store or an absolute path; None where it can be neither.
        `is_trusted`: the path was not chosen by a client. Raises ShoalError for a client's path that allowed_urls does
        not allow."""
        if is_model_name(url):
            return self.settings.directory / url
        if not url.startswith("/") or "\0" in url:
            return None
        # A client's path needs the same permission as the file URL of that path.
        if not is_trusted and not is_allowed(f"file://{url}", self.settings.allowed_urls):
            raise torchserve_error(
                404, "ModelNotFoundException", f"Given URL {shown_url(url)} does not match any allowed URL(s)"
            )
        return Path(url)

    # --- unpacking ---

    def unpack(self, path: Path, refused: Callable[[str], ShoalError]) -> Path:
        """A new directory with the contents of an archive. For a file that is no archive or exceeds the limits, raises
        the error that `refused` makes of the reason, for a disk that fails ShoalError; the directory is removed
        then."""
        directory = self.work / secrets.token_hex(16)
        try:
            self.work.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir()
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as archive:
                if not stat.S_ISREG(os.fstat(archive.fileno()).st_mode):
                    raise RefusedArchiveError("it is no regular file")
                digest = _sha256(archive)
                unpacked = unpack(archive, directory)
        except RefusedArchiveError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise refused(f"Archive '{path.name}' is refused: {error}") from error
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise torchserve_error(
                500, "InternalServerException", f"Archive '{path.name}' cannot be unpacked: {error.strerror or error}"
            ) from error
        _log.info(
            "unpacked '%s': sha256 %s, %d files, %d bytes", path, digest, unpacked.num_files, unpacked.nbytes
        )  # fmt: skip
        return directory

    # --- describing ---

    def _describe(self, request: StoreRequest, place: _Place, model_dir: Path, modified_ns: int) -> FoundModel:
        try:
            manifest = read_manifest(model_dir)
        except ManifestError as error:
            raise _refused(f"Archive '{place.path.name}': {error}; make it with torch-model-archiver") from error
        name = request.model_name or (manifest and manifest.model_name)
        if not name and (request.is_startup or place.is_folder):
            name = default_name(place.path.name)
        if not name:
            raise _refused(f"Neither the request nor {MANIFEST} in '{place.path.name}' names the model")
        if not is_model_name(name):
            raise _refused(f"{name!r} is no name of a model")
        self._check(request, manifest, name, model_dir)
        facts = ArchiveFacts(name, manifest, self._yaml(manifest, model_dir), _streams(model_dir))
        written, warnings = configuration(request, facts, self.settings, self.machine)
        for sentence in warnings:
            _log.warning("%s", sentence)
        config = prepare_config(parse_override(json.dumps(written), name), model_dir, strict=True)
        fingerprint = hashlib.blake2b(f"{place.path}:{modified_ns}".encode("utf-8", "replace"), digest_size=16)
        return FoundModel(
            name,
            model_dir,
            config,
            {},
            {_NUMBER: FoundVersion(model_dir, modified_ns)},
            0,
            origin=place.path.name if place.is_download else "",
            fingerprint=fingerprint.hexdigest(),
            changed_ns=modified_ns,
        )

    def _check(self, request: StoreRequest, manifest: Manifest | None, name: str, model_dir: Path) -> None:
        """Refuse an archive that no worker could load, before a process is started."""
        if manifest is not None and manifest.runtime not in ("", *RUNTIMES):
            raise torchserve_error(400, "BadRequestException", f"Invalid RuntimeType value: {manifest.runtime}")
        if not handler_of(request, manifest, self.settings, name):
            raise invalid_model(
                f"Model handler is not defined. Name one for model '{name}' in {MANIFEST}, in the request's parameter "
                "'handler', or in default_service_handler"
            )
        for file in (manifest and (manifest.serialized_file, manifest.model_file, manifest.config_file)) or ():
            if file and not exists(model_dir / file):
                raise invalid_model(f"{MANIFEST} of model '{name}' names '{file}', which the archive lacks")

    def _yaml(self, manifest: Manifest | None, model_dir: Path) -> Mapping[str, Any]:
        if manifest is None or not manifest.config_file:
            return {}
        try:
            return read_yaml_config(model_dir / manifest.config_file)
        except YamlError as error:
            raise invalid_model(f"Failed to parse model config yaml file. {error}") from error


def default_name(url: str) -> str:
    """The name of a model that is loaded at start, or from a folder, and that neither the request nor its manifest
    names: its file's name."""
    name = url.rstrip("/").rpartition("/")[2]
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _entered(folder: Path) -> Path:
    """The only folder in `folder`, if no other visible file and no manifest lies beside it; else `folder` itself."""
    entries = [each for each in folder.iterdir() if each.name[0] != "."]
    return entries[0] if len(entries) == 1 and is_dir(entries[0]) and not exists(folder / MANIFEST) else folder


def remove_download(archive: Path) -> None:
    """Remove a downloaded archive from the store. A failure is logged, since a later download finds the file there."""
    try:
        archive.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the archive '%s' cannot be removed: %s", archive, error.strerror)


def _sha256(archive: Any) -> str:
    digest = hashlib.sha256()
    while chunk := archive.read(1 << 20):
        digest.update(chunk)
    archive.seek(0)
    return digest.hexdigest()


def _streams(model_dir: Path) -> bool:
    sources: Sequence[Path] = sorted(model_dir.glob("*.py"))[:_MAX_SOURCES]
    for source in sources:
        try:
            if _STREAMING_CALL in files.read(source, _MAX_SOURCE_BYTES):
                return True
        except OSError:
            continue  # the worker reports a source that it needs and cannot import
    return False


def _refused(reason: str) -> ShoalError:
    """TorchServe's refusal of an archive that cannot be read, with the reason, which TorchServe leaves out."""
    return invalid_model(f"Model name is not defined. {reason}.")
