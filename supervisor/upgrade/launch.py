"""How the server was started, and so how an upgrade starts the version that is installed now. Runs in the supervisor.

A script is run by its own first line, not by this process's interpreter: where an installation is a directory behind a
symbolic link, the link's new target names the new interpreter.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

#: The variables by which a new server finds the old one: a JSON object of its address, its pid and the names of the
#: descriptors that it passes on, and these descriptors, separated by commas.
VARIABLE, DESCRIPTORS_VARIABLE = "SHOAL_UPGRADE", "SHOAL_UPGRADE_FDS"
#: Variables that are meant for one process: the new server does not inherit them.
_OF_ONE_PROCESS = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", VARIABLE, DESCRIPTORS_VARIABLE)
#: First processes of containers that end with the process that they have started. A server that is one of these
#: processes' child cannot be replaced: its end is the container's.
CONTAINER_INITS = ("tini", "docker-init", "dumb-init", "catatonit", "podman-init")


class Launch(NamedTuple):
    """The command line and the environment with which this process was started."""

    executable: str
    arguments: Sequence[str]  # as sys.orig_argv has them
    environment: Mapping[str, str]

    @classmethod
    def of(cls, executable: str, arguments: Sequence[str], environ: Mapping[str, str]) -> "Launch":
        """The present command line and environment, which change as the server starts."""
        return cls(executable, tuple(arguments), dict(environ))

    @property
    def command(self) -> list[str]:
        """The command that starts the version installed now with the same arguments."""
        _, *rest = self.arguments
        if rest and _is_script(Path(rest[0])):
            return [os.path.abspath(rest[0]), *rest[1:]]
        return [self.executable, *rest]

    @property
    def inherited(self) -> dict[str, str]:
        """The environment for the new server."""
        return {name: value for name, value in self.environment.items() if name not in _OF_ONE_PROCESS}


def _is_script(path: Path) -> bool:
    """Whether a file is executable and names its interpreter in its first line."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!" and os.access(path, os.X_OK)
    except OSError:
        return False


def why_not_replaceable(pid: int, parent: int, name_of_first: str) -> str:
    """Why another process cannot take this one's place, "" where one can. `name_of_first` is the name of process 1."""
    if pid == 1:
        return (
            "this server is process 1 of its container, and cannot be replaced in it: the container ends with it. "
            "Start a container of the new version, and end this one (docs/operations.md)"
        )
    if parent == 1 and name_of_first in CONTAINER_INITS:
        return (
            f"'{name_of_first}', process 1 of this container, ends with the process that it has started, which this "
            "server is. Start a container of the new version, and end this one (docs/operations.md)"
        )
    return ""


def name_of_first() -> str:
    """The name of process 1; "" where the system does not say."""
    try:
        return Path("/proc/1/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
