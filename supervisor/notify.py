"""sd_notify(3), the protocol by which a service reports to systemd, and the rule by which its watchdog is fed.

Messages are datagrams of lines such as `READY=1`, to the socket that the environment names; where it names none,
nothing is sent. The watchdog is fed by progress, never by a timer: in every round, each process on a request's path has
to echo from its own loop. Runs in the supervisor, and only there: its children must not find the variables.
"""

import logging
import socket
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass

_log = logging.getLogger(__name__)

#: The variables of a service of systemd's. They are meant for one process, and gunicorn would answer them, too.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
#: systemd reads at once. Another manager that does not must not stop the supervisor's loop for longer (ours).
SEND_TIMEOUT_S = 1.0


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
        # Changed by begin and echo.
        self._round = 0
        self._silent: set[str] = set()

    def begin(self, names: Iterable[str]) -> tuple[int, set[str]]:
        """Begin a round with these processes: its number, and the processes that have not echoed in the last one."""
        silent, self._silent = self._silent, set(names)
        self._round += 1
        return self._round, silent

    def echo(self, round_number: int, name: str) -> bool:
        """Note a process's echo; True if all of the round have echoed now."""
        if round_number != self._round or name not in self._silent:
            return False
        self._silent.remove(name)
        return not self._silent
