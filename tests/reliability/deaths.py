"""The rows of a worker's death: its client's answer, its successor, and a model that dies with each request."""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.end_to_end.asking import Reply, fetch
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, serving, wait_until
from tests.reliability.row import Course, quantile

ECHO, SLEEP, DIE = range(3)
CONFIG = config_text("python", "A INT32 2", "B INT32 1", count=1)
#: Answers its pid; or says that it executes, and sleeps; or dies. Each start leaves a line.
MODEL = python_model("""
    def initialize(self, args):
        self.directory = args["model_repository"]
        with open(f"{self.directory}/starts", "a") as file:
            file.write("started\\n")

    def execute(self, requests):
        word = int(pb_utils.get_input_tensor_by_name(requests[0], "A").as_numpy()[0])
        if word == 1:
            open(f"{self.directory}/executing", "w").close()
            time.sleep(60)
        if word == 2:
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", np.array([os.getpid()], np.int32))])]
""")
#: Starts until the breaker opens, and how long more are waited for: longer than the pause before the next would be.
MAX_STARTS, WATCHED_S = 5, 6.0


def ask(server: Server, model: str, word: int, number: int = 0) -> Reply:
    """One request; the number makes it unlike others."""
    tensor = {"name": "A", "shape": [2], "datatype": "INT32", "data": [word, number]}
    return fetch(server.http_port, f"/v2/models/{model}/infer", {"inputs": [tensor]})


def pid_in(reply: Reply) -> int:
    """The worker that answered."""
    assert reply.status == 200, reply
    return int(reply.json["outputs"][0]["data"][0])


def run(course: Course) -> None:
    """Kill a worker that executes, again and again."""
    repository = course.directory / "models"
    for name in ("m", "deadly"):
        add_model(repository, name, CONFIG, MODEL)
    answered_s: list[float] = []
    replaced_s: list[float] = []
    wrong: list[str] = []
    number = course.pick(8, 100)
    with serving(repository, "--model-execution-timeout-secs=60") as server, ThreadPoolExecutor(1) as threads:
        for count in range(number):
            fault = die_once(server, repository, threads, count, answered_s, replaced_s)
            wrong += [fault] * bool(fault)
            server.read_on()
        report = f"p50 {1e3 * quantile(answered_s, 0.5):.0f} ms, p99 {1e3 * quantile(answered_s, 0.99):.0f} ms"
        course.found("answered", f"{report} of {number}", is_met=quantile(answered_s, 0.99) <= 0.25)
        report = f"p50 {quantile(replaced_s, 0.5):.2f} s, p99 {quantile(replaced_s, 0.99):.2f} s"
        course.found("replaced", f"{report} of {number}", is_met=quantile(replaced_s, 0.99) <= 1.0)
        course.found("told", f"{number - len(wrong)} of {number}", wrong, is_met=not wrong)
        break_open(course, server, repository)
        assert server.stop() == 0


def die_once(
    server: Server,
    repository: Path,
    threads: ThreadPoolExecutor,
    number: int,
    answered_s: list[float],
    replaced_s: list[float],
) -> str:
    """One death; what is wrong with the answer, or nothing."""
    pid = pid_in(ask(server, "m", ECHO))
    executing = repository / "m" / "executing"
    answer: Future[tuple[Reply, float]] = threads.submit(lambda: (ask(server, "m", SLEEP, number), time.monotonic()))
    wait_until(executing.exists)
    executing.unlink()
    start_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    reply, told_s = answer.result(DEADLINE_S)
    answered_s.append(told_s - start_s)
    while (again := ask(server, "m", ECHO)).status != 200:
        assert time.monotonic() < start_s + DEADLINE_S, again
    assert pid_in(again) != pid
    replaced_s.append(time.monotonic() - start_s)
    is_right = reply.status == 500 and all(
        each in reply.body for each in (b"'m_0_0'", b"%d" % pid, b"signal 9 (SIGKILL)")
    )
    return "" if is_right else f"{reply.status} {reply.body[:300]!r}"


def break_open(course: Course, server: Server, repository: Path) -> None:
    """A model dies with each request, until it is given up; the other model answers."""
    starts = repository / "deadly" / "starts"
    number, end_s = 0, time.monotonic() + 40.0

    def num_starts() -> int:
        return len(starts.read_text().splitlines())

    last = ask(server, "deadly", DIE)
    while last.status != 503 and time.monotonic() < end_s:
        number += 1
        last = ask(server, "deadly", DIE, number)
    until_s = time.monotonic() + WATCHED_S
    while time.monotonic() < until_s and num_starts() <= MAX_STARTS:
        server.read_on()
    answer = ask(server, "m", ECHO).status
    is_met = num_starts() <= MAX_STARTS and last.status == 503 and answer == 200
    course.found(
        "breaker",
        f"{num_starts()} starts, then {last.status} to its clients and {answer} to those of another model",
        is_met=is_met,
    )
