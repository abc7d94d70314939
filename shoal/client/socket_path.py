"""The path of the Unix socket at which processes on this host find the server, made from the user and the HTTP port.

The supervisor listens at the path, `shoal.Client` connects to it. Only `server_path` makes a directory.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shoal.control import remove_left_over

#: The environment variable that names the server's socket, in place of the rules below.
SOCKET_VARIABLE = "SHOAL_CLIENT_SOCKET"
#: The default of Triton and of Shoal.
DEFAULT_HTTP_PORT = 8000


def directories(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Directories where the socket may be, the likeliest first: that of the login session, that of a system service,
    and one in /tmp."""
    found = [Path(environ["XDG_RUNTIME_DIR"], "shoal")] if environ.get("XDG_RUNTIME_DIR") else []
    return [*found, Path("/run/shoal"), Path(f"/tmp/shoal-{uid}")]


def socket_name(http_port: int) -> str:
    """The socket's file name in its directory."""
    return f"{http_port}.sock"


def is_private(directory: Path, uid: int) -> bool:
    """Whether only this user can create files in a directory."""
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def server_path(environ: Mapping[str, str], http_port: int) -> str:
    """The path for a server's socket, in the first directory that is private to the server's user. A missing directory
    is made.

    Raises OSError if there is none.
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
    """The paths where a client looks for a server, in order."""
    if environ.get(SOCKET_VARIABLE):
        return [environ[SOCKET_VARIABLE]]
    uid = os.geteuid()
    found = [directory for directory in directories(environ, uid) if is_private(directory, uid)]
    return [str(directory / socket_name(DEFAULT_HTTP_PORT)) for directory in found]


def other_paths(environ: Mapping[str, str]) -> list[str]:
    """The paths of the sockets of this user's servers with other HTTP ports."""
    if environ.get(SOCKET_VARIABLE):
        return []
    paths = client_paths(environ)
    found = [str(each) for path in paths for each in sorted(Path(path).parent.glob("*.sock"))]
    return [each for each in found if each not in paths]


def sweep(directory: Path) -> None:
    """Remove sockets that killed servers have left in a directory; sockets at which a server listens are kept."""
    for path in directory.glob("*.sock"):
        with suppress(OSError):
            remove_left_over(str(path))
