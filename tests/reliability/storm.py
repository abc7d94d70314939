"""A storm: workers and batchers are killed again and again while verified requests come in, and the sums must come out.

Memory and descriptors are short. Asked are an ordinary model, one that answers the requests of a batch one by one, one
with payloads that have segments of their own, which some clients read slowly, and one that asks another model and keeps
its GIL in native code. Every request carries a number of its own and is counted once: answered rightly, refused because
its instance died, cut off because its lane died, or anything else, which is a fault of the server. `scripts/storm` is
the long form, test_storm.py the short one.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.end_to_end.server import (
    Ledger,
    Server,
    await_rest,
    descendants,
    footprint,
    imbalances,
    lasting,
    samples,
    serving,
    title,
)
from tests.end_to_end.storm_clients import FLAGS, KINDS, MAX_BATCH_SIZE, Answer, Kind, write_models

KILL_EVERY_S = (0.1, 0.3)
#: Between two stops of a lane: until it has been replaced, and its clients are back.
STOP_EVERY_S = 3.0
#: That answer for the ledger: two lanes, the road, the batcher, six workers, and the caller's as a client, too.
NUM_PROCESSES = 11
#: Who dies. A lane is stopped, which the supervisor must find out.
VICTIMS = {
    "worker": (
        "shoal worker m_0_",
        "shoal worker parts_0_",
        "shoal worker large_0_",
        "shoal worker inner_0_",
        "shoal worker caller_0_",
    ),
    "batcher": ("shoal batcher",),
    "lane": ("shoal http",),
}
NUM_LANES = 2
#: Of every process: what the server needs, and a few connections.
MAX_DESCRIPTORS = 256
CONNECTIONS = sum(kind.num_clients for kind in KINDS)


@dataclass
class Phase:
    """What one phase of a storm came to."""

    name: str
    seconds: float = 0.0
    num_right: int = 0
    num_refused: int = 0  # 500, because the instance died that was executing it
    num_cut: int = 0  # connections that ended, because their lane died
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

    @property
    def max_cut(self) -> int:
        """All connections of each lane that was stopped."""
        return self.kills["lane"] * CONNECTIONS

    def describe(self) -> str:
        """One line of the report."""
        times = sorted(self.latencies_s) or [0.0]
        p50, p99 = (1e3 * times[int(len(times) * share)] for share in (0.5, 0.99))
        return (
            f"{self.name:<18} {self.rate:>7.0f}/s right, p50 {p50:6.1f} ms, p99 {p99:7.1f} ms, "
            f"{self.kills['worker']} workers and {self.kills['batcher']} batchers killed, "
            f"{self.kills['lane']} lanes stopped, {self.num_refused} refused (at most {self.max_refused}), "
            f"{self.num_cut} connections cut (at most {self.max_cut}), {len(self.faults)} faults"
        )


class Storm:
    """One server, many connections, and somebody who kills."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        # Changed by every request.
        self._number = 0
        # Changed by every right answer, and when a worker is killed: models that have answered since one of theirs was.
        self._answered: set[str] = set()

    async def phase(
        self, phase: Phase, is_over: Callable[[], bool], victims: tuple[str, ...], kinds: Sequence[Kind] = KINDS
    ) -> Phase:
        """Requests over all connections until the phase is over, while processes of these kinds are killed."""
        start = time.monotonic()
        tasks = [self._client(phase, is_over, kind) for kind in kinds for _ in range(kind.num_clients)]
        if victims:
            tasks.append(self._kill(phase, is_over, victims))
        # What nobody reads of the log is lost once the pipe is full.
        assert self._server.process.stdout is not None
        log_fd = self._server.process.stdout.fileno()
        asyncio.get_running_loop().add_reader(log_fd, self._read_log, log_fd)
        await asyncio.gather(*tasks)
        phase.seconds = time.monotonic() - start
        return phase

    def _read_log(self, log_fd: int) -> None:
        self._server.log += os.read(log_fd, 65536)

    async def _client(self, phase: Phase, is_over: Callable[[], bool], kind: Kind) -> None:
        while not is_over():
            try:
                reader, writer = await kind.connect(self._server.http_port)
            except OSError as error:
                phase.faults.append(f"no connection: {error!r}")
                return
            try:
                while not is_over():
                    self._count(phase, kind, await self._ask(kind, reader, writer))
            except (OSError, asyncio.IncompleteReadError):
                phase.num_cut += 1
            finally:
                writer.close()

    async def _ask(self, kind: Kind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        self._number = number = self._number + 1
        return await kind.ask(reader, writer, number)

    def _count(self, phase: Phase, kind: Kind, answer: Answer) -> None:
        phase.latencies_s.append(answer.seconds)
        if answer.is_right:
            phase.num_right += 1
            self._answered.update(kind.models)
        elif answer.status == 500 and b"was killed by signal 9 (SIGKILL) while executing" in answer.body:
            phase.num_refused += 1
        else:
            phase.faults.append(f"{kind.model}: {answer.status} {answer.body[:300]!r} to {answer.number}")

    async def _kill(self, phase: Phase, is_over: Callable[[], bool], kinds: tuple[str, ...]) -> None:
        stop_s = time.monotonic()
        while not is_over():
            now = time.monotonic()
            await asyncio.sleep(self._random.uniform(*KILL_EVERY_S))
            alive = [(kind, pid) for kind in kinds for pid in self._alive(kind)]
            if now < stop_s:
                alive = [(kind, pid) for kind, pid in alive if kind != "lane"]
            spared = [(kind, pid) for kind, pid in alive if not phase.kills[kind]]
            if alive:
                kind, pid = self._random.choice(spared or alive)  # so that each kind has its turn
                name = title(pid)
                with suppress(ProcessLookupError):  # one that was killed before has only now ended
                    os.kill(pid, signal.SIGSTOP if kind == "lane" else signal.SIGKILL)
                    phase.kills[kind] += 1
                    if kind == "worker":
                        self._answered.discard(model_of(name))
                if kind == "lane":
                    stop_s = now + STOP_EVERY_S

    def _alive(self, kind: str) -> list[int]:
        """Those that may die now: no batcher that stands by, no lane that is alone, and no worker of a model that has
        not answered since another of its was killed: an instance that dies again and again before it has completed a
        batch is given up, and on a busy machine it takes longer to come up than a storm pauses."""
        titles = {pid: title(pid) for pid in descendants(self._server.process.pid)}
        found = [pid for pid, name in titles.items() if name.startswith(VICTIMS[kind])]
        found = [pid for pid in found if not titles[pid].startswith("shoal batcher (")]
        if kind == "worker":
            found = [pid for pid in found if model_of(titles[pid]) in self._answered]
        return [] if kind == "lane" and len(found) < NUM_LANES else found


def model_of(worker: str) -> str:
    """The model of a worker with this title; nothing of one that has ended."""
    return worker.removeprefix("shoal worker ").partition(" ")[0].rpartition("_0_")[0]


@contextmanager
def storm_server(repository: Path) -> Iterator[Server]:
    """The server of a storm, with little memory and few descriptors."""
    limits = MAX_DESCRIPTORS, MAX_DESCRIPTORS
    flags = [*FLAGS, f"--http-process-count={NUM_LANES}"]
    with serving(write_models(repository), *flags, descriptors=limits) as server:
        yield server


def warm_up(storm: Storm, server: Server) -> list[object]:
    """What every process has once it has been at work. Without large payloads, whose memory is kept for a second."""
    small = [kind for kind in KINDS if kind.model != "large"]
    asyncio.run(storm.phase(Phase("warm-up"), lasting(0.5), (), small))
    return footprint_at_rest(server)


async def _call_once(server: Server) -> None:
    (caller,) = [kind for kind in KINDS if kind.model == "caller"]
    reader, writer = await caller.connect(server.http_port)
    answer = await caller.ask(reader, writer, 0)
    assert answer.is_right, answer
    writer.close()


def footprint_at_rest(server: Server, expected: list[object] | None = None) -> list[object]:
    """What every process has, once all that was taken has been given back, and is as `expected`.

    It fails where that does not come. Soon after a storm somebody may yet have to be told of the last new worker.
    """

    def is_at_rest(ledger: Ledger) -> bool:
        is_whole = len(ledger["processes"]) == NUM_PROCESSES and not imbalances(ledger)
        return is_whole and (expected is None or footprint(ledger) == expected)

    await_rest(server)
    # The road has its threads' poller once it has answered, a model that calls others its memory once it has called.
    samples(server.metrics_port)
    asyncio.run(_call_once(server))
    return footprint(server.ledger_once(is_at_rest, expected or "balance"))


def judge(phase: Phase) -> list[str]:
    """What did not come out."""
    wrong = [f"{phase.name}: {fault}" for fault in phase.faults[:5]]
    if phase.num_refused > phase.max_refused:
        wrong.append(f"{phase.name}: {phase.num_refused} refused, more than were executing")
    if phase.num_cut > phase.max_cut:
        wrong.append(f"{phase.name}: {phase.num_cut} connections cut, more than their lanes had")
    return wrong


def main() -> int:
    """The long form. Exit status 1 if something did not come out."""
    parser = argparse.ArgumentParser(
        prog="scripts/storm",
        description="Kill workers and batchers every 100-300 ms, and stop lanes, under 64 connections of verified "
        "requests: ordinary ones, decoupled ones, large ones, slow readers and models that call others. Every request "
        "must get exactly one answer, every 200 must be right, and only what was executing, or was a dead lane's, may "
        "fail.",
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the storm lasts; default 180")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of whom to kill and when; default 1")
    options = parser.parse_args()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as directory, storm_server(Path(directory)) as server:
        storm = Storm(server, options.seed)
        calm = max(2.0, options.seconds / 10)
        phases = (
            ("quiet", calm, ()),
            ("batchers", calm, ("batcher",)),
            ("workers, batchers", options.seconds, ("worker", "batcher")),
            ("lanes, batchers", calm, ("lane", "batcher")),
            ("quiet again", calm, ()),
        )
        rates = {}
        before = warm_up(storm, server)
        for name, seconds, victims in phases:
            print(f"{name}: {seconds:.0f} s ...", file=sys.stderr, flush=True)
            phase = asyncio.run(storm.phase(Phase(name), lasting(seconds), victims))
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
