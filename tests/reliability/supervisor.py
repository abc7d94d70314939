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
    load_s: list[float] = []
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
        load_s.append(loading_s(server.log))
        left += sorted(set(os.listdir(SHM)) - before)
    course.found("gone", f"worst of {len(gone_s)}: {max(gone_s):.2f} s", is_met=max(gone_s) <= 2.0)
    course.found("left", ", ".join(left) or "nothing", is_met=not left)
    bar_s = 3 + max(load_s)
    told = f"worst {max(ready_s):.2f} s, of which the load {max(load_s):.2f} s"
    course.found("again", told, is_met=max(ready_s) <= bar_s)


def loading_s(log: bytes) -> float:
    """Seconds that the model took to load, as the log says; 0 where it does not."""
    for line in log.decode(errors="replace").splitlines():
        if "'m'" in line and " s" in line and "loaded" in line:
            words = line.replace("(", " ").split()
            for word, unit in zip(words, words[1:], strict=False):
                if unit.startswith("s") and word.replace(".", "", 1).isdecimal():
                    return float(word)
    return 0.0
