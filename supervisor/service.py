"""The server as a service of systemd: loading, ready, how many instances are up, stopping, and that it makes progress.

Tells systemd what happens to the server; does nothing where the server was started by hand.
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

#: Rounds of the watchdog within the time that systemd waits: three may fail before it ends the server (ours).
ROUNDS = 4
#: What a model's load may take beside --model-load-timeout-secs: the worker's process starts and ends (ours).
LOAD_MARGIN_S = 30


class Phase(Enum):
    """What the status line begins with."""

    LOADING = "loading, "
    SERVING = ""
    STOPPING = "stopping, "


class Service:
    """What systemd is told, and the rounds that feed its watchdog."""

    def __init__(self, loop: EventLoop, star: Star, notifier: Notifier, load_timeout_s: int) -> None:
        self._loop = loop
        self._star = star
        self._notifier = notifier
        self._load_timeout_s = load_timeout_s
        self._watchdog = Watchdog()
        # Changed by the methods below.
        self._phase = Phase.LOADING
        self._status = ""
        self._num_front_ends = 0

    def on_models_changed(self, versions: Sequence[ModelVersion]) -> None:
        """An instance or a version has come or gone: say how many there are; while they load, ask for patience.

        Each step of loading has its own deadline, so each that is made is worth the time of another.
        """
        lines = []
        status = self._phase.value + describe(versions)
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
        if self._phase is Phase.LOADING:
            lines.append(f"EXTEND_TIMEOUT_USEC={(self._load_timeout_s + LOAD_MARGIN_S) * 1_000_000}")
        if lines:
            self._notifier.send(*lines)

    def ready(self, versions: Sequence[ModelVersion], num_front_ends: int) -> None:
        """Every model has settled, and this many front ends answer."""
        if self._phase is Phase.STOPPING:
            return
        self._phase = Phase.SERVING
        self._num_front_ends = num_front_ends
        self._status = describe(versions)
        self._notifier.send("READY=1", f"STATUS={self._status}")
        if self._notifier.watchdog_s:
            self._loop.every(self._notifier.watchdog_s / ROUNDS, self._ask)

    def stopping(self, versions: Sequence[ModelVersion]) -> None:
        """No more requests are accepted. Front ends end one by one: the watchdog waits for those that are left."""
        self._phase = Phase.STOPPING
        self._num_front_ends = 0
        self._status = self._phase.value + describe(versions)
        self._notifier.send("STOPPING=1", f"STATUS={self._status}")

    # --- the watchdog ---

    def _ask(self, _late_s: float) -> None:
        """A round: each process on a request's path acknowledges a ping from its own loop, or is named in the log."""
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
        """Who has to be there and is not. It cannot echo, so a round without it feeds nothing."""
        num_missing = self._num_front_ends + 1 - len(members)
        return [f"{num_missing} that are not there"] * (num_missing > 0)

    def _on_echo(self, number: int, name: str) -> None:
        if self._watchdog.echo(number, name):
            self._notifier.send("WATCHDOG=1")


def describe(versions: Sequence[ModelVersion]) -> str:
    """The server in words: `14/16 instances up, 2 models failed`. A failed version has no instances to count."""
    num_failed = len({version.identifier for version in versions if version.is_failure})
    failed = f", {num_failed} model{'s' * (num_failed != 1)} failed" if num_failed else ""
    num_up = sum(version.num_instances_up for version in versions)
    num_wanted = sum(version.num_instances for version in versions if version.state is not VersionState.UNAVAILABLE)
    return f"{num_up}/{num_wanted} instances up{failed}"
