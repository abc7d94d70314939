"""BF16, which numpy lacks: its words, the upper halves of FP32, and their values. Pure, with numpy."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def values_of(words: Array) -> Array:
    """The values, as float32, of an array of words; an array of float32 is returned unchanged."""
    return (words.astype(np.uint32) << 16).view(np.float32) if words.dtype == np.uint16 else words


def words_of(values: Array) -> Array:
    """The words of an array of float32, truncated, not rounded, as in Triton's client; other arrays are returned
    unchanged."""
    return (values.view(np.uint32) >> 16).astype(np.uint16) if values.dtype == np.float32 else values
