"""What tests of several folders need."""

import ctypes
from collections.abc import Iterator

import pytest

from shoal.process import adopt_orphans


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process adopts orphans, as the supervisor does."""
    adopt_orphans()
    yield
    assert ctypes.CDLL(None).prctl(36, 0, 0, 0, 0) == 0
