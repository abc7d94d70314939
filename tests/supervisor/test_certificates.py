"""supervisor/certificates.py: renewals are announced if they can be used, and the log warns in time."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.certificate_expiry import expires_s
from shoal.options import ServerOptions
from shoal.supervisor.certificates import Certificates
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.watched_files import SLOW_S
from tests.certificates import make_certificates
from tests.supervisor.clock import ClockLoop

DAY_S = 86400


class LooksByHand(EventLoop):
    """An event loop whose repeated looks a test begins."""

    def __init__(self, clock: ClockLoop) -> None:
        super().__init__(clock)
        self.looks: list[tuple[float, Callable[[float], None]]] = []

    def every(self, period_s: float, look: Callable[[float], None]) -> None:
        self.looks.append((period_s, look))
        look(0.0)


class Watched:
    """The certificates of a server with TLS for HTTP, on the test's clock."""

    def __init__(self, clock: ClockLoop, folder: Path) -> None:
        self.files = make_certificates(folder)
        self.announced = 0
        self.now_s = float(self.expiry_s - 15 * DAY_S)
        self._clock, self._loop = clock, LooksByHand(clock)
        star: Any = SimpleNamespace(acknowledgements=self, to_front_ends=lambda _message: [])
        options = ServerOptions(
            http_use_ssl=True, http_server_cert=str(self.files.server_cert), http_server_key=str(self.files.server_key)
        )
        self.certificates = Certificates(self._loop, options, star, lambda: self.now_s)
        self.certificates.watch()
        self.end_look()

    @property
    def expiry_s(self) -> int:
        return expires_s(str(self.files.server_cert))

    @property
    def periods_s(self) -> list[float]:
        return [period_s for period_s, _ in self._loop.looks]

    def announce(self, _messages: object) -> None:
        self.announced += 1

    def begin_look(self) -> None:
        """All that is due at some time."""
        for _, look in self._loop.looks:
            look(0.0)

    def end_look(self) -> None:
        self._clock.until(lambda: all(files._looked.done() for files in self.certificates._watched))

    def look(self) -> None:
        self.begin_look()
        self.end_look()


@pytest.fixture
def watched(clock: ClockLoop, tmp_path: Path) -> Watched:
    return Watched(clock, tmp_path)


def test_the_log_warns_from_14_days_before_once_a_day(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    assert watched.periods_s == [1.0, DAY_S]
    watched.look()
    assert not caplog.messages
    assert watched.certificates.expiries == {"http": watched.expiry_s}
    for days, what in ((13, "expires at"), (-1, "has expired, and clients refuse it: it did at")):
        caplog.clear()
        watched.now_s = watched.expiry_s - days * DAY_S
        watched.look()
        [line] = caplog.messages
        assert line.startswith(f"the certificate '{watched.files.server_cert}' for HTTP {what} 20")
        assert caplog.records[0].levelno == logging.WARNING


def test_a_renewal_is_announced_once_its_files_fit(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = watched.expiry_s
    (tmp_path / "new").mkdir()
    renewed = make_certificates(tmp_path / "new")
    watched.files.server_cert.write_bytes(renewed.server_cert.read_bytes())
    watched.look()
    assert "stay in force" in caplog.text
    assert (watched.announced, watched.certificates.expiries) == (0, {"http": before})
    watched.files.server_key.write_bytes(renewed.server_key.read_bytes())
    watched.look()
    assert (watched.announced, watched.certificates.expiries) == (1, {"http": watched.expiry_s})


def test_a_certificate_on_a_disk_that_hangs_leaves_the_loop_running_and_the_present_one_in_force(
    watched: Watched, clock: ClockLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, pipe, spare = watched.files.server_cert, tmp_path / "pipe", tmp_path / "spare"
    before = cert.read_bytes()
    os.mkfifo(pipe)
    os.link(pipe, spare)
    pipe.rename(cert)
    watched.begin_look()
    clock.pass_time(SLOW_S)
    assert "not read within 5 s" in caplog.text
    assert watched.announced == 0
    again = tmp_path / "again"
    again.write_bytes(before)
    with spare.open("w"):  # the pipe's reader goes on, once or twice
        again.rename(cert)
    watched.end_look()
    watched.look()
    assert watched.announced
    assert watched.certificates.expiries == {"http": watched.expiry_s}


def test_a_server_without_tls_looks_at_nothing(clock: ClockLoop) -> None:
    loop = LooksByHand(clock)
    star: Any = SimpleNamespace()
    certificates = Certificates(loop, ServerOptions(), star)
    certificates.watch()
    assert clock.run(certificates.reload())
    assert not loop.looks
    assert not certificates
    assert certificates.expiries == {}
