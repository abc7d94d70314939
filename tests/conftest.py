"""What tests of several folders need."""

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from shoal.process import adopt_orphans

if TYPE_CHECKING:
    from tests.repository.s3_server import S3Server

# How long an example takes says how busy the machine is: hypothesis' own limit is 200 ms.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def _descriptors() -> set[tuple[str, str]]:
    """The open descriptors of this process, and what each is of."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


@pytest.fixture
def num_descriptors() -> Callable[[], int]:
    """How many descriptors this process has opened since the test began and has open now. What earlier tests have left,
    and a thread of theirs may close at any time, does not count, nor does what nobody looks at any more."""
    gc.collect()
    earlier = _descriptors()

    def count() -> int:
        gc.collect()
        return len(_descriptors() - earlier)

    return count


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """What earlier tests have left closes nothing while this one counts by the server's own means."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


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
