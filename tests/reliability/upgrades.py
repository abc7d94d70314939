"""The row of upgrades: under verified load new versions take the server's place, or do not come up."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.cli.verb import EXIT_REFUSED
from tests.certificates import make_certificates
from tests.end_to_end.server import DEADLINE_S, Server
from tests.end_to_end.upgrades import (
    BROKEN,
    DIES,
    HANGS,
    PLAIN,
    TLS,
    Installation,
    Load,
    doors_of,
    new_pid,
    tls_flags,
    upgrade,
    write_models,
)
from tests.reliability.row import Course

#: Right answers of each kind of client between two events.
ANSWERS = 20
#: An upgrade that has taken longer than this on two cores has waited for something.
USUAL_S = 10.0
#: For new versions that hang.
SHORT_TIMEOUT_S = 3
#: New versions that do not come up, and what `shoal upgrade` says of them.
NOT_UP = (BROKEN, "exited with code 3"), (HANGS, "within --upgrade-timeout-secs"), (DIES, "was killed by signal 9")


def run(course: Course) -> None:
    """Upgrade a server in plain text, then one with TLS; then let new versions fail."""
    plainly(course)
    with_tls(course)
    failing(course)


def plainly(course: Course) -> None:
    num_upgrades, num_hups = course.pick(2, 20), course.pick(5, 50)
    directory = made(course.directory / "plain")
    flags = ["--grpc-port=0", f"--client-socket={directory}/socket", f"--pid-file={directory}/pid"]
    took_s: list[float] = []
    with Installation(directory).serving(directory / "models", *flags) as server, read_meanwhile(server):
        pid, sent = server.process.pid, 0
        with Load(doors_of(server), PLAIN) as load:
            for number in range(num_upgrades):
                while sent < num_hups * (number + 1) // num_upgrades:
                    load.await_answers(ANSWERS)
                    os.kill(pid, signal.SIGHUP)
                    sent += 1
                load.await_answers(ANSWERS)
                began_s = time.monotonic()
                pid = replaced(pid)
                took_s.append(time.monotonic() - began_s)
            load.await_answers(ANSWERS)
        os.kill(pid, signal.SIGTERM)
    course.found("failed", f"{num_upgrades} upgrades, {sent} SIGHUPs: {summary(load)}", is_met=not load.faults)
    median_s = sorted(took_s)[len(took_s) // 2]
    course.found("time", f"{median_s:.1f} s (median), {max(took_s):.1f} s at most", is_met=max(took_s) <= USUAL_S)


def with_tls(course: Course) -> None:
    num_upgrades = course.pick(1, 5)
    directory = made(course.directory / "tls")
    certificates = make_certificates(directory)
    flags = ["--grpc-port=0", *tls_flags(certificates)]
    with Installation(directory).serving(directory / "models", *flags) as server, read_meanwhile(server):
        pid = server.process.pid
        with Load(doors_of(server, certificates), TLS) as load:
            for _ in range(num_upgrades):
                load.await_answers(ANSWERS)
                pid = replaced(pid)
            load.await_answers(ANSWERS)
        os.kill(pid, signal.SIGTERM)
    course.found("tls", f"{num_upgrades} upgrades: {summary(load)}", is_met=not load.faults)


def failing(course: Course) -> None:
    """New versions that do not come up: none may take the old one along."""
    directory = made(course.directory / "failing")
    installation = Installation(directory)
    flags = ["--grpc-port=0", f"--upgrade-timeout-secs={SHORT_TIMEOUT_S}"]
    wrong = []
    with installation.serving(directory / "models", *flags) as server:
        with Load(doors_of(server), PLAIN) as load:
            for text, sentence in NOT_UP:
                load.await_answers(ANSWERS)
                installation.install(text)
                done = upgrade(server.process.pid)
                if done.returncode != EXIT_REFUSED or sentence not in done.stderr:
                    wrong.append(f"{done.returncode}: {done.stderr}")
            load.await_answers(ANSWERS)
        code = server.stop()
    told = f"{len(NOT_UP)} new versions, {len(wrong)} with a wrong report; {summary(load)}; exit code {code}"
    course.found("back", "; ".join([told, *wrong[:2]]), is_met=not (wrong or load.faults or code))


def made(directory: Path) -> Path:
    """A directory with a repository of one model."""
    write_models(directory / "models")
    return directory


@contextmanager
def read_meanwhile(server: Server) -> Iterator[None]:
    """The log, which all servers share, is read within, and until the last of them has ended."""
    thread = threading.Thread(target=lambda: server.read_log(b"\0never", 3600.0), daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    print(server.log.decode(errors="replace")[-6000:])
    assert not thread.is_alive(), "a server has not ended"


def replaced(pid: int) -> int:
    """The pid of the server that has taken this one's place."""
    done = upgrade(pid)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return new_pid(done.stdout)


def summary(load: Load) -> str:
    """How many answers were right, and what was wrong."""
    told = f"{sum(load.num_right.values()):,} right, {len(load.faults)} failed"
    return "; ".join([told, *load.faults[:2]])
