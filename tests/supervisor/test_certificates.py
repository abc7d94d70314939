"""supervisor/certificates.py: renewals are announced if they can be used, and the log warns in time."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.certificate_expiry import expires_s
from shoal.options import ServerOptions
from shoal.supervisor.certificates import Certificates
from tests.certificates import make_certificates

DAY_S = 86400


class Watched:
    """The certificates of a server with TLS for HTTP, on the test's clock."""

    def __init__(self, folder: Path) -> None:
        self.files = make_certificates(folder)
        self.announced = 0
        self.now_s = float(self.expiry_s - 15 * DAY_S)
        self.looks: list[Any] = []
        star: Any = SimpleNamespace(acknowledgements=self, front_ends=())
        options = ServerOptions(
            http_use_ssl=True, http_server_cert=str(self.files.server_cert), http_server_key=str(self.files.server_key)
        )
        loop: Any = self
        self.certificates = Certificates(loop, options, star, lambda: self.now_s)
        self.certificates.watch()

    @property
    def expiry_s(self) -> int:
        return expires_s(str(self.files.server_cert))

    def announce(self, _messages: object) -> None:
        self.announced += 1

    def every(self, period_s: float, look: Any) -> None:
        """Like the event loop's."""
        self.looks.append((period_s, look))
        look(0.0)

    def look(self) -> None:
        """All that is due at some time."""
        for _, look in self.looks:
            look(0.0)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_the_log_warns_from_14_days_before_once_a_day(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    assert [period_s for period_s, _ in watched.looks] == [1.0, DAY_S]
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


def test_a_server_without_tls_looks_at_nothing() -> None:
    loop: Any = SimpleNamespace()  # it is not used
    star: Any = SimpleNamespace()
    certificates = Certificates(loop, ServerOptions(), star)
    certificates.watch()
    certificates.reload()
    assert not certificates
    assert certificates.expiries == {}
