"""A server for the verbs that operate one."""

from collections.abc import Iterator

import pytest

from tests.cli.answering import Answering, answering


@pytest.fixture
def server() -> Iterator[Answering]:
    with answering() as each:
        yield each
