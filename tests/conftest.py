"""What tests of several folders need."""

import ctypes
import functools
import gc
import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from shoal import interpreter
from shoal.process import adopt_orphans

if TYPE_CHECKING:
    from tests.repository.s3_server import S3Server

# How long an example takes says how busy the machine is: hypothesis' own limit is 200 ms.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

#: Servers that last as long as a process of tests, which starts its own for the first test that asks for one.
SESSION_SERVERS = re.compile(r"\b(every_kind|samples|explicit|s3): \w*Server\b")


@functools.cache
def _session_server(file: Path) -> str:
    """The fixture of a session's server that a file of tests asks for, the first of several; "" if it asks for none."""
    return min(SESSION_SERVERS.findall(file.read_text()), default="")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler that gives whole files to processes, and files that share a server to the same process."""
    from xdist.scheduler import LoadFileScheduling  # here: xdist is not needed to run a test

    class LoadServerScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return _session_server(config.rootpath / file) or file

    return LoadServerScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Refuse to test the checkout's Shoal where the compiled one was asked for, and the other way round."""
    if interpreter.is_compiled() is not (os.environ.get("SHOAL_COMPILED") == "1"):
        raise pytest.UsageError(f"SHOAL_COMPILED does not fit this Shoal: {interpreter.describe()}")


def pytest_collection(session: pytest.Session) -> None:
    """No garbage collection while tests are found: it took a fifth of that time and found nothing."""
    gc.disable()
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is not None:
        _import_share(session.config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_finish() -> None:
    """No collection looks at what was made as tests were found: the first would take 0.7 s, in each process."""
    gc.freeze()


def _import_share(config: pytest.Config, number: int, count: int) -> None:
    """Import the `number`th of `count` parts of the folders' test files, before all are. So each process rewrites and
    compiles a part of a fresh checkout, and of what its tests import, and finds the others' done; where all go in the
    same order, each does everything."""
    folders = [path for each in config.args if (path := config.invocation_params.dir / each).is_dir()]
    files = sorted({file for folder in folders for file in folder.rglob("test_*.py")})
    for file in files[len(files) * number // count : len(files) * (number + 1) // count]:
        with suppress(Exception, pytest.skip.Exception):  # which is told when the file is collected
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test that passes is told to xdist once, in place of five messages, which take 0.5 ms of CPU. All are sent where
    the durations of fixtures are asked for, or a report in XML, which is made of them."""
    options = item.config.option
    if not hasattr(item.config, "workerinput") or options.durations is not None or options.xmlpath is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(scope="module", autouse=True)
def _no_modules_in_garbage() -> None:
    """Garbage collections of a module's tests pass over all that was there before them: ten thousand tests and every
    framework, which made a collection take a hundred times as long."""
    gc.collect()
    gc.freeze()
    gc.enable()


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
