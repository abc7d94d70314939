"""The star that tests of the supervisor's side share."""

from collections.abc import Iterator

import pytest

from tests.supervisor.clock import ClockLoop
from tests.supervisor.served_version import Version, version
from tests.supervisor.star_rig import StarRig


@pytest.fixture
def clock() -> Iterator[ClockLoop]:
    made = ClockLoop()
    yield made
    made.end()


@pytest.fixture
def rig() -> Iterator[StarRig]:
    made = StarRig()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Version]:
    """Two instances of one model."""
    with version() as made:
        yield made
