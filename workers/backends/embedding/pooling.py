"""Bags: the rows of several ids become one, their sum or mean. Pure."""

import numpy as np

from shoal.errors import InvalidArgumentError
from shoal.workers.tensors import Array


def ends_of(name: str, offsets: Array, num_ids: int) -> Array:
    """Where bags end that begin at `offsets`. Raises InvalidArgumentError where they are none."""
    ends = np.append(offsets.astype(np.int64), num_ids)
    if ends[0] != 0 or np.any(ends[1:] < ends[:-1]):
        raise InvalidArgumentError(f"input '{name}' must begin with 0, never fall and stay within the {num_ids} ids")
    return ends[1:]


def num_ids_of(ends: Array, padding: Array) -> Array:
    """How many ids each bag has; those at the positions `padding`, which ascend, are none."""
    return np.diff(ends - np.searchsorted(padding, ends), prepend=0)


def pool(rows: Array, ends: Array, num_ids: Array | None, out: Array) -> None:
    """Rows of two dimensions → the sum of each bag's, or, with the number of its ids, their mean; 0 of an empty one.

    Products with a vector of ones: 32 bags of 50 rows of 128 floats take 41 us this way, 210 with a sum over the axis
    and 1785 with numpy's reduceat.
    """
    lengths = np.diff(ends, prepend=0)
    longest = int(lengths.max(initial=0))
    ones: Array = np.ones((1, longest), rows.dtype)
    if longest and np.all(lengths == longest):
        pooled = np.matmul(ones, rows.reshape(-1, longest, rows.shape[1]))[:, 0]
    else:
        pooled = np.zeros((len(ends), rows.shape[1]), rows.dtype)
        for bag, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
            if length:
                np.matmul(ones[:, :length], rows[end - length : end], out=pooled[bag : bag + 1])
    if num_ids is not None:
        pooled /= np.maximum(num_ids, 1)[:, None].astype(rows.dtype)
    np.copyto(out, pooled, casting="same_kind")
