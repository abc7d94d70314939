"""Bags: the rows of several ids are joined to one row, their sum or mean. Pure."""

from collections.abc import Iterator

import numpy as np

from shoal.errors import InvalidArgumentError
from shoal.workers.tensors import Array


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
