"""A table in numpy files: mapped, never read as a whole, shared by all instances through the page cache.

    items.npy                rows by their number
    items/vectors.npy        rows by their number, and beside it
    items/ids.npy            the id of each row, ascending
    items/scales.npy         a factor for each row, or one for all

Headers are checked when a table is opened, and pages are fetched when they are used: opening takes a millisecond
whatever the size. Files that belong together lie in a directory, so that one rename (of a link to it) replaces all.
Runs in a worker.
"""

import errno
import mmap
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from tokenize import TokenError
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from shoal.datatypes import BYTES, Datatype, format_shape
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.workers.backends.embedding.replaceable import Replaceable
from shoal.workers.backends.embedding.rows import FoundRows, Rows, TableSpec, check_type, convert
from shoal.workers.tensors import Array

VECTORS, IDS, SCALES = "vectors.npy", "ids.npy", "scales.npy"
#: Number of ids that are compared to check that all ascend: comparing all would mean reading the whole file.
_SAMPLE = 64
_NONE: Array = np.empty(0, np.intp)
_INT64, _UINT64, _INTP = np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.intp)
#: Errors that pass: a good file may fail to open with them.
_PASSING = (errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class Table:
    """The mapped files of a table, as they were when opened."""

    vectors: Array
    ids: Array | None
    scales: Array | None  # one per row, or a single one that is broadcast
    pages: tuple[mmap.mmap, ...]  # mappings of the files, the vectors' first


class _Mapped(NamedTuple):
    array: Array
    pages: mmap.mmap


class TableRows(Rows):
    """A table in numpy's files, which can be replaced."""

    def __init__(self, path: str, what: str, spec: TableSpec) -> None:
        self._what = what
        self._files = Replaceable(path, what, partial(open_table, spec=spec))
        # Changed by take; `_num_faults` counts the process's page faults that have waited for the disk.
        self._is_cold = True  # the last look-up had to wait for the disk, or this will be the first
        self._num_faults = 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self._files.current.vectors.shape[1:]

    def refresh(self) -> None:
        """Open the table's files again if others have taken their path. Raises InvalidArgumentError if no valid table
        was opened so far, UnavailableError if there is none or the files in use were cut short."""
        if self._files.refresh():
            return
        for pages in self._files.current.pages:
            if pages.size() < len(pages):  # touching the missing pages would end this process (SIGBUS)
                raise UnavailableError(
                    f"{self._what} was cut short while it is read; replace it by rename, do not write into it"
                )

    def find(self, ids: Array) -> FoundRows:
        """Look up ids: the numbers of their rows, that of any row for an id without one."""
        table = self._files.current
        if table.ids is not None:
            return FoundRows(*_find_sorted(table.ids, ids), {})
        # As unsigned, negative ids are beyond any row, but in 64 bits only: as a byte -1 is 255, which may be a row.
        unsigned = ids.astype(_INT64, copy=False).view(_UINT64) if ids.dtype.kind == "i" else ids
        num_rows = len(table.vectors)
        # The greatest id is found by its position (argmax, 4k instructions): numpy's max runs Python, which takes 11k.
        if not len(ids) or unsigned.item(unsigned.argmax()) < num_rows:
            return FoundRows(ids, _NONE, {})
        unknown = np.flatnonzero(unsigned >= num_rows)
        rows = ids.copy()
        rows[unknown] = 0
        return FoundRows(rows, unknown, {})

    def take(self, found: Array, out: Array) -> None:
        table = self._files.current
        vectors, scales = table.vectors, table.scales
        rows = found.astype(_INTP, copy=False)
        if self._is_cold:
            _read_ahead(table, rows)
        # Mode "clip", since with "raise" numpy makes a copy first; all row numbers are valid. The array's method, since
        # np.take runs 10k instructions more.
        if scales is None and vectors.dtype == out.dtype:
            vectors.take(rows, 0, out, "clip")
        else:
            of_rows = scales if scales is None or len(scales) == 1 else scales[rows]
            convert(vectors.take(rows, 0, mode="clip"), of_rows, out)
        num_faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        self._is_cold, self._num_faults = num_faults > self._num_faults, num_faults


def _find_sorted(known: Array, ids: Array) -> tuple[Array, Array]:
    too_long = None
    if ids.dtype.hasobject:
        elements = ids.tolist()
        # numpy's strings drop NULs at their end and everything beyond their fixed size.
        too_long = [len(each) > known.itemsize or each.endswith(b"\0") for each in elements]
        ids = np.array(elements, known.dtype)
    rows = np.minimum(known.searchsorted(ids), len(known) - 1)
    is_unknown = known[rows] != ids
    if too_long is not None:
        is_unknown |= np.array(too_long, np.bool_)
    return rows, np.flatnonzero(is_unknown)


def _read_ahead(table: Table, rows: Array) -> None:
    """Start reading the pages of these rows all at once: one by one, each page that is not in memory would cost a wait.

    Measured with 64 rows of 512 bytes on a virtual disk: a look-up takes 2.7 ms instead of 12.
    """
    pages, page, row_nbytes = table.pages[0], mmap.PAGESIZE, table.vectors[0].nbytes
    header_nbytes = len(pages) - table.vectors.nbytes
    for row in rows.tolist():
        begin = header_nbytes + row * row_nbytes
        start = begin // page * page
        pages.madvise(mmap.MADV_WILLNEED, start, begin + row_nbytes - start)


# -- opening ----------------------------------------------------------------------------------------------------------


def open_table(path: str, spec: TableSpec) -> Table:
    """The table in the files at `path` as they are now. Raises InvalidArgumentError, which names the faulty file and
    what it should be, and UnavailableError if a file cannot be read for now."""
    if not os.path.isdir(path):
        return _checked({VECTORS: _map(path, None)}, spec)
    try:
        # All files are opened in one directory, even if the link at the path is replaced meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        opener = partial(os.open, dir_fd=descriptor)
        present = os.listdir(descriptor)
        names = (VECTORS, *(name for name in (IDS, SCALES) if name in present))
        return _checked({name: _map(name, opener) for name in names}, spec)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)


def _map(path: str, opener: Callable[[str, int], int] | None) -> _Mapped:
    name = os.path.basename(path)
    try:
        with open(path, "rb", opener=opener) as file:
            shape, is_fortran, dtype = _read_header(file)
            offset, nbytes = file.tell(), os.fstat(file.fileno()).st_size
            if dtype.kind not in "biufS" or not dtype.isnative:
                raise ValueError(f"it holds {dtype}, which is not read")
            if is_fortran and len(shape) > 1:
                raise ValueError("its columns lie together instead of its rows (fortran_order); save it in C order")
            expected = offset + int(np.prod(shape, dtype=object)) * dtype.itemsize
            if nbytes != expected:
                raise ValueError(f"it has {nbytes} bytes, shape {format_shape(shape)} of {dtype} needs {expected}")
            if not shape or min(shape) < 0 or not shape[0]:
                raise ValueError("it has no rows")
            pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    # A row's neighbours are not needed next. Without this advice, one batch of 64 ids on a file that is not in memory
    # read 8 MiB for each id, which took 0.8 s and drove all else out of the page cache; a page for each takes 18 ms.
    pages.madvise(mmap.MADV_RANDOM)
    array: Array = np.ndarray(shape, dtype, pages, offset)
    if not array.flags.aligned:
        raise InvalidArgumentError(f"'{name}' cannot be read: its data begins at byte {offset}, which is not aligned")
    return _Mapped(array, pages)


def _unreadable(path: str, error: Exception) -> ShoalError:
    is_passing = isinstance(error, OSError) and error.errno in _PASSING
    kind = UnavailableError if is_passing else InvalidArgumentError
    return kind(f"'{os.path.basename(path)}' cannot be read: {error}")


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """The header of a .npy file, in the two versions that numpy writes for numbers; its text is parsed as a literal,
    never run. Raises ValueError for any other header."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of numpy's format is not read")
    try:
        return _HEADERS[version](file)
    except (SyntaxError, TokenError, TypeError, RecursionError) as error:  # the text is no literal
        raise ValueError(f"its header is damaged: {error}") from error


def _checked(files: dict[str, _Mapped], spec: TableSpec) -> Table:
    vectors, ids, scales = (files[name].array if name in files else None for name in (VECTORS, IDS, SCALES))
    assert vectors is not None
    row_shape = vectors.shape[1:]
    if 0 in row_shape:
        raise InvalidArgumentError(f"rows have shape {format_shape(row_shape)}, which holds no numbers")
    if len(row_shape) != len(spec.row_dims) or any(
        dim not in (-1, size) for dim, size in zip(spec.row_dims, row_shape, strict=True)
    ):
        raise InvalidArgumentError(
            f"rows have shape {format_shape(row_shape)}, the configuration of the output expects "
            f"{format_shape(spec.row_dims)}"
        )
    if spec.scale is not None:
        if scales is not None:
            raise InvalidArgumentError(f"there are '{SCALES}' and the setting scale; only one of them can be")
        scales = np.full(1, spec.scale, np.float32)
    check_type(f"'{VECTORS}'", vectors.dtype, scales is not None, spec.output)
    if spec.ids is BYTES and ids is None:
        raise InvalidArgumentError(f"ids of {BYTES.config_name} need a directory with '{IDS}' in it")
    if ids is not None:
        _check_ids(ids, len(vectors), spec.ids)
    if scales is not None:
        if scales.dtype.kind != "f" or scales.shape not in ((1,), (len(vectors),)):
            raise InvalidArgumentError(
                f"'{SCALES}' has {scales.dtype} of shape {format_shape(scales.shape)}, expected floats, one or one for "
                f"each of the {len(vectors)} rows"
            )
        scales = scales.reshape(-1, *(1 for _ in row_shape))
    return Table(vectors, ids, scales, tuple(mapped.pages for mapped in files.values()))


def _check_ids(ids: Array, num_rows: int, datatype: Datatype) -> None:
    if ids.shape != (num_rows,):
        raise InvalidArgumentError(
            f"'{IDS}' has shape {format_shape(ids.shape)}, expected one id for each of the {num_rows} rows"
        )
    # An array of the table's type, because numpy would convert all ids for each search.
    if (ids.dtype.kind != "S") if datatype is BYTES else (ids.dtype != datatype.dtype):
        raise InvalidArgumentError(
            f"'{IDS}' holds {ids.dtype}, the input's {datatype.config_name} needs "
            f"{'S (bytes of a fixed size)' if datatype is BYTES else datatype.dtype}"
        )
    sample = ids[np.linspace(0, num_rows - 1, min(num_rows, _SAMPLE)).astype(np.intp)]
    if np.any(sample[1:] < sample[:-1]):
        raise InvalidArgumentError(f"'{IDS}' is not sorted; rows and their ids must be in ascending order of the ids")
