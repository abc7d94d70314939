"""shoal.Client's arrays as tensors of a request."""

import numpy as np
import pytest

from shoal.client.arrays import as_input
from shoal.errors import InvalidArgumentError


def test_a_text_without_utf_8_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"an element of input 'X' has no UTF-8: .*surrogates not allowed"):
        as_input("X", np.array(["fish", "\ud800"], object), None)
