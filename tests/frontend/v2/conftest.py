"""A model for these tests."""

from collections.abc import Callable

import pytest

from shoal.star.models import ModelEntry


@pytest.fixture(scope="session")
def pair(make_entry: Callable[..., ModelEntry]) -> ModelEntry:
    """One input, two outputs, batches of up to four."""
    return make_entry("m", 4, [("A", "TYPE_INT32", [2])], [("OUTA", "TYPE_INT32", [2]), ("OUTB", "TYPE_FP32", [1])])
