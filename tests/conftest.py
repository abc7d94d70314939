"""What tests of several folders need."""

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shoal.process import adopt_orphans

if TYPE_CHECKING:
    from tests.repository.s3_server import S3Server


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process adopts orphans, as the supervisor does."""
    adopt_orphans()
    yield
    assert ctypes.CDLL(None).prctl(36, 0, 0, 0, 0) == 0


@pytest.fixture(scope="session")
def s3() -> "Iterator[S3Server]":
    """One S3 server for all tests of a run: each has a bucket of its own."""
    from tests.repository.s3_server import s3_server  # here: boto3 takes its time

    with s3_server() as server:
        yield server
