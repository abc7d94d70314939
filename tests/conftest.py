"""What tests of several folders need."""

import ctypes
import functools
import gc
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
#: Files that import PyTorch, by themselves or by what they use: 1.4 s of CPU in each process of tests that runs one.
PYTORCH = re.compile(r"(?m)^(import|from) torch\b|\b(backend_models|bench\.frameworks|pytorch_models|torch_archives)\b")


#: The last test that was reported by each process of tests, by its name.
_last_tests: dict[str, str] = {}


@functools.cache
def _shared_by(file: Path) -> str:
    """What a file of tests shares with others: a session's server, the first of several, or PyTorch; "": nothing."""
    text = file.read_text()
    return min(SESSION_SERVERS.findall(text), default="PyTorch" if PYTORCH.search(text) else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler that gives whole files to processes, and files that share a server or PyTorch to the same process."""
    from xdist.scheduler import LoadFileScheduling  # here: xdist is not needed to run a test

    class LoadSharedScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return _shared_by(config.rootpath / file) or file

        def _reschedule(self, node: Any) -> None:
            # One file beside that which is run is enough, and may be waited for in the end.
            if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            # Of a process that has died: a file that ended it would end the next one, too, and a file that has been
            # run, which xdist queues again, would be a process's work of which no report comes.
            work = self.assigned_work[node]
            ended = next((each for file in work.values() for each, is_run in file.items() if not is_run), None)
            is_file = ended is not None and ended.endswith(WHOLE)
            if ended is not None and is_file:
                work[self._split_scope(ended)][ended] = True
            for scope in [scope for scope, file in work.items() if all(file.values())]:
                del work[scope]
            running: str | None = super().remove_node(node)
            return ended if is_file else running

    return LoadSharedScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Refuse to test the checkout's Shoal where the compiled one was asked for, and the other way round."""
    if interpreter.is_compiled() is not (os.environ.get("SHOAL_COMPILED") == "1"):
        raise pytest.UsageError(f"SHOAL_COMPILED does not fit this Shoal: {interpreter.describe()}")


def pytest_collection() -> None:
    """No garbage collection while tests are found: it took a fifth of that time and found nothing."""
    gc.disable()


def pytest_collection_finish() -> None:
    """No collection looks at what was made as tests were found: the first would take 0.7 s."""
    gc.freeze()


# --- a process of tests imports only the files that it runs ---


#: The end of a WholeFile's id.
WHOLE = "::all"


class WholeFile(pytest.Item):
    """All tests of a file, in the place of each, until a process runs them: to find them all, each of several processes
    imported every file and what that needs, PyTorch and scikit-learn among others."""

    def runtest(self) -> None:
        """Do nothing: the tests are run one by one."""

    def run_all(self, nextitem: pytest.Item | None) -> None:
        """Find and run the tests of the file."""
        assert self.parent is not None
        session, config = self.session, self.config
        gc.disable()  # until the module's first fixture
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        items = list(session.genitems(module))
        config.hook.pytest_collection_modifyitems(session=session, config=config, items=items)
        number = session.items.index(self)
        for place, item in enumerate(items, 1):
            session.items[number] = item  # the one of which xdist expects reports now
            following = items[place] if place < len(items) else nextitem
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[number] = self
        if not items:  # no last test has ended what the next file does not share
            session._setupstate.teardown_exact(nextitem)


class UnreadFile(pytest.File):
    """A file that is not imported yet."""

    def collect(self) -> Iterator[WholeFile]:
        yield WholeFile.from_parent(self, name=WHOLE.removeprefix("::"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of tests whether it runs whole files, and so may find tests late."""
    config = node.config
    are_single = any("::" in each for each in config.args)
    node.workerinput["finds_late"] = config.getoption("dist") == "loadfile" and not (
        are_single or config.getoption("lf", default=False)
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the last test of each process, for the time when it dies."""
    if (node := getattr(report, "node", None)) is not None:
        _last_tests[node.gateway.id] = report.nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """Name the test after which a process died that runs a whole file."""
    node: Any = report.node
    if crashitem.endswith(WHOLE) and (last := _last_tests.get(node.gateway.id)) is not None:
        report.longrepr = f"{report.longrepr}, after {last!r}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Keep unread files where tests are chosen by words or marks, which those of each file are once they are found."""
    unread = [item for item in items if isinstance(item, WholeFile)]
    yield
    if unread:
        items[:] = unread


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Leave a file unread where its tests are found late."""
    if not getattr(parent.config, "workerinput", {}).get("finds_late"):
        return None
    return UnreadFile.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test that passes is told to xdist once, in place of five messages, which take 0.5 ms of CPU. All are sent where
    the durations of fixtures are asked for, or a report in XML, which is made of them."""
    if isinstance(item, WholeFile):
        item.run_all(nextitem)
        return True
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
