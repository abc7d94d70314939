"""One server on the sample repository for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.end_to_end.server import SAMPLES, Server, serving


@pytest.fixture(scope="session")
def samples() -> Iterator[Server]:
    """The sample repository, served."""
    with serving(SAMPLES) as server:
        yield server
        assert server.stop() == 0, server.log.decode()
