"""The rows of the supervisor's death: what is left of the server, and how soon the next one serves."""

import os
import signal
import time
from pathlib import Path

from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import await_standby, serving, title, wait_for_deaths
from tests.end_to_end.traffic import MODEL
from tests.reliability.row import Course

SHM = Path("/dev/shm")


def run(course: Course) -> None:
    """Kill the supervisor, with one child stopped, and start the next server."""
    add_model(course.directory / "models", "m", MODEL)
    gone_s: list[float] = []
    ready_s: list[float] = []
    left: list[str] = []
    for number in range(course.pick(2, 20)):
        before, start_s = set(os.listdir(SHM)), time.monotonic()
        with serving(course.directory / "models", "--grpc-port=0") as server:
            ready_s.append(time.monotonic() - start_s)
            children = await_standby(server)
            os.kill(children[number % len(children)], signal.SIGSTOP)
            names = {pid: title(pid) for pid in children}
            start_s = time.monotonic()
            server.process.kill()
            are_gone = wait_for_deaths(children)
            gone_s.append(time.monotonic() - start_s)
            if not are_gone:
                left += [names[pid] for pid in children if title(pid)]
        left += sorted(set(os.listdir(SHM)) - before)
    course.found("gone", f"worst of {len(gone_s)}: {max(gone_s):.2f} s", is_met=max(gone_s) <= 2.0)
    course.found("left", ", ".join(left) or "nothing", is_met=not left)
    # An identity model has nothing to load, but its worker is a process that starts.
    course.found("again", f"worst of {len(ready_s)}: {max(ready_s):.2f} s", is_met=max(ready_s) <= 3.0)
