"""What the races share: a seed that is printed when a test fails."""

import pytest


@pytest.fixture(params=[20240607])
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of all that is random in a race: the same in every run, and in the name of the test that fails."""
    return int(request.param)
