"""shoal.Client's arrays as tensors of a request."""

import numpy as np
import pytest

from shoal.client.arrays import as_input, made_array
from shoal.datatypes import BF16, FP32, INT32
from shoal.errors import InvalidArgumentError


def test_a_text_without_utf_8_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"an element of input 'X' has no UTF-8: .*surrogates not allowed"):
        as_input("X", np.array(["fish", "\ud800"], object), None)


def test_a_list_whose_fractions_would_be_cut_off_is_refused() -> None:
    """The numbers 1.5 were sent as 1 to an input of integers, which HTTP's JSON refuses."""
    assert made_array("A", [[1.0, 2.0]], INT32).tolist() == [[1, 2]]
    assert made_array("A", [1.5], FP32).tolist() == [1.5]
    assert made_array("A", [1.5], None).tolist() == [1.5]
    with pytest.raises(
        InvalidArgumentError, match=r"^input 'A' has the number 1\.5, which is not the INT32 of the model"
    ):
        made_array("A", [[1.0, 1.5]], INT32)
    with pytest.raises(
        InvalidArgumentError, match=r"^input 'A' has the number 0\.5, which is not the 16-bit words of a"
    ):
        made_array("A", 0.5, BF16)
