"""supervisor/service.py: what systemd is told and when, at a real star and in time that the test lets pass."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from shoal.messages.shared import Ping
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.supervisor.service import Notifier, Service, describe
from tests.supervisor.star_rig import Process, StarRig


class Systemd:
    """A socket in systemd's place, and a service at a star of a batcher and two front ends."""

    def __init__(self, watchdog_s: float = 8.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        name = f"shoal-{token_hex(8)}"
        self._socket.bind("\0" + name)
        self.rig = StarRig()
        for pid, process in enumerate(self.processes, 11):
            process.member.pid = pid
        self.service = Service(self.rig.star, Notifier("@" + name, watchdog_s), load_timeout_s=600)

    @property
    def processes(self) -> list[Process]:
        return [self.rig.batcher, self.rig.a, self.rig.b]

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self.rig.close()
        self._socket.close()


@pytest.fixture
def systemd() -> Iterator[Systemd]:
    made = Systemd()
    yield made
    made.close()


def models(*versions: tuple[str, VersionState, int, int]) -> list[ModelVersion]:
    """Versions by name, state, instances and instances up."""
    made = []
    for name, state, num_instances, num_instances_up in versions:
        version = ModelVersion(name, 1, 1, 1, Path())
        version.state, version.num_instances, version.num_instances_up = state, num_instances, num_instances_up
        made.append(version)
    return made


READY, LOADING, UNAVAILABLE = VersionState.READY, VersionState.LOADING, VersionState.UNAVAILABLE
WHOLE = models(("a", READY, 2, 2))


def test_the_words_count_instances_and_failed_models() -> None:
    assert describe(models()) == "0/0 instances up"
    assert describe(models(("a", READY, 2, 2), ("b", LOADING, 3, 1))) == "3/5 instances up"
    # Two versions of one model; what did not load has no instances that should be up.
    failed = (("b", UNAVAILABLE, 4, 0), ("b", UNAVAILABLE, 0, 0))
    assert describe(models(("a", READY, 2, 2), *failed)) == "2/2 instances up, 1 model failed"
    assert describe(models(*failed, ("c", UNAVAILABLE, 1, 0))) == "0/0 instances up, 2 models failed"


def test_loading_asks_for_patience_and_later_changes_do_not(systemd: Systemd) -> None:
    loading, lost = models(("a", LOADING, 2, 0)), models(("a", READY, 2, 1))
    for each in (loading, loading, WHOLE):
        systemd.service.on_models_changed(each)
    assert systemd.heard() == [
        "STATUS=loading, 0/2 instances up\nEXTEND_TIMEOUT_USEC=630000000",
        "EXTEND_TIMEOUT_USEC=630000000",
        "STATUS=loading, 2/2 instances up\nEXTEND_TIMEOUT_USEC=630000000",
    ]
    systemd.service.ready(WHOLE, 2)
    for each in (WHOLE, lost, lost, WHOLE):
        systemd.service.on_models_changed(each)
    systemd.service.stopping(WHOLE)
    assert systemd.heard() == [
        "READY=1\nSTATUS=2/2 instances up",
        "STATUS=1/2 instances up",
        "STATUS=2/2 instances up",
        "STOPPING=1\nSTATUS=stopping, 2/2 instances up",
    ]


def test_a_server_that_stops_is_not_ready_any_more(systemd: Systemd) -> None:
    systemd.service.stopping(WHOLE)
    systemd.heard()
    systemd.service.ready(WHOLE, 2)
    assert systemd.heard() == []


def test_the_last_echo_of_a_round_feeds_the_watchdog_and_time_does_not(systemd: Systemd) -> None:
    systemd.service.ready(WHOLE, 2)
    systemd.heard()
    for _ in range(2):
        for process in systemd.processes:
            assert systemd.heard() == []
            assert process.heard() == [Ping()]
            systemd.rig.acknowledge(process)
        assert systemd.heard() == ["WATCHDOG=1"]
        systemd.rig.clock.pass_time(1.9)
        assert systemd.rig.batcher.heard() == []
        systemd.rig.clock.pass_time(0.1)


@pytest.mark.parametrize("number", [0, 1], ids=["batcher", "front end"])
def test_who_does_not_echo_is_named_and_nothing_is_fed(
    systemd: Systemd, number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    systemd.service.ready(WHOLE, 2)
    stopped = systemd.processes[number]
    for _ in range(3):
        for process in systemd.processes:
            if process is not stopped:
                systemd.rig.acknowledge(process)
        systemd.rig.clock.pass_time(2.0)
    assert "WATCHDOG=1" not in systemd.heard()
    name = ("batcher 11", "front end 12")[number]
    assert [record.getMessage() for record in caplog.records] == [f"no sign of life within 2 s from {name}"] * 3
    systemd.rig.settle()  # it goes on, and its echo of this round is in time
    assert systemd.heard() == ["WATCHDOG=1"]


def test_a_front_end_that_is_not_there_cannot_echo(systemd: Systemd) -> None:
    systemd.service.ready(WHOLE, 3)
    systemd.heard()
    systemd.rig.settle()
    assert systemd.heard() == []
    systemd.service.stopping(WHOLE)  # now front ends are expected to leave
    systemd.rig.clock.pass_time(2.0)
    systemd.rig.settle()
    assert systemd.heard() == ["STOPPING=1\nSTATUS=stopping, 2/2 instances up", "WATCHDOG=1"]


def test_without_a_watchdog_no_process_is_asked() -> None:
    systemd = Systemd(watchdog_s=0.0)
    systemd.service.ready(WHOLE, 2)
    systemd.rig.clock.pass_time(3600.0)
    assert systemd.rig.batcher.heard() == []
    systemd.close()
