"""The TLS contexts of lanes, from the files that the supervisor names. Does not import ssl where no client speaks TLS.

The arbiter reads the files when it starts. A lane that it forks later reads them again, since they may have been
renewed, and uses the arbiter's contexts if they are gone or do not fit.
"""

import json
import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger("shoal")

#: Seconds that a lane which starts waits for the files (ours): one that stands still for a second is killed, and the
#: next one would stand still as well.
_READ_S = 0.5
#: By protocol, the contexts that the arbiter has made; lanes inherit them.
_at_start: "dict[str, ssl.SSLContext]" = {}
#: Contexts that a thread of this lane has made, or why it could not. Changed by read_at_start, and by `late`.
_read: "list[ssl.SSLContext | OSError | None]" = []


def read_in_arbiter(protocol: str) -> None:
    """Read the files of a protocol's lanes, "http" or "grpc", if they have TLS. Raises OSError."""
    files = os.environ.get(f"SHOAL_{protocol.upper()}_TLS")
    if files is not None:
        _at_start[protocol] = _context(files, protocol)


def read(protocol: str) -> "ssl.SSLContext | None":
    """The context of the files as they are now, in a lane; None where no client speaks TLS. Raises OSError."""
    files = os.environ.get("SHOAL_TLS")
    return None if files is None else _context(files, protocol)


def read_at_start(protocol: str) -> "ssl.SSLContext | None":
    """The context for a lane that starts: of the files as they are now, else as the arbiter has read them; None where
    no client speaks TLS. A thread reads the files, since their disk may hang; what it finds too late is `late`."""
    if "SHOAL_TLS" not in os.environ:
        return None
    reading = threading.Thread(target=_read_files, args=(protocol,), name="tls", daemon=True)
    try:
        reading.start()
    except RuntimeError as error:  # the system allows no further thread
        _read.append(OSError(f"the files of TLS were not read: {error}"))
    else:
        reading.join(_READ_S)
    found = _read.pop() if _read else TimeoutError(f"the files of TLS were not read within {_READ_S} s")
    if isinstance(found, OSError):
        _log.error("%s. This process has the certificates that were read when the server started", found)
        return _at_start[protocol]
    return found


def late() -> "ssl.SSLContext | None":
    """The context of files that were read only after the lane had started; once."""
    found = _read.pop() if _read else None
    return None if isinstance(found, OSError) else found


def _read_files(protocol: str) -> None:
    try:
        _read.append(read(protocol))
    except OSError as error:
        _read.append(error)


def _context(files: str, protocol: str) -> "ssl.SSLContext":
    from shoal.tls import server_context  # here: with ssl, for lanes with TLS only

    cert, key, root, must_verify = json.loads(files)
    return server_context(cert, key, root, must_verify, protocol)
