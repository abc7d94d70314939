"""What the races share: a seed that is printed when a test fails, and a count of descriptors."""

import gc
import os
from collections.abc import Callable

import pytest


@pytest.fixture(params=[20240607])
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of all that is random in a race: the same in every run, and in the name of the test that fails."""
    return int(request.param)


@pytest.fixture
def num_descriptors() -> Callable[[], int]:
    """How many descriptors this process has open now; a mapping that nobody looks at any more holds none."""

    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    return count
