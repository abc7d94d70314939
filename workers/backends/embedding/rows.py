"""The interface of a table to the embedding backend, for tables in files and in stores. Runs in a worker."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.datatypes import Datatype
from shoal.errors import InvalidArgumentError
from shoal.workers.tensors import Array


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The configured datatypes, row dims and scale of a table."""

    ids: Datatype
    output: Datatype
    row_dims: tuple[int, ...]  # the dims of a row; -1: any size
    scale: float | None
    stored: Datatype  # the datatype of rows in a store, which records none


class FoundRows(NamedTuple):
    """A table's answer to a look-up of ids; positions refer to the ids and ascend."""

    rows: Any  # what `take` needs to find the rows, one element per id; can be sliced
    unknown: Array  # positions of ids that have no row
    damaged: dict[int, str]  # position → why the row of that id is not usable


class Rows(ABC):
    """The rows of one table, found by ids."""

    @property
    @abstractmethod
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row, constant from one `refresh` to the next."""

    @abstractmethod
    def refresh(self) -> None:
        """Use the files that have replaced this table's, if any; called between two batches, never within one."""

    @abstractmethod
    def find(self, ids: Array) -> FoundRows:
        """Look up ids, an array of one dimension."""

    @abstractmethod
    def take(self, found: Any, out: Array) -> None:
        """Copy found rows, or a slice of them, into `out`, (ids, *row_shape), converted to its datatype; the rows of
        ids that were not found are undefined."""


def convert(rows: Array, scales: Array | None, out: Array) -> None:
    """Copy stored rows into `out`, converted to its datatype, and multiplied by `scales` (one for all or one per
    row) if there are any."""
    if scales is None:
        np.copyto(out, rows, casting="same_kind")
    else:
        # float16 is too coarse to compute in: it ends at 65504, and every product would be rounded twice.
        work = np.result_type(out, np.float32)
        np.multiply(rows, scales, out=out, dtype=work, casting="same_kind")


def check_type(what: str, stored: "np.dtype[Any]", is_scaled: bool, output: Datatype) -> None:
    """Check that rows of the datatype `stored` can be converted to the output's. Raises InvalidArgumentError if not."""
    if stored == output.dtype and not is_scaled:
        return
    if output.dtype.kind != "f" or stored.kind not in "iuf":
        scaled = " with a scale" if is_scaled else ""
        raise InvalidArgumentError(f"{what} holds {stored}, which cannot be given as {output.config_name}{scaled}")
