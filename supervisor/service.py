"""The server as a service of systemd: reports loading, readiness, instances that are up, stopping and progress.

All messages to systemd are sent from here by sd_notify(3): datagrams of lines such as `READY=1`, to the socket that the
environment names; none where the server was started by hand. The watchdog is fed by progress, never by a timer: in
every round, each process on a request's path has to echo from its own loop. The variables of a service are removed from
the environment, since the supervisor's children must not act on them.
"""

import logging
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from shoal.messages.shared import Ping
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.supervisor.memory.star import Star

_log = logging.getLogger(__name__)

#: The variables of a service of systemd's. They are meant for one process, and gunicorn would act upon them, too.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
#: systemd reads at once. A service manager that does not read stops the supervisor's loop for so long at most (ours).
SEND_TIMEOUT_S = 1.0
#: Rounds of the watchdog within the time that systemd waits: three may fail before systemd ends the server (ours).
ROUNDS = 4
#: Seconds that a model's load may take beyond --model-load-timeout-secs, as a worker's process starts and ends (ours).
LOAD_MARGIN_S = 30


@dataclass(frozen=True, slots=True)
class Notifier:
    """The service manager's socket, and how long systemd waits for the watchdog to be fed; 0: for ever."""

    address: str = ""
    watchdog_s: float = 0.0

    @classmethod
    def take(cls, environ: MutableMapping[str, str], pid: int) -> "Notifier":
        """Read the variables of the process `pid` from its environment, and remove them."""
        found = {name: environ.pop(name, "") for name in VARIABLES}
        address, usec = found["NOTIFY_SOCKET"], found["WATCHDOG_USEC"]
        if address and not address.startswith(("/", "@")):
            _log.warning(
                "NOTIFY_SOCKET=%s names no Unix socket; the service manager is not told the server's state", address
            )
            address = ""
        is_watched = address and usec.isdecimal() and found["WATCHDOG_PID"] in ("", str(pid))
        return cls(address, int(usec) / 1e6 if is_watched else 0.0)

    def send(self, *lines: str) -> None:
        """Send lines in one datagram. A service manager that is gone or does not read does not stop the server."""
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(SEND_TIMEOUT_S)
                sending.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            _log.warning("systemd could not be told %s: %s", " ".join(lines), error)


class Watchdog:
    """The watchdog's rule: the watchdog is fed when all processes asked in a round have echoed within that round.

    A process that echoes late has made no progress in that round; for one that dies, its successor is asked.
    """

    def __init__(self) -> None:
        # Changed by begin and echo: the round's number, and the processes that have not echoed in it yet.
        self._round = 0
        self._silent: set[str] = set()

    def begin(self, names: Iterable[str]) -> tuple[int, set[str]]:
        """Begin a round with these processes: its number, and the processes that have not echoed in the last round."""
        silent, self._silent = self._silent, set(names)
        self._round += 1
        return self._round, silent

    def echo(self, round_number: int, name: str) -> bool:
        """Note a process's echo; True if all of the round have echoed now."""
        if round_number != self._round or name not in self._silent:
            return False
        self._silent.remove(name)
        return not self._silent


class Phase(Enum):
    """A phase of the server; the value begins the status line."""

    LOADING = "loading, "
    SERVING = ""
    STOPPING = "stopping, "


class Service:
    """The server's reports to systemd, and the rounds that feed its watchdog."""

    def __init__(self, star: Star, notifier: Notifier, load_timeout_s: int, *, is_main: bool = True) -> None:
        self._loop = star.loop
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
        members = {f"front end {client.member.pid}": client.member for client in self._star.front_ends}
        if self._star.batcher is not None:
            members[f"batcher {self._star.batcher.pid}"] = self._star.batcher
        # A serving process that is missing never echoes: such a round does not feed the watchdog.
        num_missing = self._num_front_ends + 1 - len(members)
        missing = [f"{num_missing} that are not there"] * (num_missing > 0)
        number, silent = self._watchdog.begin([*members, *missing])
        if silent:
            period_s = self._notifier.watchdog_s / ROUNDS
            _log.warning("no sign of life within %g s from %s", period_s, ", ".join(sorted(silent)))
        for name, member in members.items():
            echoed = self._star.acknowledgements.announce([(member, Ping())])
            self._loop.after(echoed, partial(self._on_echo, number, name))

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
