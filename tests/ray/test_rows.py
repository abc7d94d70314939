"""shoal/ray/rows.py: what is split is joined again, whatever the sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ray.rows import joined, pieces


@given(st.integers(1, 50), st.integers(0, 12))
def test_rows_come_back_in_their_order(num_rows: int, max_rows: int) -> None:
    arrays = {"a": np.arange(num_rows * 3).reshape(num_rows, 3), "b": np.arange(num_rows)}
    requests = list(pieces(arrays, max_rows))
    answers = joined(requests, has_rows=max_rows > 0)
    for name, array in arrays.items():
        np.testing.assert_array_equal(answers[name], array)


@pytest.mark.parametrize(("max_rows", "shapes"), [(4, [(4, 2), (4, 2), (1, 2)]), (0, [(2,)] * 9)])
def test_a_request_has_as_many_rows_as_the_model_takes(max_rows: int, shapes: list[tuple[int, ...]]) -> None:
    requests = pieces({"a": np.zeros((9, 2))}, max_rows)
    assert [each["a"].shape for each in requests] == shapes
