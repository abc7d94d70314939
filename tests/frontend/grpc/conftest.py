"""A model for these tests."""

from collections.abc import Callable

import pytest

from shoal.star.models import ModelEntry


@pytest.fixture(scope="session")
def pair(make_entry: Callable[..., ModelEntry]) -> ModelEntry:
    """Two inputs; BYTES and batches of up to four."""
    return make_entry("m", 4, [("A", "TYPE_INT32", [2]), ("B", "TYPE_STRING", [1])])
