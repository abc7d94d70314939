"""The rows of the unit under a live systemd, which is process 1 of namespaces of its own: with its sandbox, its socket
unit and its watchdog, as another user than root.

This needs root, control groups and systemd 247 or later. The directories that systemd and the service write to are
tmpfs of the namespaces; the network is the machine's.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.cli import main
from tests.end_to_end.server import descendants, title
from tests.end_to_end.traffic import MODEL
from tests.reliability.row import Course

SYSTEMD = "/lib/systemd/systemd"
CGROUPS = Path("/sys/fs/cgroup")
TARGETS = ("basic", "exit", "multi-user", "network-online", "shutdown", "sockets", "sysinit")
#: Beyond which nothing is waited for. A start takes some seconds on a busy machine.
LIMIT_S = 90.0
NUM_RELOADS, NUM_CLIENTS = 5, 4
BODY = json.dumps({"inputs": [{"name": "A", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
#: Run as process 1 of the namespaces, with a directory that has the units, and the repository.
BOOT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
for each in /run /var/cache /var/log /var/lib; do mount -t tmpfs -o mode=755 tmpfs $each; done
if [ -d {cgroups}/unified ]; then
    umount -R {cgroups}
    mount -t tmpfs -o mode=755 tmpfs {cgroups}
    mkdir {cgroups}/systemd {cgroups}/unified
    mount -t cgroup -o none,name=systemd cgroup {cgroups}/systemd
    mount -t cgroup2 cgroup2 {cgroups}/unified
else
    umount -R {cgroups}
    mount -t cgroup2 cgroup2 {cgroups}
fi
cp -r {directory}/units {directory}/models /run/
: > {directory}/console
mount --bind {directory}/console /dev/console
exec env -i PATH="$PATH" container=shoal SYSTEMD_UNIT_PATH=/run/units {systemd} --system --unit=multi-user.target \\
    --log-target=console --show-status=no
"""


class Systemd:
    """A systemd with the service, not started yet."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def run(self, *command: str) -> str:
        """What a command prints that runs beside it."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--cgroup", *command]
        ran = subprocess.run(inside, check=False, capture_output=True, text=True, timeout=LIMIT_S)
        if ran.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def show(self, name: str) -> str:
        """A property of the service."""
        return self.run("systemctl", "show", "--value", f"--property={name}", "shoal.service").strip()

    def ready_after(self, condition: Callable[[], bool]) -> float:
        """Seconds until the condition holds, the server answers that it is ready, and systemd has been told so."""
        start_s = time.monotonic()
        while not (condition() and self.is_ready() and self.show("ActiveState") == "active"):
            if time.monotonic() > start_s + LIMIT_S:
                state = [f"{name}={self.show(name)}" for name in ("ActiveState", "Result", "NRestarts", "StatusText")]
                raise RuntimeError(f"not ready after {LIMIT_S:g} s: {', '.join(state)}")
            time.sleep(0.1)
        return time.monotonic() - start_s

    def is_ready(self) -> bool:
        """Whether the server says so."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class Traffic:
    """Clients that send one request after the other, each on a connection of its own, until the `with` ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(NUM_CLIENTS)]
        self.num_right = 0
        self.faults: list[str] = []

    def __enter__(self) -> "Traffic":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()

    def _ask(self) -> None:
        while not self._is_over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
            try:
                connection.request("POST", "/v2/models/m/infer", BODY)
                response = connection.getresponse()
                answer = response.read()
                if response.status == 200 and json.loads(answer)["outputs"][0]["data"] == [1, 2, 3, 4]:
                    self.num_right += 1
                else:
                    self.faults.append(f"{response.status} {answer[:80]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.faults.append(repr(error))
            finally:
                connection.close()


def run(course: Course) -> None:
    """Start the service, and do with it what an operator and a bad day do."""
    with systemd(course.directory) as live:
        live.run("systemctl", "start", "shoal.socket", "shoal.service")
        took_s = live.ready_after(lambda: True)
        (score,) = re.findall(
            r"shoal\.service: ([\d.]+)", live.run("systemd-analyze", "security", "--no-pager", "shoal")
        )
        told = f"ready {took_s:.1f} s after `systemctl start` has returned; as 'daemon'; exposure {score}"
        course.found("start", told, is_met=live.show("ActiveState") == "active" and took_s < 5)

        mains = [live.show("MainPID")]
        with Traffic(live.port) as traffic:
            for _ in range(NUM_RELOADS):
                live.run("systemctl", "reload", "shoal.service")
            live.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGUSR2", "shoal.service")
            live.ready_after(lambda: live.show("MainPID") not in ("0", *mains))
        mains.append(live.show("MainPID"))
        told = f"{NUM_RELOADS} reloads, an upgrade: {traffic.num_right:,} right, {len(traffic.faults)} failed"
        course.found("upgrade", told, traffic.faults, is_met=traffic.num_right > 0 and not traffic.faults)

        with Traffic(live.port) as traffic:
            live.run("systemctl", "restart", "shoal.service")
        told = f"{traffic.num_right:,} right, {len(traffic.faults)} failed"
        course.found("restart", told, traffic.faults, is_met=traffic.num_right > 0 and not traffic.faults)

        mains.append(live.show("MainPID"))
        live.run("kill", "-KILL", mains[-1])
        killed_s = live.ready_after(lambda: live.show("MainPID") not in ("0", *mains))
        mains.append(live.show("MainPID"))
        live.run("kill", "-STOP", mains[-1])
        stopped_s = live.ready_after(lambda: live.show("MainPID") not in ("0", *mains))
        told = f"killed: {killed_s:.1f} s; stopped, with a watchdog of 15 s: {stopped_s:.1f} s"
        course.found("again", f"{told}; {live.show('NRestarts')} restarts", is_met=live.show("NRestarts") == "2")

        live.run("systemctl", "stop", "shoal.socket", "shoal.service")
        left = [title(pid) for pid in descendants(live.pid)]
        told = f"{live.show('ActiveState')}, {live.show('Result')}, {len(left)} processes left"
        course.found("stop", told, left, is_met=told.startswith("inactive, success, 0 "))


@contextmanager
def systemd(directory: Path) -> Iterator[Systemd]:
    """A systemd of its own; all that it has started ends with it."""
    if os.geteuid() or not os.access(SYSTEMD, os.X_OK) or shutil.which("unshare") is None:
        raise RuntimeError("a live systemd needs root, unshare, and Debian's package systemd")
    (directory / "models" / "m" / "1").mkdir(parents=True)
    (directory / "models" / "m" / "config.pbtxt").write_text(MODEL)
    port = write_units(directory)
    boot = directory / "boot"
    boot.write_text(BOOT.format(cgroups=CGROUPS, directory=directory, systemd=SYSTEMD))
    hierarchies = [CGROUPS / name for name in ("systemd", "unified") if (CGROUPS / name).is_dir()] or [CGROUPS]
    groups = [hierarchy / f"shoal-test-{os.getpid()}" for hierarchy in hierarchies]

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text("0")

    for group in groups:
        group.mkdir()
    namespaces = ["unshare", "--fork", "--pid", "--mount", "--cgroup", "--kill-child", "sh", str(boot)]
    process = subprocess.Popen(namespaces, preexec_fn=enter)  # noqa: PLW1509 - it has one thread
    try:
        end_s = time.monotonic() + LIMIT_S
        while not (directory / "console").exists():
            assert process.poll() is None, "the namespaces cannot be made"
            assert time.monotonic() < end_s, "systemd has not been started"
            time.sleep(0.1)
        live = Systemd(descendants(process.pid)[0], port)
        while True:
            with suppress(RuntimeError):
                live.run("systemctl", "list-units")
                break
            assert time.monotonic() < end_s, (directory / "console").read_text()
            time.sleep(0.1)
        try:
            yield live
        finally:
            print(live.run("tail", "--bytes=20000", "/run/shoal.log"))
    finally:
        print((directory / "console").read_text())
        for pid in descendants(process.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.5)  # the kernel ends the processes of the namespaces
        for group in groups:
            for each in [*sorted(group.glob("**/"), reverse=True)]:
                with suppress(OSError):
                    each.rmdir()


def write_units(directory: Path) -> int:
    """Write the service's units, as for an operator, and the targets that they name; returns HTTP's port."""
    units = directory / "units"
    (units / "shoal.service.d").mkdir(parents=True)
    ports = list[int]()
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    given = ["--model-repository", str(directory / "models"), "--user", "daemon", "--clients=localhost", "--socket"]
    unit = units / "shoal.service"
    assert main(["install-systemd", *given, "--output", str(unit), "--", *flags]) == 0
    unit.write_text(unit.read_text().replace(str(directory / "models"), "/run/models"))
    # A minute is long for a check; there is no journal.
    output = "".join(f"Standard{name}=append:/run/shoal.log\n" for name in ("Output", "Error"))
    (units / "shoal.service.d" / "test.conf").write_text(f"[Service]\nWatchdogSec=15\n{output}")
    for name in TARGETS:
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    return ports[0]
