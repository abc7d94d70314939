"""The TLS contexts of lanes, from the files that the supervisor names. Does not import ssl where no client speaks TLS.

The arbiter reads the files when it starts. A lane that it forks later reads them again, since they may have been
renewed, and so does each lane at each renewal. A lane keeps the previous context if the files are gone, do not fit, or
lie on a disk that hangs.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger("shoal")

#: Seconds that a starting lane waits for the files (ours): a lane that is silent for a second is killed, and the
#: lane in its place would wait for the files as well.
_READ_S = 0.5
#: By protocol, the contexts that the arbiter has made; lanes inherit them.
_at_start: "dict[str, ssl.SSLContext]" = {}


class RenewedContext:
    """The context for a lane's handshakes, which a separate thread makes anew, since the disk with the files may
    hang."""

    def __init__(self, context: "ssl.SSLContext", read: "Callable[[], ssl.SSLContext]") -> None:
        self.context = context  # changed by the thread
        self.renewals: queue.Queue[None] = queue.Queue()
        self.was_read = threading.Event()  # set once the files have been read, or could not be
        self._read = read
        self._thread: threading.Thread | None = None  # changed by the first `renew`

    def renew(self) -> None:
        """Have the files read again, for later handshakes; files that cannot be used change nothing."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="shoal-certificates", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no further thread
                _log.error("the files of TLS were not read: %s", error)
                return
            self._thread = thread
        self.renewals.put(None)

    def _run(self) -> None:
        while True:
            self.renewals.get()
            try:
                self.context = self._read()
            except Exception as error:  # noqa: BLE001 - the thread goes on, which later renewals need
                _log.error("%s. The certificates that were read before stay in force", error)
            finally:
                self.was_read.set()
                self.renewals.task_done()


def read_in_arbiter(protocol: str) -> None:
    """Read the files of a protocol's lanes, "http" or "grpc", if they have TLS. Raises OSError."""
    files = os.environ.get(f"SHOAL_{protocol.upper()}_TLS")
    if files is not None:
        _at_start[protocol] = _context(files, protocol)


def read_in_lane(protocol: str) -> RenewedContext | None:
    """The context of a starting lane, from the files as they are now, or as the arbiter has read them if they cannot be
    read now; None where no client speaks TLS."""
    files = os.environ.get("SHOAL_TLS")
    if files is None:
        return None
    found = RenewedContext(_at_start[protocol], partial(_context, files, protocol))
    found.renew()
    if not found.was_read.wait(_READ_S):
        _log.error("the files of TLS were not read within %s s. Those read at the server's start are in force", _READ_S)
    return found


def _context(files: str, protocol: str) -> "ssl.SSLContext":
    from shoal.tls import server_context  # imported here: it imports ssl, which only lanes with TLS need

    cert, key, root, must_verify = json.loads(files)
    return server_context(cert, key, root, must_verify, protocol)
