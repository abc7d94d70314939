"""Tables in a store, which may exceed memory: a value is a row's bytes; its key is the id as text, or a string id.

    lmdb:items.lmdb           a file or directory of the version; what is committed is seen by the next batch
    rocksdb:items             a directory of the version, as it was when it was opened
    redis://host:6379/0       a server; one MGET per look-up

Each store is a function from keys to values, and opened once for all tables in it. The packages are extras and imported
if a table names their store. Runs in a worker.
"""

import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from shoal.datatypes import BF16, format_shape
from shoal.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.workers.backends.embedding.replaceable import Replaceable, place
from shoal.workers.backends.embedding.rows import FoundRows, Rows, TableSpec, check_type, convert
from shoal.workers.tensors import Array

#: Keys → the value of each, None for a key without one.
GetMany: TypeAlias = Callable[[list[bytes]], Sequence[bytes | None]]
#: How long (s) a Redis may keep silent, unless its URL sets another timeout (ours).
REDIS_TIMEOUT_S = 1.0


class OpenStore(NamedTuple):
    """An opened store: how its values are read, and how it is opened again."""

    get_many: GetMany
    refresh: Callable[[], object]  # opens the file again if another one has taken its path; no effect for a server


class StoreRows(Rows):
    """A table in a store. Its construction raises InvalidArgumentError if its rows cannot be converted to the
    output's datatype."""

    def __init__(self, what: str, spec: TableSpec, key: str, store: OpenStore) -> None:
        _check_spec(what, spec)
        prefix, _, suffix = key.partition("{id}")
        self._what = what
        self._spec = spec
        self._prefix, self._suffix = prefix.encode(), suffix.encode()
        self._row_nbytes = int(np.prod(spec.row_dims, dtype=object)) * spec.stored.itemsize
        self._store = store

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The configured shape: a store does not record shapes."""
        return self._spec.row_dims

    def refresh(self) -> None:
        self._store.refresh()

    def find(self, ids: Array) -> FoundRows:
        """Look up ids: the values of their rows, zeros for an id without one. Each distinct id is requested once."""
        elements = ids.tolist()
        distinct = list(dict.fromkeys(elements))
        text = b"%s%s%s" if ids.dtype.hasobject else b"%s%d%s"
        keys = [text % (self._prefix, each, self._suffix) for each in distinct]
        values = dict(zip(distinct, self._store.get_many(keys) if keys else (), strict=True))
        zeros, unknown, damaged = bytes(self._row_nbytes), [], {}
        rows = [values[each] for each in elements]
        for position, value in enumerate(rows):
            if value is None:
                unknown.append(position)
                rows[position] = zeros
            elif len(value) != self._row_nbytes:
                damaged[position] = self._no_row(text % (self._prefix, elements[position], self._suffix), value)
                rows[position] = zeros
        return FoundRows(rows, np.array(unknown, np.intp), damaged)

    def take(self, found: list[bytes], out: Array) -> None:
        stored, scale = self._spec.stored, self._spec.scale
        rows: Array = np.ndarray((len(found), *self.row_shape), stored.dtype, b"".join(found))
        if stored is BF16 and self._spec.output is not BF16:
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        convert(rows, None if scale is None else np.array(scale, np.float32), out)

    def _no_row(self, key: bytes, value: bytes) -> str:
        return (
            f"{self._what}: the value of '{key.decode(errors='replace')}' has {len(value)} bytes, a row of shape "
            f"{format_shape(self.row_shape)} and {self._spec.stored.config_name} has {self._row_nbytes}"
        )


def _check_spec(what: str, spec: TableSpec) -> None:
    if -1 in spec.row_dims:
        raise InvalidArgumentError(f"{what}: a store does not tell how long a row is; the output's dims must")
    if (spec.stored is BF16) != (spec.output is BF16) and spec.output.dtype.kind != "f":  # to numpy, BF16 is uint16
        raise InvalidArgumentError(
            f"{what} holds {spec.stored.config_name}, which cannot be given as {spec.output.config_name}"
        )
    check_type(what, spec.stored.dtype, spec.scale is not None, spec.output)


def open_store(table: str, directory: str, what: str) -> OpenStore:
    """The store that a table's setting names. Raises UnsupportedError if the store's package is not installed,
    InvalidArgumentError or UnavailableError if it cannot be opened."""
    scheme, _, place_ = table.partition(":")
    if scheme in ("lmdb", "rocksdb"):
        open_ = _open_lmdb if scheme == "lmdb" else _open_rocksdb
        opened = Replaceable(os.path.join(directory, place_), what, lambda path: open_(what, path), place)
        opened.refresh()

        def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
            return opened.current(keys)

        return OpenStore(get_many, opened.refresh)
    return OpenStore(_open_redis(what, table), lambda: None)


def public_name(table: str) -> str:
    """A table's setting as clients may see it: without the password of a URL."""
    return re.sub("^(rediss?:|unix:)(//)?.*@", r"\1\2", table).partition("?")[0]


def _import(what: str, package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnsupportedError(
            f"{what} cannot be opened: {error}. Install it with: pip install 'shoal[{extra}]'"
        ) from error


@dataclass(frozen=True)  # without slots: objects with slots allow no weak references
class _Environment:
    opened: Any  # lmdb.Environment
    place: tuple[int, ...]


#: Open environments by their real paths, while in use: LMDB refuses to open one path twice in a process.
_environments: WeakValueDictionary[str, _Environment] = WeakValueDictionary()


def _environment(lmdb: Any, path: str) -> _Environment:
    """An LMDB environment, opened now or shared with other stores. Raises what lmdb raises, and InvalidArgumentError
    for a file that has replaced one in use.

    LMDB finds the lock file by the name of the data file. The lock file says which half of the data file is the newer
    one. While any process has a data file open, the lock file describes that file, and would be wrong for another file
    of the same name. So a file in use can only be replaced by a file of another name, to which a link is made to lead.
    """
    here = place(os.stat(path))
    environment = _environments.get(path)
    if environment is None:
        is_directory = os.path.isdir(path)
        # A reader notes in the lock file which pages it reads, so that writers do not overwrite them. Where this
        # process may not write, it reads without a lock, on the assumption that no process writes.
        can_lock = os.access(path if is_directory else os.path.dirname(path), os.W_OK)
        opened = lmdb.open(path, subdir=is_directory, readonly=True, lock=can_lock, create=False, readahead=False)
        environment = _environments[path] = _Environment(opened, here)
    if environment.place != here:
        raise InvalidArgumentError(
            "LMDB does not let another file take the place of one in use; let its name be a link"
        )
    return environment


def _open_lmdb(what: str, path: str) -> GetMany:
    lmdb = _import(what, "lmdb", "embedding-lmdb")
    try:
        environment = _environment(lmdb, os.path.realpath(path))
    except (lmdb.Error, OSError) as error:
        raise InvalidArgumentError(f"it cannot be read: {error}") from error

    def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
        """The values of these keys. Raises UnavailableError if LMDB cannot read them."""
        try:
            with environment.opened.begin() as transaction:
                return [transaction.get(key) if key else None for key in keys]
        except lmdb.Error as error:
            raise UnavailableError(f"{what} cannot be read: {error}") from error

    return get_many


def _open_rocksdb(what: str, path: str) -> GetMany:
    rocksdict = _import(what, "rocksdict", "embedding-rocksdb")
    try:
        database = rocksdict.Rdict(path, rocksdict.Options(raw_mode=True), access_type=rocksdict.AccessType.read_only())
    except Exception as error:  # rocksdict raises nothing more precise
        raise InvalidArgumentError(f"it cannot be read: {error}") from error

    def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
        values: Sequence[bytes | None] = database.get(keys)
        return values

    return get_many


def _open_redis(what: str, url: str) -> GetMany:
    redis = _import(what, "redis", "embedding-redis")
    backoff, retry = (importlib.import_module(f"redis.{each}") for each in ("backoff", "retry"))
    try:
        client = redis.Redis.from_url(  # settings in the URL override these arguments
            url,
            socket_timeout=REDIS_TIMEOUT_S,
            socket_connect_timeout=REDIS_TIMEOUT_S,
            # One retry if the connection was closed meanwhile; none if the server is silent.
            retry=retry.Retry(backoff.NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
        client.connection_pool.make_connection()  # checks the whole URL, opens no connection
    except (TypeError, ValueError):  # its text may quote a part of the password
        raise InvalidArgumentError(f"{what}: its URL does not name a Redis server") from None

    def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
        """The values of these keys. Raises UnavailableError if the server cannot be reached."""
        try:
            values: list[bytes | None] = client.mget(keys)
            return values
        except redis.RedisError as error:
            raise UnavailableError(f"{what} cannot be queried: {error}") from error

    get_many([b""])  # an unreachable server is an error of the load
    return get_many
