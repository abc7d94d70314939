"""What the backend asks of a table, wherever its rows are. Runs in a worker."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.datatypes import Datatype
from shoal.errors import InvalidArgumentError
from shoal.workers.tensors import Array


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What the configuration asks of a table."""

    ids: Datatype
    output: Datatype
    row_dims: tuple[int, ...]  # -1 = any
    scale: float | None
    stored: Datatype  # of a store, which does not tell


class FoundRows(NamedTuple):
    """What a table says to ids; positions in them ascend."""

    rows: Any  # for `take`, one per id: whatever can be sliced
    unknown: Array  # positions of ids that have no row
    damaged: dict[int, str]  # of those whose row is none, each with why


class Rows(ABC):
    """The rows of one table, found by ids."""

    @property
    @abstractmethod
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row; from one `refresh` to the next it stays."""

    @abstractmethod
    def refresh(self) -> None:
        """Take notice of a table that has replaced this one; called between two batches, never within one."""

    @abstractmethod
    def find(self, ids: Array) -> FoundRows:
        """Look for ids, of one dimension."""

    @abstractmethod
    def take(self, found: Any, out: Array) -> None:
        """The rows, or a slice of them, into `out`, (ids, *row_shape), as its numbers; where an id has none, whatever
        there is."""


def convert(rows: Array, scales: Array | None, out: Array) -> None:
    """Rows as they are stored into `out`, times the factor of each where there are any."""
    if scales is None:
        np.copyto(out, rows, casting="same_kind")
    else:
        # float16 is no type to compute in: 65504 is its end, and every product would be rounded twice.
        work = np.result_type(out, np.float32)
        np.multiply(rows, scales, out=out, dtype=work, casting="same_kind")


def check_type(what: str, stored: "np.dtype[Any]", is_scaled: bool, output: Datatype) -> None:
    """Raises InvalidArgumentError where rows of this type cannot become the output's."""
    if stored == output.dtype and not is_scaled:
        return
    if output.dtype.kind != "f" or stored.kind not in "iuf":
        scaled = " with a scale" if is_scaled else ""
        raise InvalidArgumentError(f"{what} holds {stored}, which cannot be given as {output.config_name}{scaled}")
