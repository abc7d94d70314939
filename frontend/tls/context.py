"""The TLS contexts of lanes, from the files that the supervisor names. Does not import ssl where no client speaks TLS.

The arbiter reads the files when it starts. A lane that it forks later reads them again, since they may have been
renewed, and uses the arbiter's contexts if they are gone or do not fit.
"""

import json
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger("shoal")

#: By protocol, the contexts that the arbiter has made; lanes inherit them.
_at_start: "dict[str, ssl.SSLContext]" = {}


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
    no client speaks TLS."""
    try:
        return read(protocol)
    except OSError as error:
        _log.error("%s. This process has the certificates that were read when the server started", error)
        return _at_start[protocol]


def _context(files: str, protocol: str) -> "ssl.SSLContext":
    from shoal.tls import server_context  # here: with ssl, for lanes with TLS only

    cert, key, root, must_verify = json.loads(files)
    return server_context(cert, key, root, must_verify, protocol)
