"""supervisor/service.py: what a socket in systemd's place receives, and by whom the watchdog is fed."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from shoal.supervisor.service import Notifier, Watchdog


@pytest.fixture(params=["path", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A datagram socket, and what NOTIFY_SOCKET calls it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"shoal-{token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(name if request.param == "path" else "\0" + name)
        receiving.settimeout(10)
        yield receiving, name if request.param == "path" else "@" + name


def test_lines_travel_in_one_datagram(listening: tuple[socket.socket, str]) -> None:
    receiving, name = listening
    Notifier.take({"NOTIFY_SOCKET": name}, 1).send("READY=1", "STATUS=14/16 instances up, 2 models failed")
    assert receiving.recv(4096) == b"READY=1\nSTATUS=14/16 instances up, 2 models failed"


@pytest.mark.parametrize(
    ("variables", "notifier"),
    [
        ({}, Notifier("", 0.0)),
        ({"WATCHDOG_USEC": "60000000"}, Notifier("", 0.0)),
        ({"NOTIFY_SOCKET": "/run/n"}, Notifier("/run/n", 0.0)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1500000"}, Notifier("@n", 1.5)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "77"}, Notifier("@n", 1.5)),
        # The watchdog of somebody else, whose variables we have inherited.
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "78"}, Notifier("@n", 0.0)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "soon"}, Notifier("@n", 0.0)),
        # A virtual machine's manager outside: another kind of socket.
        ({"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "1500000"}, Notifier("", 0.0)),
    ],
)
def test_the_environment_is_read_and_cleared(variables: dict[str, str], notifier: Notifier) -> None:
    environ = {**variables, "LISTEN_FDS": "1", "LISTEN_PID": "77", "LISTEN_FDNAMES": "http", "HOME": "/"}
    assert Notifier.take(environ, 77) == notifier
    assert environ == {"HOME": "/"}


def test_a_manager_that_is_gone_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    Notifier(str(tmp_path / "nobody")).send("READY=1")
    Notifier().send("READY=1")
    assert [record.getMessage() for record in caplog.records] == [
        "systemd could not be told READY=1: [Errno 2] No such file or directory"
    ]


def test_fed_when_the_last_of_a_round_has_echoed() -> None:
    watchdog = Watchdog()
    number, silent = watchdog.begin(["batcher 1", "front end 2"])
    assert silent == set()
    assert not watchdog.echo(number, "front end 2")
    assert not watchdog.echo(number, "front end 2")
    assert watchdog.echo(number, "batcher 1")
    assert not watchdog.echo(number, "batcher 1")
    assert watchdog.begin([]) == (number + 1, set())


def test_an_echo_of_an_earlier_round_feeds_nothing_and_the_silent_one_is_named() -> None:
    watchdog = Watchdog()
    first, _ = watchdog.begin(["batcher 1", "front end 2"])
    watchdog.echo(first, "batcher 1")
    second, silent = watchdog.begin(["batcher 1", "front end 2"])
    assert silent == {"front end 2"}
    assert not watchdog.echo(second, "batcher 1")
    assert not watchdog.echo(first, "front end 2")
    assert watchdog.echo(second, "front end 2")
