"""One server on the sample repository for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.end_to_end.http_cases.models import FLAGS, write_models
from tests.end_to_end.server import SAMPLES, Server, serving


@pytest.fixture(scope="session")
def samples() -> Iterator[Server]:
    """The sample repository, served."""
    with serving(SAMPLES) as server:
        yield server
        assert server.stop() == 0, server.log.decode()


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The samples beside identity models of every kind and one model that does not load; small limits."""
    with serving([SAMPLES, write_models(tmp_path_factory.mktemp("models"))], *FLAGS) as server:
        yield server
        assert server.stop() == 0, server.log.decode()
