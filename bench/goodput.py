"""Goodput under overload: `python -m bench.goodput`.

A server whose requests have a deadline (--request-deadline-ms) gets 1, 2 and 10 times what its model can execute, over
HTTP, and each answer counts that came before the deadline. One model sleeps for as long as it is at work, the other
computes. Its capacity is measured before and after each load, with clients that wait for their answers. Prints a line
per load; ends with code 1 where the goodput or the time of refusals is not what it should be.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, quantiles

from bench.open_loop import Answer, OpenLoop
from bench.server import Server, free_ports
from bench.workloads import Request

#: Load as a multiple of capacity → the goodput that it must leave, as a share of capacity; at 1 none is promised.
BAR = {1.0: 0.0, 2.0: 0.95, 10.0: 0.85}
REFUSED_WITHIN_S = 0.05
CONFIG = """
backend: "%s"
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
parameters [{ key: "execute_delay_ms" value: { string_value: "%d" } }]
"""
COMPUTING = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        end = time.thread_time() + %d / 1000
        while time.thread_time() < end:
            sum(range(1000))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.inputs()[0].as_numpy())])
                for each in requests]
"""
BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'


@contextmanager
def serving(cost_ms: int, deadline_ms: int) -> Iterator[int]:
    """A server of both models; its HTTP port."""
    with tempfile.TemporaryDirectory() as directory:
        models = Path(directory, "models")
        for name, backend in (("sleeping", "identity"), ("computing", "python")):
            (models / name / "1").mkdir(parents=True)
            (models / name / "config.pbtxt").write_text(CONFIG % (backend, cost_ms))
        (models / "computing" / "1" / "model.py").write_text(COMPUTING % cost_ms)
        (port,) = free_ports(1)
        command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "serve"]
        command += [f"--model-repository={models}", f"--http-port={port}", "--allow-grpc=false"]
        command += [f"--request-deadline-ms={deadline_ms}", "--metrics-port=0", "--client-socket="]
        server = Server(command, dict(os.environ), port, Path(directory, "log"))
        server.start()
        try:
            for name in ("sleeping", "computing"):
                server.wait_for_answer(_request(name), lambda _headers, _body: None)
            yield port
        finally:
            server.stop()


def _request(model: str) -> Request:
    return Request(f"/v2/models/{model}/infer", {"Content-Type": "application/json"}, BODY)


def percentile(times_s: Sequence[float], percent: int) -> float:
    """In ms; 0 of nothing."""
    if len(times_s) < 2:
        return 1000 * max(times_s, default=0.0)
    return 1000 * quantiles(times_s, n=100, method="inclusive")[percent - 1]


def judge(
    answers: Sequence[Answer], capacity: float, times: float, seconds: float, deadline_s: float
) -> tuple[str, bool]:
    """A load in words, and whether it came out as it should."""
    answered = [each.time_s for each in answers if each.status == 200]
    good = [each for each in answered if each <= deadline_s]
    refused = [each.time_s for each in answers if each.status == 503 and each.may_retry]
    num_expired = len(answers) - len(answered) - len(refused)
    share = len(good) / seconds / capacity
    is_as_it_should = share >= BAR.get(times, 0.0) and percentile(refused, 99) <= 1000 * REFUSED_WITHIN_S
    words = (
        f"{times:4g} x {capacity:5.1f}/s: {share:6.1%} good (p99 {percentile(answered, 99):5.1f} ms), "
        f"{len(answered) - len(good)} late, {num_expired} expired, {len(refused)} refused "
        f"(p50 {percentile(refused, 50):.1f}, p99 {percentile(refused, 99):.1f}, "
        f"slowest {1000 * max(refused, default=0):.1f} ms)"
    )
    return words, is_as_it_should


def main() -> int:
    """Measure both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default: 10)")
    parser.add_argument("--cost-ms", type=int, default=10, help="of an execution (default: 10)")
    parser.add_argument("--deadline-ms", type=int, default=200, help="of a request (default: 200)")
    arguments = parser.parse_args()
    is_as_it_should = True
    with serving(arguments.cost_ms, arguments.deadline_ms) as port:
        for model in ("sleeping", "computing"):
            loop = OpenLoop(port, _request(model))
            sys.stdout.write(f"{model} for {arguments.cost_ms} ms, deadline {arguments.deadline_ms} ms\n")
            for times in BAR:
                before = loop.capacity(4, arguments.seconds / 4)
                answers = loop.load(times * before, arguments.seconds)
                capacity = mean((before, loop.capacity(4, arguments.seconds / 4)))
                words, is_well = judge(answers, capacity, times, arguments.seconds, arguments.deadline_ms / 1000)
                is_as_it_should = is_as_it_should and is_well
                sys.stdout.write(f"  {words}\n")
                sys.stdout.flush()
            loop.close()
    return 0 if is_as_it_should else 1


if __name__ == "__main__":
    raise SystemExit(main())
