"""A server's start, its worker's memory, and its worker's death: the times of one server, alone on the machine."""

import http.client
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from statistics import median

from bench import measure
from bench.errors import BenchmarkError
from bench.server import Server, ask
from bench.workloads import Request

#: Seconds until a worker must be back.
BACK_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Moments:
    """The figures of one start of a server."""

    first_answer_s: float  # from exec to the first right answer
    worker_rss_bytes: int  # resident, shared pages counted whole
    worker_pss_bytes: int  # shared pages counted by their share
    backs_s: tuple[float, ...]  # from a kill of the worker to the next answer

    @property
    def back_s(self) -> float:
        """The median of the times until a killed worker's successor answers."""
        return median(self.backs_s)


def kill_worker(server: Server, request: Request, pid: int) -> float:
    """Kill a worker; returns seconds from the kill to the next answer with status 200, which only another worker can
    have given. Raises BenchmarkError where none comes."""
    end = os.pidfd_open(pid)
    try:
        start_s = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        if not select.select([end], [], [], BACK_DEADLINE_S)[0]:
            raise BenchmarkError(f"worker {pid} outlives SIGKILL")
    finally:
        os.close(end)
    while (passed_s := time.perf_counter() - start_s) < BACK_DEADLINE_S:
        try:
            if ask(server.port, request)[0] == HTTPStatus.OK:
                return time.perf_counter() - start_s
        except (OSError, http.client.HTTPException):
            pass  # the request is sent again, until the deadline
        time.sleep(0.0005)
    raise BenchmarkError(f"no answer {passed_s:.0f} s after a worker's death")


def moments(
    server: Server, first_answer_s: float, request: Request, worker_pid: Callable[[], int], num_kills: int
) -> Moments:
    """The figures of a running server; its only worker is killed `num_kills` times, each after an answer."""
    memory = measure.memory(worker_pid())
    backs_s = tuple(kill_worker(server, request, worker_pid()) for _ in range(num_kills))
    return Moments(first_answer_s, memory["Rss"], memory["Pss"], backs_s)
