"""A storm: workers and batchers are killed again and again while verified requests come in, and the sums must come out.

A model that answers the requests of its batches one by one is among those asked. Every request carries a number of its
own and is counted once: answered rightly, refused because its instance died, or anything else, which is a fault of the
server. `scripts/storm` is the long form, test_storm.py the short one.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.end_to_end.server import Ledger, Server, await_standby, descendants, imbalances, samples, serving, title
from tests.end_to_end.test_ledger import footprint
from tests.end_to_end.traffic import Answer, ask, receive

CONNECTIONS, MAX_BATCH_SIZE = 64, 8
#: So many of the connections ask the decoupled model.
DECOUPLED_CONNECTIONS = 12
KILL_EVERY_S = (0.1, 0.3)
#: That answer for the ledger: two lanes, the road, the batcher, three workers.
NUM_PROCESSES = 7
KINDS = {"worker": ("shoal worker m_0_", "shoal worker parts_0_"), "batcher": ("shoal batcher",)}
MODEL = f"""
backend: "identity"
max_batch_size: {MAX_BATCH_SIZE}
input {{ name: "A" data_type: TYPE_INT32 dims: [ 4 ] }}
output {{ name: "B" data_type: TYPE_INT32 dims: [ 4 ] }}
instance_group {{ count: 2 kind: KIND_CPU }}
dynamic_batching {{ }}
parameters {{ key: "idempotent" value {{ string_value: "false" }} }}
"""
#: Answers the requests of a batch one after the other, while it executes them.
PARTS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("B", values)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PARTS_CONFIG = f"""
backend: "python"
max_batch_size: {MAX_BATCH_SIZE}
input {{ name: "A" data_type: TYPE_INT32 dims: [ 4 ] }}
output {{ name: "B" data_type: TYPE_INT32 dims: [ 4 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
model_transaction_policy {{ decoupled: true }}
"""


@dataclass
class Phase:
    """What one phase of a storm came to."""

    name: str
    seconds: float = 0.0
    num_right: int = 0
    num_refused: int = 0  # 500, because the instance died that was executing it
    latencies_s: list[float] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Right answers per second."""
        return self.num_right / self.seconds

    @property
    def max_refused(self) -> int:
        """As many as can have been executing when workers were killed."""
        return self.kills["worker"] * MAX_BATCH_SIZE

    def describe(self) -> str:
        """One line of the report."""
        times = sorted(self.latencies_s) or [0.0]
        p50, p99 = (1e3 * times[int(len(times) * share)] for share in (0.5, 0.99))
        return (
            f"{self.name:<18} {self.rate:>7.0f}/s right, p50 {p50:6.1f} ms, p99 {p99:7.1f} ms, "
            f"{self.kills['worker']} workers and {self.kills['batcher']} batchers killed, "
            f"{self.num_refused} refused (at most {self.max_refused}), {len(self.faults)} faults"
        )


class Storm:
    """One server, many connections, and somebody who kills."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        # Changed by every request.
        self._number = 0

    async def phase(self, name: str, seconds: float, victims: tuple[str, ...]) -> Phase:
        """Requests over all connections for so long, while processes of these kinds are killed."""
        phase = Phase(name)
        start = time.monotonic()
        end = start + seconds
        tasks = [self._client(phase, end, is_decoupled=each < DECOUPLED_CONNECTIONS) for each in range(CONNECTIONS)]
        if victims:
            tasks.append(self._kill(phase, end, victims))
        # What nobody reads of the log is lost once the pipe is full.
        assert self._server.process.stdout is not None
        log_fd = self._server.process.stdout.fileno()
        asyncio.get_running_loop().add_reader(log_fd, self._read_log, log_fd)
        await asyncio.gather(*tasks)
        phase.seconds = time.monotonic() - start
        return phase

    def _read_log(self, log_fd: int) -> None:
        self._server.log += os.read(log_fd, 65536)

    async def _client(self, phase: Phase, end: float, *, is_decoupled: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.http_port)
        try:
            while time.monotonic() < end:
                await self._ask(phase, reader, writer, is_decoupled=is_decoupled)
        except (OSError, asyncio.IncompleteReadError) as error:
            phase.faults.append(f"connection: {error!r}")
        finally:
            writer.close()

    async def _ask(
        self, phase: Phase, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_decoupled: bool
    ) -> None:
        self._number = number = self._number + 1
        answer = await (ask_decoupled if is_decoupled else ask)(reader, writer, number)
        phase.latencies_s.append(answer.seconds)
        if answer.is_right:
            phase.num_right += 1
        elif answer.status == 500 and b"was killed by signal 9 (SIGKILL) while executing" in answer.body:
            phase.num_refused += 1
        else:
            phase.faults.append(f"{answer.status} {answer.body[:300]!r} to {answer.data}")

    async def _kill(self, phase: Phase, end: float, victims: tuple[str, ...]) -> None:
        while (now := time.monotonic()) < end:
            await asyncio.sleep(min(self._random.uniform(*KILL_EVERY_S), end - now))
            pids = descendants(self._server.process.pid)
            alive = [(kind, pid) for kind in victims for pid in pids if title(pid).startswith(KINDS[kind])]
            alive = [(kind, pid) for kind, pid in alive if not title(pid).startswith("shoal batcher (")]
            spared = [(kind, pid) for kind, pid in alive if not phase.kills[kind]]
            if alive:
                kind, pid = self._random.choice(spared or alive)  # so that each kind has its turn
                os.kill(pid, signal.SIGKILL)
                phase.kills[kind] += 1


async def ask_decoupled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
    """Like `ask`, of the decoupled model, which answers once."""
    sent_s, data = time.monotonic(), [number, -number, 7, number ^ 0x5555]
    body = json.dumps({"A": data}).encode()
    head = f"POST /v2/models/parts/generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await receive(reader, data, sent_s)
    if answer.status == 200:  # as the answer of the other model would be
        outputs = [{"data": json.loads(answer.body)["B"]}]
        return answer._replace(body=json.dumps({"outputs": outputs}).encode())
    return answer


def write_models(repository: Path) -> Path:
    """The repository that a storm needs."""
    for name, config in (("m", MODEL), ("parts", PARTS_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "parts" / "1" / "model.py").write_text(PARTS)
    return repository


def footprint_at_rest(server: Server, expected: list[object] | None = None) -> list[object]:
    """What every process has, once all that was taken has been given back, and is as `expected`.

    It fails where that does not come. Soon after a storm somebody may yet have to be told of the last new worker.
    """

    def is_at_rest(ledger: Ledger) -> bool:
        is_whole = len(ledger["processes"]) == NUM_PROCESSES and not imbalances(ledger)
        return is_whole and (expected is None or footprint(ledger) == expected)

    await_standby(server)
    samples(server.metrics_port)  # the road has its threads' poller once it has answered somebody
    return footprint(server.ledger_once(is_at_rest, expected or "balance"))


def judge(phase: Phase) -> list[str]:
    """What did not come out."""
    wrong = [f"{phase.name}: {fault}" for fault in phase.faults[:5]]
    if phase.num_refused > phase.max_refused:
        wrong.append(f"{phase.name}: {phase.num_refused} refused, more than were executing")
    return wrong


def main() -> int:
    """The long form. Exit status 1 if something did not come out."""
    parser = argparse.ArgumentParser(
        prog="scripts/storm",
        description="Kill workers and batchers every 100-300 ms under 64 connections of verified requests. Every "
        "request must get exactly one answer, every 200 must be right, and only what was executing may fail.",
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the storm lasts; default 180")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of whom to kill and when; default 1")
    options = parser.parse_args()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as directory, serving(write_models(Path(directory))) as server:
        storm = Storm(server, options.seed)
        calm = max(2.0, options.seconds / 10)
        phases = (
            ("quiet", calm, ()),
            ("batchers", calm, ("batcher",)),
            ("workers, batchers", options.seconds, ("worker", "batcher")),
            ("quiet again", calm, ()),
        )
        rates = {}
        asyncio.run(storm.phase("warm-up", 1.0, ()))
        before = footprint_at_rest(server)
        for name, seconds, victims in phases:
            print(f"{name}: {seconds:.0f} s ...", file=sys.stderr, flush=True)
            phase = asyncio.run(storm.phase(name, seconds, victims))
            rates[name] = phase.rate
            print(phase.describe(), flush=True)
            wrong += judge(phase)
        print(f"goodput in the storm: {rates['workers, batchers'] / rates['quiet']:.0%} of the quiet run")
        footprint_at_rest(server, before)
        if server.stop() != 0:
            wrong.append(f"the server did not end as it should:\n{server.log.decode()[-2000:]}")
    print("\n".join(wrong) or "every request was answered once and rightly; memory and descriptors are as before")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
