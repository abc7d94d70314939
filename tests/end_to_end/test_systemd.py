"""The server as a service: what it tells a real socket in systemd's place, and the unit that systemd itself reads."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from shoal.cli import main
from tests.end_to_end.asking import fetch
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, descendants, launch, serving, title, wait_until

#: The time after which the manager would lose patience; a round of the watchdog is a quarter of it.
WATCHDOG_S = 0.4
#: A watchdog that has not been fed for as long is not fed.
SILENCE_S = 5 * WATCHDOG_S
#: A model whose worker is up when the test lets it be.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        open(f"{args['model_repository']}/gate").close()

    def execute(self, requests):
        return []
"""


class ServiceManager:
    """Plays systemd: a datagram socket of its own, and what was said to it, line by line."""

    def __init__(self, address: str) -> None:
        self.environment = {
            "NOTIFY_SOCKET": address,
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
            # Not ours, and nobody's further down.
            "LISTEN_FDS": "1",
            "LISTEN_PID": "1",
            "LISTEN_FDNAMES": "http",
        }
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:])

    def read(self, timeout_s: float = DEADLINE_S) -> list[str]:
        """The lines of the next message. Raises TimeoutError where none comes."""
        self._socket.settimeout(timeout_s)
        lines = self._socket.recv(4096).decode().split("\n")
        self.said += lines
        return lines

    def read_until(self, line: str) -> None:
        """Read until exactly this line is said; what is said before is kept in `said`."""
        wait_until(lambda: line in self.read(), lambda: self.said)

    def catch_up(self) -> None:
        """Read what has been said by now."""
        try:
            while True:
                self.read(0.0)
        except BlockingIOError:
            return

    def read_until_silent(self) -> list[str]:
        """What is still said until nothing is for a while."""
        before = len(self.said)
        try:
            while True:
                self.read(SILENCE_S)
        except TimeoutError:
            return self.said[before:]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[ServiceManager]:
    manager = ServiceManager(f"@shoal-{token_hex(8)}")
    yield manager
    manager.close()


def identity_model(repository: Path, name: str, instances: int = 1, backend: str = "identity") -> Path:
    """A repository with one more model, of an INT32."""
    add_model(repository, name, config_text(backend, "A INT32 1", "B INT32 1", count=instances))
    return repository


def broken_model(repository: Path) -> Path:
    """One more model, which does not load."""
    (identity_model(repository, "bad") / "bad" / "config.pbtxt").write_text('backend: "identity" nonsense: 1')
    return repository


def get(server: Server, path: str) -> tuple[int, bytes]:
    reply = fetch(server.http_port, path)
    return reply.status, reply.body


def process(server: Server, kind: str) -> int:
    """The first process below the server that bears this title."""
    return next(pid for pid in descendants(server.process.pid) if re.match(rf"shoal {kind}\b(?! \()", title(pid)))


def assert_systemd_s_variables_reach_no_child(server: Server) -> None:
    for pid in server.children:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert any(each.startswith(b"SHOAL_CONTROL=") for each in environment)
        assert not [each for each in environment if each.startswith((b"NOTIFY_", b"WATCHDOG_", b"LISTEN_"))]


def test_ready_is_said_when_requests_are_answered(tmp_path: Path, manager: ServiceManager) -> None:
    repository = identity_model(tmp_path / "models", "two", instances=2)
    # Titles would be written over what /proc shows of the environment.
    variables = manager.environment | {"SPT_NOENV": "1"}
    with serving(repository, "--model-load-timeout-secs=70", environment=variables) as server:
        manager.read_until("READY=1")
        assert_systemd_s_variables_reach_no_child(server)
        loading = manager.said[: manager.said.index("READY=1")]
        assert get(server, "/v2/health/ready") == (200, b"")
        assert [line for line in loading if line.startswith("STATUS=")] == [
            "STATUS=loading, 0/2 instances up",
            "STATUS=loading, 1/2 instances up",
            "STATUS=loading, 2/2 instances up",
        ]
        # Each step of loading is worth the time that a load may take, in microseconds.
        assert loading.count("EXTEND_TIMEOUT_USEC=100000000") == 3
        assert "STATUS=2/2 instances up" in manager.said
        manager.read_until("WATCHDOG=1")
        server.process.send_signal(signal.SIGTERM)
        manager.read_until("STOPPING=1")
        assert manager.said[-1] == "STATUS=stopping, 2/2 instances up"
        assert server.wait() == 0
    assert manager.said.count("READY=1") == 1


def launched(repository: Path, manager: ServiceManager, until: str, number: int = 0) -> int:
    """The exit code of a server that never serves: it fails, or gets a signal when it has said `until`."""
    with launch(repository, environment=manager.environment) as server:
        manager.read_until(until)
        server.process.send_signal(number)
        return server.wait()


def test_a_server_that_exits_on_an_error_never_was_ready(tmp_path: Path, manager: ServiceManager) -> None:
    repository = broken_model(identity_model(tmp_path, "good"))
    assert launched(repository, manager, "STATUS=loading, 1/1 instances up, 1 model failed") == 1
    assert "READY=1" not in [*manager.said, *manager.read_until_silent()]


def test_a_signal_while_models_load_is_the_end_of_them(tmp_path: Path, manager: ServiceManager) -> None:
    repository = identity_model(tmp_path, "good")
    assert launched(repository, manager, "STATUS=loading, 0/1 instances up", signal.SIGTERM) == 0
    said = [*manager.said, *manager.read_until_silent()]
    assert "READY=1" not in said[said.index("STOPPING=1") :]


def test_a_model_that_fails_is_counted_and_the_rest_is_ready(tmp_path: Path, manager: ServiceManager) -> None:
    repository = broken_model(identity_model(tmp_path, "good"))
    with serving(repository, "--exit-on-error=false", environment=manager.environment) as server:
        manager.read_until("READY=1")
        assert manager.said[-1] == "STATUS=1/1 instances up, 1 model failed"
        assert server.stop() == 0


def test_a_lost_instance_is_in_the_status_and_among_the_reasons(tmp_path: Path, manager: ServiceManager) -> None:
    (identity_model(tmp_path, "gated", backend="python") / "gated" / "1" / "model.py").write_text(GATED)
    gate = Gate(tmp_path / "gated" / "gate")
    with gate.opened(), serving(tmp_path, environment=manager.environment) as server:
        manager.read_until("READY=1")
        assert get(server, "/v2/health/reasons") == (200, b'{"ready":true,"reasons":[]}')
        gate.close()  # the worker's successor is not up before we have asked
        os.kill(process(server, "worker"), signal.SIGKILL)
        manager.read_until("STATUS=0/1 instances up")
        status, body = get(server, "/v2/health/reasons")
        assert status == 503
        row = {"state": "READY", "reason": "0/1 instances up", "instances_up": 0, "instances": 1}
        assert json.loads(body) == {"ready": False, "reasons": [{"name": "gated", "version": "1", **row}]}
        assert get(server, "/v2/health/ready") == (400, b"")
        gate.open()
        manager.read_until("STATUS=1/1 instances up")
        # Front ends are sent the news at the same time, and may read it later than we read the status.
        wait_until(lambda: get(server, "/v2/health/reasons") == (200, b'{"ready":true,"reasons":[]}'))
        assert server.stop() == 0


def test_a_front_end_that_is_stopped_feeds_no_watchdog_and_is_replaced(tmp_path: Path, manager: ServiceManager) -> None:
    """That one process keeps the watchdog from being fed is shown in tests/supervisor/test_service.py: here it is
    killed after a second, and its successor is asked in its place."""
    with serving(identity_model(tmp_path, "one"), environment=manager.environment) as server:
        for title in ("http", "road"):  # a batcher that is stopped is replaced, see test_deaths.py
            manager.read_until("WATCHDOG=1")
            stopped = process(server, title)
            os.kill(stopped, signal.SIGSTOP)
            assert server.read_log(f"no sign of life within 0.1 s from front end {stopped}".encode())
            assert server.read_log(f"the front end (pid {stopped}) has not moved for 1 s; it is killed".encode())
            manager.catch_up()
        manager.read_until("WATCHDOG=1")
        assert server.stop() == 0


@pytest.mark.parametrize("more", [(), ("--socket", "--gpu"), ("--instances",)], ids=["plain", "socket", "instances"])
def test_systemd_understands_the_units_and_finds_little_exposure(tmp_path: Path, more: tuple[str, ...]) -> None:
    # A system package, which no file of this project can install, and the README promises that Python is enough. The
    # unit's text is held in tests/cli/test_install_systemd.py on every machine.
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("NOT CHECKED: the unit, since systemd-analyze is not installed (Debian's package systemd)")
    unit = tmp_path / ("shoal@.service" if "--instances" in more else "shoal.service")
    given = ["--model-repository", str(SAMPLES), "--user", "daemon", "--output", str(unit), "--clients=localhost"]
    assert main(["install-systemd", *given, *more, "--", "--id", 'a "b" %n $HOME \\ c']) == 0
    instance = unit.with_name("shoal@one.service") if more == ("--instances",) else unit
    if instance != unit:
        instance.symlink_to(unit)
    sockets = [str(each) for each in tmp_path.glob("*.socket")]
    assert len(sockets) == ("--socket" in more)
    command = [analyze, "verify", "--man=no", str(instance), *sockets]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout + done.stderr == ""  # what systemd does not know it only mentions
    if "--instances" not in more:
        threshold = 13 if "--gpu" in more else 11  # 1.3 and 1.1 of 10
        threshold += "ProtectHome=read-only" in unit.read_text()  # where this checkout lies in a home
        command = [analyze, "security", "--offline=true", f"--threshold={threshold}", "--no-pager", str(unit)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
