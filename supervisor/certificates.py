"""The server's certificates: read again when their files change, and watched for the day on which they expire. Runs in
the supervisor.

A broken file changes nothing: the certificates read before stay in force, and the log says so.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from shoal.messages.to_client import CertificatesChanged
from shoal.options import ServerOptions
from shoal.supervisor.event_loop import EventLoop, gather
from shoal.supervisor.memory.star import Star
from shoal.supervisor.watched_files import WatchedFiles

_log = logging.getLogger(__name__)

#: The protocols that may have TLS → their names in the log.
NAMES = {"http": "HTTP", "grpc": "gRPC"}
#: From this number of days before a certificate expires, the log says so once a day (ours: Let's Encrypt's certificates
#: are renewed 30 days before they expire, so a renewal has failed by then).
WARNING_DAYS = 14
_DAY_S = 24 * 60 * 60


class Certificates:
    """The files of each protocol that has TLS; `wall_s` returns the time in seconds since 1970."""

    def __init__(
        self, loop: EventLoop, options: ServerOptions, star: Star, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._loop = loop
        self._files = options.tls
        self._star = star
        self._wall_s = wall_s
        self._watched = [
            WatchedFiles(loop, files[:3], partial(self._read, protocol)) for protocol, files in options.tls.items()
        ]
        expiries = {protocol: self._read_expiry(protocol) for protocol in options.tls}
        #: The time at which each protocol's certificate expires, in seconds since 1970; a certificate that could not be
        #: read has none. Changed when its files have changed.
        self.expiries = {protocol: expires for protocol, expires in expiries.items() if expires is not None}

    def __bool__(self) -> bool:
        return bool(self._files)

    def watch(self) -> None:
        for files in self._watched:
            files.watch()
        if self._files:
            self._loop.every(_DAY_S, lambda _late_s: self.warn())

    async def reload(self) -> bool:
        """Read the files again, even if they have not changed; returns False if reading takes too long."""
        return all(await gather(*[files.reload() for files in self._watched]))

    def _read(self, protocol: str) -> Callable[[], None]:
        """Read the files of a protocol; returns a function for the event loop to call, which puts them in force or logs
        why they cannot be. Any thread may read."""
        from shoal.tls import server_context  # imported here: few servers have TLS, and importing ssl takes 15 ms

        try:
            server_context(*self._files[protocol], protocol)
        except OSError as error:
            return partial(_log.error, "%s. The certificates that were read before stay in force", error)
        return partial(self._renew, protocol, self._read_expiry(protocol))

    def _renew(self, protocol: str, expires: int | None) -> None:
        if expires is not None:
            self.expiries[protocol] = expires
        _log.info("certificates for %s are read again; connections from now on have the new ones", NAMES[protocol])
        self._warn(protocol)
        self._star.acknowledgements.announce(self._star.to_front_ends(CertificatesChanged()))

    def _read_expiry(self, protocol: str) -> int | None:
        from shoal.certificate_expiry import expires_s  # imported here: it is needed with TLS only

        try:
            return expires_s(self._files[protocol][0])
        except (OSError, ValueError) as error:
            _log.warning("it is not known when the certificate for %s expires: %s", NAMES[protocol], error)
            return None

    def warn(self) -> None:
        """Log which certificates expire soon, or have expired."""
        for protocol in self.expiries:
            self._warn(protocol)

    def _warn(self, protocol: str) -> None:
        if protocol not in self.expiries:
            return
        left_s = self.expiries[protocol] - self._wall_s()
        if left_s >= WARNING_DAYS * _DAY_S:
            return
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.expiries[protocol]))
        what = "expires" if left_s > 0 else "has expired, and clients refuse it: it did"
        _log.warning("the certificate '%s' for %s %s at %s", self._files[protocol][0], NAMES[protocol], what, when)
