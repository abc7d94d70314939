"""How far the values of two tensors are apart, element by element: for shadows, for `shoal replay` and for batch drift.
Pure, with numpy."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal import bf16
from shoal.datatypes import BF16, Datatype

Array: TypeAlias = NDArray[Any]


class Distances(NamedTuple):
    """The absolute distance of each element, and the largest absolute and relative one. The relative distance refers to
    the larger of the two values, so it is at most 2; both are infinite where an infinity or NaN is in one tensor
    alone."""

    absolute: Array
    max_absolute: float
    max_relative: float


def as_numbers(values: Array, datatype: Datatype | None = None) -> Array:
    """The values of an array of numbers as a flat array of FP64. BF16, which has no numpy type, is given as its
    words."""
    flat = values.ravel()
    return (bf16.values_of(flat) if datatype is BF16 else flat).astype(np.float64)


def distances(one: Array, other: Array) -> Distances:
    """The distances between two flat arrays of FP64 of equal length. Two NaNs have distance 0, as have two equal
    infinities."""
    with np.errstate(all="ignore"):
        absolute = np.abs(other - one)
        absolute[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        absolute[np.isnan(absolute)] = np.inf  # NaN in one alone
        relative = absolute / np.maximum(np.abs(one), np.abs(other))
    relative[absolute == 0] = 0.0
    relative[~(relative <= 2)] = np.inf
    return Distances(absolute, float(np.max(absolute, initial=0.0)), float(np.max(relative, initial=0.0)))
