"""frontend/arbiter.py: which process is started next, with what, and that one role's failure is no other's."""

import errno
import fcntl
import itertools
import os
import queue
import signal
import socket
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from shoal.frontend.arbiter import FrontEndArbiter, Role, Roles

ENVIRONMENT = {
    "SHOAL_FRONT_ENDS": '{"http": 2, "road": 1}',
    "SHOAL_HTTP_LISTENER_FDS": "7",
    "SHOAL_ROAD_LISTENER_FDS": "8,9",
}


def test_the_first_role_that_lacks_a_process_gets_one() -> None:
    roles = Roles.read(ENVIRONMENT)
    running: list[str] = []
    while (role := roles.missing(running, 0.0)) is not None:
        running.append(role.name)
    assert running == ["http", "http", "road"]
    running.remove("http")
    assert roles.missing(running, 0.0) is roles.find("http")


def test_a_role_has_its_own_sockets() -> None:
    roles = Roles.read(ENVIRONMENT)
    assert roles.listeners("http", [7, 8, 9]) == [7]
    assert roles.listeners("road", [7, 8, 9]) == [8, 9]
    with pytest.raises(KeyError):
        roles.listeners("grpc", [7, 8, 9])


def test_a_role_whose_processes_end_as_they_start_waits_longer_each_time_and_no_other_role_does() -> None:
    roles = Roles([Role("http", 1, 1), Role("road", 1, 1)])
    http, now_s, pauses = roles.find("http"), 100.0, []
    for _ in range(9):
        http.ended(now_s, served_s=0.2)
        assert roles.missing(["road"], now_s) is None
        assert roles.missing([], now_s) is roles.find("road")
        pauses.append(http.not_before_s - now_s)
        now_s = http.not_before_s
        assert roles.missing(["road"], now_s) is http
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    http.ended(now_s, served_s=1.0)
    assert roles.missing(["road"], now_s) is http


class FakeArbiter(FrontEndArbiter):
    """An arbiter without processes: those that it would start are noted, and those that it ends are gone."""

    def __init__(self) -> None:
        self._roles = Roles.read(ENVIRONMENT)
        self.WORKERS: dict[int, Any] = {}
        self.LISTENERS: list[Any] = []
        self.log = SimpleNamespace(error=lambda *_: None)
        self.cfg = SimpleNamespace(graceful_timeout=60)
        self.ended: list[str] = []
        self.pids = itertools.count(1)
        self.SIG_QUEUE: Any = SimpleNamespace(get=lambda timeout: signal.SIGCHLD)
        self.manage_workers()

    def spawn_worker(self) -> None:
        pid = next(self.pids)
        closed = SimpleNamespace(close=lambda: None)
        self.WORKERS[pid] = SimpleNamespace(role=self._role.name, started_s=0.0, tmp=closed, sockets=[])

    def kill_worker(self, pid: int, sig: int) -> None:
        self.ended.append(f"{self.WORKERS[pid].role} {signal.Signals(sig).name}")
        self.gone = pid


@pytest.fixture
def reaped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids of processes that have ended, for `reap_workers`; a negative one could not start."""
    pids: list[int] = []

    def reap(self: Any) -> None:
        while pids:
            pid = pids.pop(0)
            del self.WORKERS[abs(pid)]
            if pid < 0:
                raise HaltServer("Worker failed to boot.", 3)

    monkeypatch.setattr(Arbiter, "reap_workers", reap)
    return pids


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("least_fd", [0, 1100], ids=["few files", "many files"])
def test_one_that_was_stopped_before_it_handled_signals_stops(
    is_stopped: bool, least_fd: int, reaped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not reaped
    arbiter = FakeArbiter()
    arbiter.SIG_QUEUE = queue.SimpleQueue()
    arbiter.log = SimpleNamespace(close_on_exec=lambda: None)
    low_fd, go_fd = os.pipe()
    read_fd = fcntl.fcntl(low_fd, fcntl.F_DUPFD_CLOEXEC, least_fd)
    os.close(low_fd)
    monkeypatch.setenv("SHOAL_GO_FD", str(read_fd))
    if is_stopped:
        os.close(go_fd)
    numbers = {*FrontEndArbiter.SIGNALS, *FrontEndArbiter._IGNORED, signal.SIGCHLD}
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        arbiter.init_signals()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert arbiter.SIG_QUEUE.empty() != is_stopped
    if is_stopped:
        assert arbiter.SIG_QUEUE.get() is signal.SIGTERM
    else:
        os.close(go_fd)
    with pytest.raises(OSError, match="Bad file"):  # no process that is forked has it
        os.fstat(read_fd)


def test_a_process_that_cannot_start_ends_no_other(reaped: list[int]) -> None:
    arbiter = FakeArbiter()
    assert [worker.role for worker in arbiter.WORKERS.values()] == ["http", "http", "road"]
    reaped += [-3, 1]
    arbiter.reap_workers()
    assert [worker.role for worker in arbiter.WORKERS.values()] == ["http"]
    arbiter.manage_workers()
    assert sorted(worker.role for worker in arbiter.WORKERS.values()) == ["http", "http", "road"]


def test_a_fork_that_the_system_refuses_ends_no_process_and_is_tried_later(
    reaped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = FakeArbiter()

    def refuse(_arbiter: FakeArbiter) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patch:
        patch.setattr(FakeArbiter, "spawn_worker", refuse)
        reaped.append(3)
        arbiter.reap_workers()
        arbiter.manage_workers()
    assert [worker.role for worker in arbiter.WORKERS.values()] == ["http", "http"]
    road = arbiter._roles.find("road")
    assert road.num_failures == 1
    road.not_before_s = 0.0
    arbiter.manage_workers()
    assert [worker.role for worker in arbiter.WORKERS.values()] == ["http", "http", "road"]


def test_the_road_ends_when_the_lanes_have_ended(reaped: list[int]) -> None:
    arbiter = FakeArbiter()

    def get(timeout: float) -> signal.Signals:
        """One of those that were told to has ended."""
        reaped.append(next(iter(arbiter.WORKERS)))
        return signal.SIGCHLD

    arbiter.SIG_QUEUE.get = get
    arbiter.stop()
    assert arbiter.ended == ["http SIGTERM", "http SIGTERM", "road SIGTERM"]
    assert not arbiter.WORKERS


def test_a_standstill_of_the_machine_takes_none_of_the_time_in_which_processes_may_end(
    reaped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter, looks = FakeArbiter(), itertools.count(1)
    now_s = 0.0

    def get(timeout: float) -> signal.Signals:
        """The machine stands still at each look; a process ends at every third."""
        nonlocal now_s
        now_s += 1000.0
        if next(looks) % 3 == 0:
            reaped.append(next(iter(arbiter.WORKERS)))
        return signal.SIGCHLD

    arbiter.SIG_QUEUE.get = get
    monkeypatch.setattr("shoal.frontend.arbiter.time", SimpleNamespace(monotonic=lambda: now_s))
    arbiter.stop()
    assert arbiter.ended == ["http SIGTERM", "http SIGTERM", "road SIGTERM"]
    assert not arbiter.WORKERS


def test_processes_that_stood_still_with_the_machine_are_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arbiter looks before they can show that they live."""
    arbiter, now_s = FakeArbiter(), 0.0
    arbiter._progress_fd, arbiter._passes, arbiter.timeout = os.memfd_create("passes"), itertools.count(1), 30
    arbiter._looked_s = arbiter._excused_until_s = 0.0
    arbiter.log.critical = lambda *_: None
    shown_s = dict.fromkeys(arbiter.WORKERS, 0.0)
    for pid, worker in arbiter.WORKERS.items():
        worker.aborted, worker.tmp.last_update = False, partial(shown_s.get, pid)
    monkeypatch.setattr("shoal.frontend.arbiter.time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr("gunicorn.arbiter.time", SimpleNamespace(monotonic=lambda: now_s))
    for passed_s in (1.0, 1000.0, *[1.0] * 29):
        now_s += passed_s
        arbiter.murder_workers()
    assert arbiter.ended == []
    shown_s[1] = now_s
    for _ in range(2):
        now_s += 1.0
        arbiter.murder_workers()
    assert set(arbiter.ended) == {"http SIGABRT", "road SIGABRT", "http SIGKILL", "road SIGKILL"}
    os.close(arbiter._progress_fd)


@pytest.fixture
def pairs() -> Iterator[list[socket.socket]]:
    sockets = [*socket.socketpair(), *socket.socketpair()]
    yield sockets
    for each in sockets:
        each.close()


def test_a_process_keeps_what_its_role_has(pairs: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    http, road, to_road, to_lanes = pairs
    passed = os.dup(to_lanes.fileno())
    monkeypatch.setenv("SHOAL_HTTP_SEND_FD", str(to_road.fileno()))
    monkeypatch.setenv("SHOAL_ROAD_SEND_FD", str(passed))
    monkeypatch.setenv("SHOAL_ROAD_ACCEPTS", "1")
    arbiter = FakeArbiter()
    arbiter.LISTENERS = [http, road]
    arbiter._progress_fd = os.memfd_create("passes")
    arbiter.become(SimpleNamespace(role="http", sockets=[http]))
    assert {name: value for name, value in os.environ.items() if name.startswith("SHOAL_")} == {
        "SHOAL_SEND_FD": str(to_road.fileno())
    }
    assert (http.fileno() >= 0, road.fileno()) == (True, -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(passed)
    monkeypatch.delenv("SHOAL_SEND_FD")
