"""gunicorn's arbiter for front ends of several roles: HTTP lanes, gRPC lanes and the road, each with its own sockets.

One arbiter has imported what all of them need, so that they share its memory; three arbiters took 27 MiB more. It
replaces a process that has ended, after a pause if that process had only just begun, so a role whose processes cannot
start takes no other role along. When the arbiter is told to stop, the road ends last, since it still answers requests
that lanes have handed over. Runs in the process that the supervisor starts (python -m shoal.frontend.gunicorn_main).
"""

# The type hints that pyright brings for gunicorn are of an older version.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportIncompatibleVariableOverride=false

import itertools
import json
import os
import queue
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gunicorn import sock, util
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from shoal.frontend.standstill import standstill_s
from shoal.open_files import explain_start
from shoal.process import END_SIGNALS

#: The worker class of each role.
WORKER_CLASSES = {
    "http": "shoal.frontend.lane.LaneWorker",
    "grpc": "shoal.frontend.grpc.lane.GrpcLaneWorker",
    "road": "shoal.frontend.road.road.RoadWorker",
}
#: A process that ends earlier than this after its start has failed to start; the pause before the next start is
#: FIRST_PAUSE_S, and doubles with each failure up to LONGEST_PAUSE_S (ours).
STARTED_AFTER_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: Seconds between two searches for processes that have ended, while the arbiter stops.
_LOOK_S = 0.1


@dataclass(slots=True)
class Role:
    """One kind of front end: how many processes it has, and when the next may start."""

    name: str
    num_processes: int
    num_listeners: int
    # Changed as processes end: failed starts in a row, and the time before which no process is started.
    num_failures: int = 0
    not_before_s: float = 0.0

    def ended(self, now_s: float, served_s: float) -> None:
        """Note that a process has ended `served_s` seconds after its start."""
        self.num_failures = self.num_failures + 1 if served_s < STARTED_AFTER_S else 0
        if self.num_failures:
            self.not_before_s = now_s + min(FIRST_PAUSE_S * 2 ** (self.num_failures - 1), LONGEST_PAUSE_S)


@dataclass(slots=True)
class Roles:
    """The roles of an arbiter, in the order in which their sockets are listed. Pure."""

    roles: list[Role] = field(default_factory=list)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Roles":
        wanted: dict[str, int] = json.loads(environ["SHOAL_FRONT_ENDS"])
        return cls(
            [Role(name, number, len(listener_fds(environ, name))) for name, number in wanted.items()],
        )

    def missing(self, names: list[str], now_s: float) -> Role | None:
        """The first role that lacks a process which may start now; `names` are the roles of all processes that run."""
        for role in self.roles:
            if names.count(role.name) < role.num_processes and now_s >= role.not_before_s:
                return role
        return None

    def listeners(self, name: str, listeners: list[Any]) -> list[Any]:
        """The sockets of a role among those of all roles."""
        start = 0
        for role in self.roles:
            if role.name == name:
                return listeners[start : start + role.num_listeners]
            start += role.num_listeners
        raise KeyError(name)

    def find(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)


def prefix(role: str) -> str:
    """The beginning of the names of environment variables that are meant for one role."""
    return f"SHOAL_{role.upper()}_"


def listener_fds(environ: Mapping[str, str], role: str) -> list[str]:
    """The descriptors of a role's sockets."""
    return environ[f"{prefix(role)}LISTENER_FDS"].split(",")


class FrontEndArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no type hints
    """gunicorn's arbiter, which keeps processes of several roles."""

    #: The signals that are handled. Those by which gunicorn reloads, upgrades and changes the number of workers are
    #: ignored, since the supervisor does these things its own way.
    SIGNALS: ClassVar[list[signal.Signals]] = [signal.SIGQUIT, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    _IGNORED = (signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)

    def __init__(self, app: Any) -> None:
        self._roles = Roles.read(os.environ)
        self._progress_fd = int(os.environ["SHOAL_PROGRESS_FD"])
        # The fields below are changed by murder_workers, once in each turn of the arbiter's loop.
        self._passes = itertools.count(1)
        self._looked_s = time.monotonic()
        self._excused_until_s = 0.0  # until then no front end is killed for its silence: all may have stood still
        # The fields below are changed by manage_workers.
        self._role = self._roles.roles[0]  # the role of the process that is started next
        super().__init__(app)

    def setup(self, app: Any) -> None:
        """Set up as gunicorn does, but for the class of workers, which depends on the role."""
        super().setup(app)
        self._classes: dict[str, Callable[..., Any]] = {
            role.name: util.load_class(WORKER_CLASSES[role.name]) for role in self._roles.roles
        }
        self.worker_class = self._make_worker

    def init_signals(self) -> None:
        """Handle the signals in SIGNALS, and ignore gunicorn's others, which must not end or stop the arbiter."""
        super().init_signals()
        for number in self._IGNORED:
            signal.signal(number, signal.SIG_IGN)
        go_fd = int(os.environ["SHOAL_GO_FD"])
        poller = select.poll()  # not select: a supervisor of many workers has descriptors beyond 1024
        poller.register(go_fd, select.POLLIN)
        if poller.poll(0):  # the supervisor has hung up; a SIGTERM that it sent before was ignored
            self.SIG_QUEUE.put_nowait(signal.SIGTERM)
        os.close(go_fd)

    def _make_worker(self, age: int, ppid: int, listeners: list[Any], *others: Any) -> Any:
        name = self._role.name
        worker = self._classes[name](age, ppid, self._roles.listeners(name, listeners), *others)
        worker.role, worker.started_s = name, time.monotonic()
        return worker

    def manage_workers(self) -> None:
        """Start the processes that are missing."""
        while True:
            names = [worker.role for worker in self.WORKERS.values()]
            role = self._roles.missing(names, time.monotonic())
            if role is None:
                return
            self._role = role
            try:
                self.spawn_worker()
            except OSError as error:  # the system refuses a fork, or a descriptor
                self.log.error("a front end '%s' cannot be started: %s", role.name, explain_start(error))
                role.ended(time.monotonic(), served_s=0.0)

    def murder_workers(self) -> None:
        """Kill front ends that have stood still for too long, and count a turn of the arbiter's loop, by which the
        supervisor sees that the arbiter runs."""
        os.pwrite(self._progress_fd, next(self._passes).to_bytes(8, "little"), 0)
        now_s = time.monotonic()
        if standstill_s(self._looked_s, now_s):  # the arbiter stood still: front ends may have, too
            self._excused_until_s = now_s + self.timeout
        self._looked_s = now_s
        if now_s >= self._excused_until_s:
            super().murder_workers()

    def spawn_worker(self) -> Any:
        """Fork a worker, with the signals that end it blocked until it handles them (shoal/process.py).

        Until then the new process has the arbiter's handlers, which put a signal into a queue that only the arbiter
        reads.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def become(self, worker: Any) -> None:
        """Turn a process that was just forked into one of its role: close the sockets and descriptors of other roles,
        and give environment variables of this role their plain names (SHOAL_HTTP_X becomes SHOAL_X)."""
        os.close(self._progress_fd)
        own = {id(each) for each in worker.sockets}
        for listener in self.LISTENERS:
            if id(listener) not in own:
                listener.close()
        for role in self._roles.roles:
            start = prefix(role.name)
            for name in [name for name in os.environ if name.startswith(start)]:
                value = os.environ.pop(name)
                if role.name == worker.role:
                    os.environ["SHOAL_" + name.removeprefix(start)] = value
                elif name.endswith("_FD"):
                    os.close(int(value))

    def reap_workers(self) -> None:
        """Collect processes that have ended. Unlike in gunicorn, a process that could not start does not end the
        arbiter."""
        before = dict(self.WORKERS)
        while True:
            try:
                super().reap_workers()
                break
            except HaltServer as halt:
                self.log.error("%s", halt.reason)
        now_s = time.monotonic()
        for pid, worker in before.items():
            if pid not in self.WORKERS:
                worker.tmp.close()
                self._roles.find(worker.role).ended(now_s, now_s - worker.started_s)

    def stop(self, graceful: bool = True) -> None:
        """End all processes. Gracefully: first the lanes, then the road, within gunicorn's graceful timeout."""
        sock.close_sockets(self.LISTENERS, unlink=False)
        self.LISTENERS: list[Any] = []
        if graceful:
            left_s = self._stop_workers(lambda role: role != "road", self.cfg.graceful_timeout)
            self._stop_workers(lambda role: role == "road", left_s)
        if self.WORKERS:
            super().stop(graceful=False)

    def _stop_workers(self, is_meant: Callable[[str], bool], limit_s: float) -> float:
        """End the processes of the roles for which `is_meant` is true, and wait until they have ended, but no longer
        than `limit_s`, nor after a signal to end at once. Returns the seconds that are left of `limit_s`; a standstill
        of this process takes none of them."""
        looked_s = time.monotonic()
        for pid, worker in tuple(self.WORKERS.items()):
            if is_meant(worker.role):
                self.kill_worker(pid, signal.SIGTERM)
        while any(is_meant(worker.role) for worker in self.WORKERS.values()) and limit_s > 0:
            try:
                if self.SIG_QUEUE.get(timeout=_LOOK_S) in (signal.SIGINT, signal.SIGQUIT):
                    return 0.0
            except queue.Empty:
                pass
            self.reap_workers()
            now_s = time.monotonic()
            limit_s -= now_s - looked_s - standstill_s(looked_s, now_s)
            looked_s = now_s
        return limit_s
