"""The row of a model that hangs: with Python's interpreter lock, without it, and as a stopped process."""

import os
import signal
import time

from tests.end_to_end.asking import Reply, fetch
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, serving, worker_of
from tests.reliability.row import Course

LIMIT_S = 2
ECHO, HOLD_LOCK, SLEEP, STOPPED = range(4)
CONFIG = config_text("python", "A INT32 2", "B INT32 2", count=1)
MODEL = """
import ctypes, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        values = pb_utils.get_input_tensor_by_name(requests[0], "A").as_numpy()
        if values[0] == 1:
            ctypes.PyDLL(None).sleep(60)
        if values[0] == 2:
            time.sleep(60)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", values)])]
"""
WAYS = {"with the lock": HOLD_LOCK, "without it": SLEEP, "stopped": STOPPED}


def ask(server: Server, word: int, number: int = 0) -> Reply:
    """One request; the number makes it unlike others, since one that has ended two workers is refused."""
    tensor = {"name": "A", "shape": [2], "datatype": "INT32", "data": [word, number]}
    return fetch(server.http_port, "/v2/models/m/infer", {"inputs": [tensor]})


def run(course: Course) -> None:
    """Hang in every way, again and again."""
    add_model(course.directory / "models", "m", CONFIG, MODEL)
    worst_s = dict.fromkeys(WAYS, 0.0)
    wrong: list[str] = []
    with serving(course.directory / "models", f"--model-execution-timeout-secs={LIMIT_S}") as server:
        for number in range(course.pick(1, 10)):
            for way, word in WAYS.items():
                assert ask(server, ECHO).status == 200
                if word == STOPPED:
                    os.kill(worker_of(server, "m_0_0"), signal.SIGSTOP)
                start_s = time.monotonic()
                reply = ask(server, word, number)
                worst_s[way] = max(worst_s[way], time.monotonic() - start_s)
                # What a stopped worker had not begun, the next one does.
                is_told = reply.status == 500 and f"the limit of {LIMIT_S * 1000} ms".encode() in reply.body
                if not is_told and not (word == STOPPED and reply.status == 200):
                    wrong.append(f"{way}: {reply.status} {reply.body[:200]!r}")
                while (again := ask(server, ECHO)).status != 200:
                    assert time.monotonic() < start_s + DEADLINE_S, again
                server.read_on()
        assert server.stop() == 0
    told = ", ".join(f"{way} {seconds:.2f} s" for way, seconds in worst_s.items())
    course.found("answered", f"limit {LIMIT_S} s; worst: {told}", is_met=max(worst_s.values()) <= LIMIT_S + 1)
    course.found("told", f"{len(wrong)} other answers", wrong, is_met=not wrong)
