"""A model repository in cloud storage: its models, and copies of them on the local disk, through fsspec.

Runs in the poller, which may wait for networks, never in the supervisor. fsspec starts a thread there, so the poller
must not fork afterwards. The only file that imports fsspec and the clouds' libraries.
"""

import contextlib
import errno
import importlib
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError, NotFoundError, ShoalError, UnavailableError, UnsupportedError
from shoal.repository import cloud_credentials
from shoal.repository.cloud_cache import ROOT_VARIABLES, CopyCache
from shoal.repository.cloud_credentials import FILE_VARIABLE, ManagedIdentity
from shoal.repository.cloud_listing import MAX_OBJECTS, CloudListing, CloudModel, CloudObject, sort_out
from shoal.repository.cloud_progress import CopyProgress

_log = logging.getLogger(__name__)

#: Objects of one model, and models, downloaded at once (ours): one stream fills no network, a hundred are no faster.
OBJECTS_AT_ONCE = 8
MODELS_AT_ONCE = 4
#: Downloads that go on beside polls (ours): where there are as many, a poll begins no other.
LATE_AT_ONCE = 32
#: Connections to S3 at once (ours), so that no listing waits for downloads: enough for eight downloads for each of 32
#: orders of the supervisor and of 36 models that polls have begun to copy. botocore's 10 are too few for two models.
CONNECTIONS_AT_ONCE = 1024
#: How often a copy is begun of a model whose objects change meanwhile.
ATTEMPTS = 3


class _Library(NamedTuple):
    module: str
    filesystem: str  # the name of a class, an fsspec.asyn.AsyncFileSystem
    extra: str  # the extra of Shoal's package that installs it


_LIBRARIES = {
    "s3": _Library("s3fs", "S3FileSystem", "s3"),
    "gs": _Library("gcsfs.core", "GCSFileSystem", "gs"),  # what gcsfs itself exports is experimental and needs gRPC
    "as": _Library("adlfs", "AzureBlobFileSystem", "azure"),
}
#: Failures of the network in the clouds' libraries, by the names of their classes, which have no base in common.
_NETWORK_ERRORS = frozenset(
    {
        "ClientConnectionError",
        "ConnectionError",
        "HTTPClientError",
        "ServiceRequestError",
        "TimeoutError",
        "TransportError",
    }
)
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of network operations (ours)."""

    connect_s: float = 5.0
    read_s: float = 30.0  # without a byte on one connection; then the request is repeated
    listing_s: float = 60.0  # for a whole listing: some hundred thousand objects
    stall_s: float = 60.0  # without a byte on all connections together


class CloudRepository:
    """A model repository in cloud storage. Its methods may be called by several threads."""

    def __init__(
        self, url: CloudUrl, cache_dir: Path, environ: Mapping[str, str], patience: Patience | None = None
    ) -> None:
        self.url = url
        self._environ = environ
        self._patience = patience or Patience()
        self._cache = CopyCache(cache_dir)
        # fsspec's file system: made by the first listing or fetch, and again after a failure, as credentials may have
        # been renewed.
        self._filesystem: Any = None
        # Changed under the lock, by fetches: by name, the lock of the thread that fetches the model, and the model's
        # latest copy; the models that are being fetched.
        self._lock = Lock()
        self._turns = defaultdict[str, Lock](Lock)
        self._latest: dict[str, Path] = {}
        self._under_way: list[CloudModel] = []
        # Changed by fetch_some: by model, a fetch that goes on, or is to begin, though no call waits for it.
        self._late: dict[str, Future[Path | ShoalError]] = {}

    def listing(self) -> CloudListing:
        """All models in the repository now, from one listing of objects. Raises ShoalError, also if there are no
        objects."""
        objects = self._objects(self.url.path)
        if not objects:
            raise InvalidArgumentError(f"there is nothing in {self.url}; upload models, or correct --model-repository")
        listing = sort_out(objects, self.url)
        for sentence in listing.strays:
            _log.warning("%s", sentence)
        return listing

    def fetch(self, name: str, model: CloudModel | None = None) -> Path:
        """The directory of a complete copy of the model as it is now. Equal paths have equal contents.

        `model` is the model's entry in a fresh listing; without it, a listing is made. Raises NotFoundError where there
        is no such model, and ShoalError for every other failure.
        """
        with self._lock:
            turn = self._turns[name]
        with turn:
            for _ in range(ATTEMPTS):
                wanted = model or self._model(name)
                with self._kept(wanted):
                    copy = self._copy(wanted)
                    if copy is not None:
                        with self._lock:
                            self._latest[name] = copy
                        return copy
                model = None
        raise UnavailableError(
            f"model '{name}' in {self.url} changed while it was copied, {ATTEMPTS} times in a row; "
            "it is copied when it stays as it is"
        )

    def fetch_all(self, models: Collection[CloudModel]) -> Iterator[tuple[str, Path | ShoalError]]:
        """Fetch several models at once; yields each with its copy, or with its error, as soon as it is done."""
        with ThreadPoolExecutor(MODELS_AT_ONCE) as threads:
            fetches = {threads.submit(self._outcome, model): model.name for model in models}
            for done in as_completed(fetches):
                yield fetches[done], done.result()

    def fetch_some(self, models: Collection[CloudModel], patience_s: float) -> Iterator[tuple[str, Path | ShoalError]]:
        """Like `fetch_all`, but a model whose download takes longer than `patience_s` is left out: the download goes
        on, and a later call yields its outcome. The later call also begins the downloads that have not begun by then.
        Called by one thread."""
        for name in [name for name, fetch in self._late.items() if fetch.cancel()]:
            del self._late[name]
        ended = {name: self._late.pop(name).result() for name in [*self._late] if self._late[name].done()}
        missing = list[CloudModel]()
        for model in models:
            if isinstance(outcome := ended.get(model.name), ShoalError):
                yield model.name, outcome
            elif model.name not in self._late and self._cache.find(model) is None:
                missing.append(model)
            elif model.name not in self._late:
                yield model.name, self._outcome(model)
        if not missing or len(self._late) >= LATE_AT_ONCE:
            return
        threads = ThreadPoolExecutor(MODELS_AT_ONCE)
        fetches = {threads.submit(self._outcome, model): model.name for model in missing}
        done, late = wait(fetches, patience_s)
        self._late |= {fetches[fetch]: fetch for fetch in late}
        threads.shutdown(wait=False)
        for fetch in done:
            yield fetches[fetch], fetch.result()

    def _outcome(self, model: CloudModel) -> Path | ShoalError:
        try:
            return self.fetch(model.name, model)
        except ShoalError as error:
            return error

    def forget(self, keep: Collection[Path]) -> None:
        """Remove the copies that contain none of the paths in `keep`. The latest copy of each model stays, since a load
        of it may be about to begin; so do copies and objects of models that are being fetched."""
        with self._lock:
            self._cache.forget({*keep, *self._latest.values()}, self._under_way)

    @contextlib.contextmanager
    def _kept(self, model: CloudModel) -> Iterator[None]:
        """Keep a copy of this model, and its objects, from being removed."""
        with self._lock:
            self._under_way.append(model)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.remove(model)

    def _copy(self, model: CloudModel) -> Path | None:
        """The existing or a new copy of a model; None where the model changed meanwhile."""
        found = self._cache.find(model)
        if found is not None:
            return found
        with self._failing(f"the copy of model '{model.name}' from {self.url}"), self._cache.workplace() as workplace:
            downloads = self._download(model, workplace)
            after = self._model(model.name)
            for path, download in downloads.items():
                if path in after.files and after.files[path].tag == model.files[path].tag:
                    self._cache.keep_object(download, model, path)
            return self._cache.assemble(model, workplace) if after.tag == model.tag else None

    def _model(self, name: str) -> CloudModel:
        path = f"{self.url.path}/{name}"
        # The name may come from a request, and need not be a valid directory name.
        listing = sort_out(self._objects(path), self.url) if "/" not in name and name not in ("", ".", "..") else None
        if listing is not None and name in listing.problems:
            raise InvalidArgumentError(listing.problems[name])
        if listing is None or name not in listing.models:
            raise NotFoundError(f"there is no model '{name}' in {self.url}")
        return listing.models[name]

    def _objects(self, path: str) -> list[CloudObject]:
        with self._failing(f"the listing of {self.url}"):
            has_directories = self.url.scheme == "as"  # in other clouds directories follow from the objects' names
            found = self._connect().find(path, withdirs=has_directories, detail=True, timeout=self._patience.listing_s)
        if len(found) > MAX_OBJECTS:
            raise InvalidArgumentError(
                f"there are {len(found)} objects in {self.url}, and a model repository has at most {MAX_OBJECTS}; "
                "give the models a bucket or a path of their own"
            )
        start = f"{self.url.path}/"
        names = {name: info for name, info in found.items() if name.startswith(start) and name != start}
        return [_object(name.removeprefix(start), info) for name, info in names.items()]

    def _download(self, model: CloudModel, workplace: Path) -> dict[str, Path]:
        """Fetch the model's objects that are not on the disk yet: path in the model → file in `workplace`."""
        from fsspec.asyn import sync

        missing = self._cache.missing(model)
        nbytes, free_nbytes = sum(each.size for each in missing.values()), self._cache.free_nbytes()
        if nbytes > free_nbytes:
            raise UnavailableError(
                f"model '{model.name}' in {self.url} needs {nbytes} bytes on the disk, and there are {free_nbytes}; "
                f"make room, or set {ROOT_VARIABLES[self.url.scheme]} to a directory on a larger disk"
            )
        filesystem = self._connect()
        progress = CopyProgress(
            f"model '{model.name}' from {self.url}", nbytes, self._patience.stall_s, time.monotonic()
        )
        downloads = {path: workplace / str(number) for number, path in enumerate(missing)}
        sync(filesystem.loop, self._get, filesystem, model, downloads, progress)
        _log.info("%s", progress.summary(time.monotonic()))
        return downloads

    async def _get(
        self, filesystem: Any, model: CloudModel, downloads: Mapping[str, Path], progress: CopyProgress
    ) -> None:
        """Download all of `downloads`; no download goes on after an error, or where far more comes than was
        listed."""
        import asyncio  # imported here: the poller then starts 18 ms of CPU sooner

        from fsspec.callbacks import Callback

        gate = asyncio.Semaphore(OBJECTS_AT_ONCE)

        async def get(path: str, target: Path) -> None:
            async with gate:
                callback = progress.watch(Callback())
                remote = f"{self.url.path}/{model.name}/{path}"
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile; the next listing shows that
                    await filesystem._get_file(remote, str(target), callback=callback)
                callback.absolute_update(model.files[path].size)  # adlfs reports chunks only

        tasks = [asyncio.ensure_future(get(path, target)) for path, target in downloads.items()]
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=progress.look_s, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in done:
                    task.result()
                progress.look(time.monotonic())
                if progress.is_beyond:
                    break  # the next listing shows whether objects have changed
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- the cloud's library ---

    def _connect(self) -> Any:
        filesystem = self._filesystem
        if filesystem is None:
            module, class_name, extra = _LIBRARIES[self.url.scheme]
            try:
                create = getattr(importlib.import_module(module), class_name)
            except ImportError as error:
                package = module.partition(".")[0]
                raise UnsupportedError(
                    f"{self.url} needs the package {package}: pip install 'shoal[{extra}]' ({error})"
                ) from error
            filesystem = create(skip_instance_cache=True, use_listings_cache=False, **self._options())
            self._filesystem = filesystem
        return filesystem

    def _options(self) -> dict[str, Any]:
        file = self._environ.get(FILE_VARIABLE)
        try:
            text = Path(file).read_text(encoding="utf-8") if file else None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(
                f"the file '{file}' named by ${FILE_VARIABLE} cannot be read: {error}"
            ) from error
        options = cloud_credentials.options(self.url, self._environ, text)
        return {"s3": self._s3, "gs": self._gs, "as": self._azure}[self.url.scheme](options)

    def _s3(self, options: dict[str, Any]) -> dict[str, Any]:
        import botocore.session

        patience = {
            "connect_timeout": self._patience.connect_s,
            "read_timeout": self._patience.read_s,
            "max_pool_connections": CONNECTIONS_AT_ONCE,
            "retries": {"mode": "standard", "total_max_attempts": 2},  # s3fs repeats each attempt five times
        }
        options["config_kwargs"] = {**patience, **options.get("config_kwargs", {})}
        options["max_concurrency"] = 1  # one stream resumes where it broke off; ten keep 500 MB in memory
        if "key" not in options:
            session = botocore.session.Session(profile=options.get("profile"))
            options["anon"] = session.get_credentials() is None  # as Amazon's own library does in Triton
        return options

    def _gs(self, options: dict[str, Any]) -> dict[str, Any]:
        from aiohttp import ClientTimeout

        key_file = options.get("token")
        if key_file and not Path(key_file).is_file():  # gcsfs would send the path to Google as a password
            raise InvalidArgumentError(f"there is no key file '{key_file}', which the file in ${FILE_VARIABLE} names")
        patience = ClientTimeout(None, sock_connect=self._patience.connect_s, sock_read=self._patience.read_s)
        return options | {"requests_timeout": patience}

    def _azure(self, options: dict[str, Any]) -> dict[str, Any]:
        if isinstance(options.get("credential"), ManagedIdentity):
            from azure.identity.aio import ManagedIdentityCredential  # pyright: ignore[reportMissingImports] - an extra

            options["credential"] = ManagedIdentityCredential(client_id=options["credential"].client_id)
        return options | {"connection_timeout": self._patience.connect_s, "read_timeout": self._patience.read_s}

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn every error of a cloud's library into an UnavailableError with a sentence."""
        try:
            yield
        except ShoalError:
            raise
        except Exception as error:  # any: the libraries' errors have no base class in common
            self._filesystem = None
            raise UnavailableError(f"{what} failed: {_reason(error)}; {self._remedy(error)}") from error

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return f"make room, or set {ROOT_VARIABLES[self.url.scheme]} to a directory on another disk"
        if isinstance(error, FileNotFoundError):
            return f"check that '{self.url.bucket}' is there and that --model-repository names it"
        if any(each.__name__ in _NETWORK_ERRORS for each in type(error).__mro__):
            return "check the address, and the network between here and there"
        return cloud_credentials.remedy(self.url, self._environ)


def _object(key: str, info: dict[str, Any]) -> CloudObject:
    """An entry of a listing, from the fields of the three libraries."""
    if info["type"] == "directory":
        return CloudObject(key, is_directory=True)
    modified: datetime | None = info.get("LastModified") or info.get("mtime") or info.get("last_modified")
    tag = info.get("ETag") or info.get("generation") or info.get("etag") or modified or ""
    return CloudObject(key, int(info["size"] or 0), str(tag), int(modified.timestamp()) if modified else 0)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or f"no answer in time ({type(error).__name__})"
