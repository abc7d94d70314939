"""One version of a model as a front end knows it."""

from collections.abc import Callable

import pytest

from shoal.star.models import ModelEntry
from tests.star.entries import LABELS, entry_of

__all__ = ["LABELS", "make_entry"]


@pytest.fixture(scope="session")
def make_entry() -> Callable[..., ModelEntry]:
    """Makes entries, as entries.py says."""
    return entry_of
