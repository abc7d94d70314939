"""The fixture `shoal_server` of pytest: servers of `shoal.testing` that end with the test.

    def test_five_requests_make_one_batch(shoal_server):
        server = shoal_server("model_repository", models=["simple"])
        …

A conftest.py enables the fixture with `pytest_plugins = ["shoal.pytest_plugin"]`. The plugin is no entry point of
the package: pytest would rewrite the assertions of all of Shoal in every run on a machine where Shoal is installed.
Nothing is imported that a run does not use.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shoal.testing.server import Server


@pytest.fixture
def shoal_server() -> "Iterator[Callable[..., Server]]":
    """A function with the arguments of `shoal.testing.Server`, which returns one that is closed after the test."""
    from shoal.testing.server import Server

    with ExitStack() as servers:

        def start(*arguments: Any, **options: Any) -> Server:
            return servers.enter_context(Server(*arguments, **options))

        yield start
