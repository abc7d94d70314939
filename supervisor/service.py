"""The server as a service of systemd: reports loading, readiness, instances that are up, stopping and progress.

All messages to systemd are sent from here; none where the server was started by hand.
"""

import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial

from shoal.messages.shared import Ping
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.star import Star
from shoal.supervisor.notify import Notifier, Watchdog
from shoal.supervisor.processes.members import Member

_log = logging.getLogger(__name__)

#: Rounds of the watchdog within the time that systemd waits: three may fail before systemd ends the server (ours).
ROUNDS = 4
#: Seconds of a model's load beside --model-load-timeout-secs: the worker's process starts and ends (ours).
LOAD_MARGIN_S = 30


class Phase(Enum):
    """A phase of the server; the value begins the status line."""

    LOADING = "loading, "
    SERVING = ""
    STOPPING = "stopping, "


class Service:
    """The server's reports to systemd, and the rounds that feed its watchdog."""

    def __init__(
        self, loop: EventLoop, star: Star, notifier: Notifier, load_timeout_s: int, *, is_main: bool = True
    ) -> None:
        self._loop = loop
        self._star = star
        self._notifier = notifier
        self._load_timeout_s = load_timeout_s
        self._watchdog = Watchdog()
        # Changed by the methods below. At an upgrade one of the two servers is the main process, which reports.
        self._is_main = is_main
        self._phase = Phase.LOADING
        self._status = ""
        self._num_front_ends = 0

    def on_models_changed(self, versions: Sequence[ModelVersion]) -> None:
        """Report how many instances are up; while models load, ask systemd for more time.

        Each step of loading has its own deadline, so each completed step earns the time of another.
        """
        lines = []
        status = self._phase.value + describe(versions)
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
        if self._phase is Phase.LOADING:
            lines.append(f"EXTEND_TIMEOUT_USEC={(self._load_timeout_s + LOAD_MARGIN_S) * 1_000_000}")
        if lines:
            self._send(*lines)

    def ready(self, versions: Sequence[ModelVersion], num_front_ends: int) -> None:
        """Report that the server is ready: every model has settled, and this many front ends answer."""
        if self._phase is Phase.STOPPING:
            return
        self._phase = Phase.SERVING
        self._num_front_ends = num_front_ends
        self._status = describe(versions)
        self._send("READY=1", f"STATUS={self._status}")
        if self._notifier.watchdog_s:
            self._loop.every(self._notifier.watchdog_s / ROUNDS, self._ask)

    def take_over(self) -> None:
        """Report from now on: the old server has named this process as the main one."""
        self._is_main = True

    def hand_over(self, pid: int) -> None:
        """Report that a new server, this process, is the main one, which alone reports from now on."""
        self._send(f"MAINPID={pid}")
        self._is_main = False

    def _send(self, *lines: str) -> None:
        if self._is_main:
            self._notifier.send(*lines)

    def stopping(self, versions: Sequence[ModelVersion]) -> None:
        """Report that the server stops. Front ends end one by one: the watchdog waits for those that are left."""
        self._phase = Phase.STOPPING
        self._num_front_ends = 0
        self._status = self._phase.value + describe(versions)
        self._send("STOPPING=1", f"STATUS={self._status}")

    # --- the watchdog ---

    def _ask(self, _late_s: float) -> None:
        """Begin a round: each process on a request's path acknowledges a ping in its loop, or is named in the log."""
        members = self._members()
        number, silent = self._watchdog.begin([*members, *self._missing(members)])
        if silent:
            period_s = self._notifier.watchdog_s / ROUNDS
            _log.warning("no sign of life within %g s from %s", period_s, ", ".join(sorted(silent)))
        for name, member in members.items():
            echoed = self._star.acknowledgements.announce([(member, Ping())])
            self._loop.after(echoed, partial(self._on_echo, number, name))

    def _members(self) -> dict[str, Member]:
        members = {f"front end {client.member.pid}": client.member for client in self._star.front_ends}
        if self._star.batcher is not None:
            members[f"batcher {self._star.batcher.pid}"] = self._star.batcher
        return members

    def _missing(self, members: Mapping[str, Member]) -> list[str]:
        """A name for serving processes that are missing. It never echoes: such a round does not feed the watchdog."""
        num_missing = self._num_front_ends + 1 - len(members)
        return [f"{num_missing} that are not there"] * (num_missing > 0)

    def _on_echo(self, number: int, name: str) -> None:
        if self._watchdog.echo(number, name):
            self._send("WATCHDOG=1")


def describe(versions: Sequence[ModelVersion]) -> str:
    """The server's state in words: `14/16 instances up, 2 models failed`. A failed version's are not counted."""
    num_failed = len({version.identifier for version in versions if version.is_failure})
    failed = f", {num_failed} model{'s' * (num_failed != 1)} failed" if num_failed else ""
    num_up = sum(version.num_instances_up for version in versions)
    num_wanted = sum(version.num_instances for version in versions if version.state is not VersionState.UNAVAILABLE)
    return f"{num_up}/{num_wanted} instances up{failed}"
