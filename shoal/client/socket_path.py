"""Where processes on this host find the server: a Unix socket whose path follows from the user and the HTTP port.

The supervisor listens there, `shoal.Client` looks there. Pure but for looking at directories; makes the server's.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shoal.control import remove_left_over

#: Tells a client where the server is, in place of everything below.
SOCKET_VARIABLE = "SHOAL_CLIENT_SOCKET"
#: Triton's, and so ours.
DEFAULT_HTTP_PORT = 8000


def directories(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Where the socket may be, the likeliest first: a session's, a service's, anybody's."""
    found = [Path(environ["XDG_RUNTIME_DIR"], "shoal")] if environ.get("XDG_RUNTIME_DIR") else []
    return [*found, Path("/run/shoal"), Path(f"/tmp/shoal-{uid}")]


def socket_name(http_port: int) -> str:
    """The file in one of them."""
    return f"{http_port}.sock"


def is_private(directory: Path, uid: int) -> bool:
    """Whether nobody else can put anything there."""
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def server_path(environ: Mapping[str, str], http_port: int) -> str:
    """Where a server is to listen, in the first of the directories that is private to it, or can be made so.

    Raises OSError where none is.
    """
    uid = os.geteuid()
    for directory in directories(environ, uid):
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        if is_private(directory, uid) and os.access(directory, os.W_OK | os.X_OK):
            return str(directory / socket_name(http_port))
    raise PermissionError("no directory of this user's can be made for the socket. Give --client-socket")


def client_paths(environ: Mapping[str, str]) -> list[str]:
    """Where a client is to look, in order."""
    if environ.get(SOCKET_VARIABLE):
        return [environ[SOCKET_VARIABLE]]
    uid = os.geteuid()
    found = [directory for directory in directories(environ, uid) if is_private(directory, uid)]
    return [str(directory / socket_name(DEFAULT_HTTP_PORT)) for directory in found]


def sweep(directory: Path) -> None:
    """Remove what servers that were killed have left there; a server listens on each of the others."""
    for path in directory.glob("*.sock"):
        with suppress(OSError):
            remove_left_over(str(path))
