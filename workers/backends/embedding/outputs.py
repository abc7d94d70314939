"""One output of an embedding model: which ids are looked up for it, and what is made of their rows. Runs in a
worker."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.workers.backends.embedding.options import LookUp
from shoal.workers.backends.embedding.rows import Rows
from shoal.workers.tensors import Array

_NONE: Array = np.empty(0, np.intp)
#: Most bytes of rows that are gathered at once to be pooled: the rows of all ids would take much memory (512 times that
#: of the ids, for ids of one byte and rows of 128 floats).
PIECE_NBYTES = 16 << 20


class PendingLookUp(NamedTuple):
    """A look-up whose rows have been found and not yet copied."""

    ids: Array  # all ids, in one dimension
    rows: Any  # the argument `found` of Rows.take
    lacking: Array  # positions of ids without a usable row
    damaged: dict[int, str]  # position → why the row is not usable; ids at other positions are unknown
    padding: Array  # positions of ids that only fill up bags
    zeros: Array  # positions of ids that get a row of zeros
    ends: Array  # where each bag ends in `ids`; empty without bags
    shape: tuple[int, ...]  # the output's shape

    def first_id_of(self, row: int, num_rows: int) -> int:
        """The position at which the ids of one row of the batch begin; the batch has `num_rows` rows."""
        if not len(self.ends):
            return len(self.ids) * row // num_rows
        bag = len(self.ends) * row // num_rows
        return int(self.ends[bag - 1]) if bag else 0


class EmbeddingOutput:
    """One output: `find` looks up the ids, which gives the output's shape; `take` then copies the rows into its
    memory."""

    def __init__(self, look_up: LookUp, rows: Rows, what: str) -> None:
        self._look_up = look_up
        self._rows = rows
        self._what = what  # name of the table in error messages
        self.name = look_up.output.name
        self._inputs = {look_up.ids.name, *({look_up.offsets} if look_up.offsets else ())}
        # float16 is too coarse for sums.
        self._work = np.result_type(look_up.output.datatype.dtype, np.float32)

    def is_asked(self, inputs: Mapping[str, Array]) -> bool:
        """Whether a batch has the inputs that this output needs."""
        return self._inputs <= inputs.keys()

    def check(self) -> None:
        """Check the id that replaces unknown ones. Raises InvalidArgumentError if it is unknown itself, or its row
        damaged."""
        unknown_id = self._look_up.unknown_id
        if unknown_id is None:
            return
        look = self._rows.find(np.array([unknown_id], self._look_up.ids.datatype.dtype))
        if look.damaged:
            raise InvalidArgumentError(look.damaged[0])
        if len(look.unknown):
            raise self._unknown(unknown_id)

    def find(self, inputs: Mapping[str, Array], ends_of_ragged: Mapping[str, Array]) -> PendingLookUp:
        """Look up the ids of a batch. `ends_of_ragged` has, for inputs whose rows have different lengths, where each
        row ends.

        Raises InvalidArgumentError for invalid offsets.
        """
        look_up = self._look_up
        given = inputs[look_up.ids.name]
        ids, shape, ends = given.reshape(-1), given.shape, _NONE
        if look_up.offsets is not None:
            ends = ends_of(look_up.offsets, inputs[look_up.offsets], len(ids))
            shape = ends.shape
        elif look_up.ids.ragged:
            ends = ends_of_ragged[look_up.ids.name]
            shape = ends.shape
        elif look_up.is_pooled:
            *bags, length = shape
            shape, ends = tuple(bags), np.arange(1, 1 + int(np.prod(bags, dtype=np.intp))) * length
        padding = zeros = _NONE
        if look_up.padding_id is not None:
            padding = zeros = np.flatnonzero(ids == look_up.padding_id)
        rows, lacking, damaged = self._rows.find(ids)
        if len(lacking):
            lacking = np.setdiff1d(lacking, padding, assume_unique=True)
            if look_up.zeros:
                zeros, lacking = np.union1d(zeros, lacking), _NONE
            elif look_up.unknown_id is not None:
                ids = ids.copy()
                ids[lacking] = look_up.unknown_id
                rows, lacking, damaged = self._rows.find(ids)
                lacking = np.setdiff1d(lacking, padding, assume_unique=True)
        if damaged:
            lacking = np.union1d(lacking, np.setdiff1d(list(damaged), padding, assume_unique=True))
        return PendingLookUp(ids, rows, lacking, damaged, padding, zeros, ends, shape + self._rows.row_shape)

    def take(self, found: PendingLookUp, out: Array) -> None:
        """Copy the found rows, or the sums or means of the bags, into `out`, which has the shape `found.shape`."""
        if self._look_up.is_pooled:
            self._pool(found, out)
            return
        rows = out.reshape(-1, *self._rows.row_shape)
        self._rows.take(found.rows, rows)
        if len(found.zeros):
            rows[found.zeros] = 0

    def _pool(self, found: PendingLookUp, out: Array) -> None:
        row_shape = self._rows.row_shape
        width = int(np.prod(row_shape, dtype=np.intp))
        sums: Array = np.zeros((len(found.ends), width), self._work)
        at_once = min(len(found.ids), max(1, PIECE_NBYTES // (width * self._work.itemsize)))
        memory: Array = np.empty((at_once, *row_shape), self._work)
        for bags, begin, end in pieces(found.ends, at_once):
            rows = memory[: end - begin]
            self._rows.take(found.rows[begin:end], rows)
            if len(found.zeros):
                first, last = np.searchsorted(found.zeros, (begin, end))
                rows[found.zeros[first:last] - begin] = 0
            add_up(rows.reshape(-1, width), found.ends[bags] - begin, sums[bags])
        if self._look_up.pooling == "mean":
            sums /= np.maximum(num_ids_of(found.ends, found.padding), 1)[:, None].astype(self._work)
        np.copyto(out.reshape(-1, width), sums, casting="same_kind")

    def why_lacking(self, found: PendingLookUp, position: int) -> ShoalError:
        """The error for the id at a position that has no usable row."""
        if position in found.damaged:
            return InternalError(found.damaged[position])
        return self._unknown(found.ids[position])

    def _unknown(self, id_: Any) -> InvalidArgumentError:
        shown = f"'{id_.decode(errors='replace')}'" if isinstance(id_, bytes) else id_
        return InvalidArgumentError(f"id {shown} is not in {self._what}")


# -- bags: the rows of several ids, joined to one row, their sum or mean -----------------------------------------------


def ends_of(name: str, offsets: Array, num_ids: int) -> Array:
    """The ends of bags that begin at `offsets` (int array of one dimension). Raises InvalidArgumentError for invalid
    offsets."""
    ends = np.append(offsets.astype(np.int64), num_ids)
    if ends[0] != 0 or np.any(ends[1:] < ends[:-1]):
        raise InvalidArgumentError(f"input '{name}' must begin with 0, never fall and stay within the {num_ids} ids")
    return ends[1:]


def num_ids_of(ends: Array, padding: Array) -> Array:
    """The number of ids in each bag, without those at the positions `padding`, which ascend."""
    return np.diff(ends - np.searchsorted(padding, ends), prepend=0)


def pieces(ends: Array, most: int) -> Iterator[tuple[slice, int, int]]:
    """Consecutive bags (a slice of them), with begin and end of their ids: at most `most` ids at once, so a longer
    bag comes in parts."""
    begin, total = 0, int(ends[-1]) if len(ends) else 0
    while begin < total:
        end = min(begin + most, total)
        first, last = np.searchsorted(ends, (begin, end), side="right").tolist()
        if first < last:
            end = int(ends[last - 1])
        yield slice(first, max(last, first + 1)), begin, end
        begin = end


def add_up(rows: Array, ends: Array, sums: Array) -> None:
    """Add the rows of each bag, (ids, width), to the bag's sum in `sums`, (bags, width). The last bag may end beyond
    `rows`.

    Products with a vector of ones: 32 bags of 50 rows of 128 floats take 41 us this way, 210 with a sum over the axis
    and 1785 with numpy's reduceat.
    """
    ends = np.minimum(ends, len(rows))
    lengths = np.diff(ends, prepend=0)
    longest = int(lengths.max(initial=0))
    ones: Array = np.ones((1, longest), rows.dtype)
    if longest and np.all(lengths == longest):
        sums += np.matmul(ones, rows.reshape(-1, longest, rows.shape[1]))[:, 0]
        return
    added = np.zeros_like(sums)
    for bag, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        if length:
            np.matmul(ones[:, :length], rows[end - length : end], out=added[bag : bag + 1])
    sums += added
