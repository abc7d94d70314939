"""A batch of rows, split into requests that a model takes, and its outputs joined again. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Arrays by name, whose first dimension is that of the rows.
Columns = dict[str, NDArray[Any]]


def pieces(arrays: Mapping[str, NDArray[Any]], max_rows: int) -> Iterator[Columns]:
    """The rows in requests of at most `max_rows`; 0: each request has one row, without a batch dimension."""
    num_rows = len(next(iter(arrays.values())))
    for start in range(0, num_rows, max_rows or 1):
        if max_rows:
            yield {name: array[start : start + max_rows] for name, array in arrays.items()}
        else:
            yield {name: np.asarray(array[start]) for name, array in arrays.items()}


def joined(answers: Sequence[Mapping[str, NDArray[Any]]], *, has_rows: bool) -> Columns:
    """The outputs of all requests, row by row: arrays whose first dimension is that of the batch of rows.

    `has_rows`: the answers have this dimension already; otherwise each answer is one row.
    """
    join = np.concatenate if has_rows else np.stack
    return {name: join([answer[name] for answer in answers]) for name in answers[0]}
