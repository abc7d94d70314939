"""Tables beyond memory in a store: a value is the bytes of a row, under the id as text or, of string ids, as it is.

    lmdb:items.lmdb           a file or directory of the version; what is committed is seen by the next batch
    rocksdb:items             a directory of the version, as it was when it was opened
    redis://host:6379/0       a server; one MGET per look-up

Each store is a function from keys to values. The packages are extras and imported where a table names their store.
Runs in a worker.
"""

import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.datatypes import format_shape
from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.workers.backends.embedding.replaceable import Replaceable, place
from shoal.workers.backends.embedding.rows import Form, Rows, check_type, convert
from shoal.workers.tensors import Array

#: Keys → the value of each, None where there is none.
GetMany: TypeAlias = Callable[[list[bytes]], Sequence[bytes | None]]


class StoreRows(Rows):
    """A table in a store."""

    def __init__(self, what: str, form: Form, key: str, get_many: GetMany, refresh: Callable[[], object]) -> None:
        prefix, _, suffix = key.partition("{id}")
        self._what = what
        self._form = form
        self._prefix, self._suffix = prefix.encode(), suffix.encode()
        self._row_nbytes = int(np.prod(form.row_dims, dtype=object)) * form.stored.itemsize
        self._get_many = get_many
        self._refresh = refresh

    @property
    def row_shape(self) -> tuple[int, ...]:
        """As configured: the store does not tell."""
        return self._form.row_dims

    def refresh(self) -> None:
        """Look for another file where the store is one."""
        self._refresh()

    def find(self, ids: Array) -> tuple[list[bytes], Array]:
        """The values, zeros where there is none. Raises InternalError for one of another size than a row."""
        elements = ids.tolist()
        if not ids.dtype.hasobject:
            elements = [b"%d" % each for each in elements]
        keys = [b"%s%s%s" % (self._prefix, each, self._suffix) for each in elements]
        values, unknown = [], []
        for position, value in enumerate(self._get_many(keys) if keys else ()):
            if value is None:
                unknown.append(position)
                value = bytes(self._row_nbytes)
            elif len(value) != self._row_nbytes:
                raise InternalError(
                    f"{self._what}: the value of '{keys[position].decode(errors='replace')}' has {len(value)} bytes, a "
                    f"row of shape {format_shape(self.row_shape)} and {self._form.stored.config_name} has "
                    f"{self._row_nbytes}"
                )
            values.append(value)
        return values, np.array(unknown, np.intp)

    def take(self, found: list[bytes], out: Array) -> None:
        """The values, joined, as an array."""
        rows: Array = np.ndarray((len(found), *self.row_shape), self._form.stored.dtype, b"".join(found))
        convert(rows, None if self._form.scale is None else np.array(self._form.scale, np.float32), out)


def store_rows(table: str, directory: str, what: str, form: Form, key: str) -> StoreRows:
    """The table in its store, opened. Raises UnsupportedError where its package is not installed."""
    if -1 in form.row_dims:
        raise InvalidArgumentError(f"{what}: a store does not tell how long a row is; the output's dims must")
    check_type(what, form.stored.dtype, form.scale is not None, form.output)
    scheme, _, place_ = table.partition(":")
    if scheme in ("lmdb", "rocksdb"):
        open_ = _open_lmdb if scheme == "lmdb" else _open_rocksdb
        opened = Replaceable(os.path.join(directory, place_), what, lambda path: open_(what, path), place)
        opened.refresh()

        def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
            return opened.current(keys)

        return StoreRows(what, form, key, get_many, opened.refresh)
    return StoreRows(what, form, key, _open_redis(what, table), lambda: None)


def public_name(table: str) -> str:
    """A table as it may be told to clients: without the password of a URL."""
    return re.sub("//.*@", "//", table).partition("?")[0]


def _import(what: str, package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnsupportedError(
            f"{what} cannot be opened: {error}. Install it with: pip install 'shoal[{extra}]'"
        ) from error


def _open_lmdb(what: str, path: str) -> GetMany:
    lmdb = _import(what, "lmdb", "embedding-lmdb")
    path = os.path.realpath(path)  # it refuses to open one path twice, so it is a link that can be replaced
    try:
        # A reader says in the lock file what it reads, so that nobody writes over it; where it may not, nobody writes.
        can_lock = os.access(path if os.path.isdir(path) else os.path.dirname(path), os.W_OK)
        environment = lmdb.open(
            path, subdir=os.path.isdir(path), readonly=True, lock=can_lock, create=False, readahead=False
        )
    except lmdb.Error as error:
        raise InvalidArgumentError(f"it cannot be read: {error}") from error

    def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
        try:
            with environment.begin() as transaction:
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
    client = redis.Redis.from_url(url)

    def get_many(keys: list[bytes]) -> Sequence[bytes | None]:
        try:
            values: list[bytes | None] = client.mget(keys)
            return values
        except redis.RedisError as error:
            raise UnavailableError(f"{what} cannot be asked: {error}") from error

    get_many([b""])  # a server that is not there is better told now
    return get_many
