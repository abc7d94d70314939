"""A storm: processes of every kind are killed and stopped while verified requests come in, and the sums must come out.

Memory and descriptors are short. Asked are an ordinary model (on a lane, on the road and over gRPC), one that answers
the requests of a batch one by one, one with payloads that have segments of their own, which some clients read slowly,
one that asks another model and keeps its GIL in native code, a handler of TorchServe's, and the poller. Every request
carries a number of its own and is counted once: answered rightly, refused because its instance died, cut off because
its front end died, or anything else, which is a fault of the server. `scripts/reliability --only storm` is the long
form, test_storm.py one that says which kind of death it is.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shoal.supervisor.descriptors import PER_INSTANCE, RESERVE
from shoal.supervisor.processes.stopped_processes import is_stopped
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
from tests.end_to_end.torchserve_listeners import FLAGS as TORCHSERVE_FLAGS
from tests.reliability.row import Course, quantile
from tests.reliability.storm_clients import (
    FLAGS,
    KINDS,
    MAX_BATCH_SIZE,
    POLLER,
    Answer,
    Cut,
    Kind,
    write_models,
    write_store,
)

#: Between two blows of one signal. What is stopped is resumed after three seconds, or replaced after one.
KILL_EVERY_S, STOP_EVERY_S = (0.1, 0.3), (0.4, 0.8)
#: That answer for the ledger: two lanes, the road, the gRPC lane, the batcher, eight workers, the caller's as a client.
NUM_PROCESSES = 14
NUM_LANES = 2
#: The workers among these, and the most descriptors that the server's main process has open in a storm (197, measured).
NUM_WORKERS, NUM_OPEN = 8, 200
#: Of every process: what the main process needs by its own rule, and no more, so that what it loses ends the storm.
#: Below that it rightly refuses large payloads, since dead instances must find theirs (test_survival.py): with 256 it
#: refused 91. By the system's usual limit a server has a thousand times as many.
MAX_DESCRIPTORS = NUM_OPEN + RESERVE + PER_INSTANCE * NUM_WORKERS
CONNECTIONS = sum(kind.num_clients for kind in KINDS)
#: A request without an answer for so long has none.
UNANSWERED_S = 30.0
#: What an answer says where the instance died that was executing its request.
DIED = b"was killed by signal 9 (SIGKILL) while executing", b"was ended because the execution took longer"
#: The same over TorchServe's protocol: 507 after SIGKILL, as there, and else 500.
DIED_IN_TORCHSERVE, TORCHSERVE_STATUSES = b'"message": "Worker died."', (500, 507)
#: A worker that is stopped is killed when its batch has taken so long.
EXECUTION_LIMIT_S = 2


class Victims(NamedTuple):
    """One kind of process."""

    titles: tuple[str, ...]  # with which the title of one begins
    pause_s: float  # between two blows, at least
    num_connections: int = 0  # that end with a process of this kind, at most
    #: What must have answered a request that was sent after the last blow before the next falls: on a busy machine a
    #: successor takes longer to come up than a storm pauses, and a server that is never left alone answers nothing.
    proofs: tuple[str, ...] = ()


VICTIMS = {
    "worker": Victims(
        tuple(f"shoal worker {name}_0_" for name in ("m", "parts", "large", "inner", "caller", "handler")), 0.0
    ),
    "batcher": Victims(("shoal batcher",), 0.0, proofs=("batcher",)),
    "standby": Victims(("shoal batcher (standby)",), 1.0, proofs=("batcher",)),
    "lane": Victims(("shoal http",), 3.0, CONNECTIONS, ("lane",)),
    "grpc": Victims(("shoal grpc",), 3.0, CONNECTIONS, ("grpc",)),
    "road": Victims(("shoal road",), 3.0, CONNECTIONS, ("road",)),
    "arbiter": Victims(("gunicorn: master",), 8.0, CONNECTIONS, ("lane", "grpc", "road")),
    "zygote": Victims(("shoal zygote",), 2.0),
    "poller": Victims(("shoal repository poller",), 2.0),
}
#: Models that wait for another's answer: they reach the execution limit while it has no worker, too.
CALLERS = {"inner": ("caller",)}
#: Kinds that are spared for so long after a blow are killed and stopped in turns.
RARE_S = 3.0
#: What a storm does; `Phase.blows` counts it.
Blow = tuple[str, signal.Signals]
KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP
EVERY_BLOW: tuple[Blow, ...] = tuple((kind, number) for number in (KILLED, STOPPED) for kind in VICTIMS)


@dataclass
class Phase:
    """What one phase of a storm came to."""

    name: str
    seconds: float = 0.0
    num_right: int = 0
    num_refused: int = 0  # 500, because the instance died that was executing it
    num_cut: int = 0  # connections that ended, because their lane died
    num_unread: int = 0  # questions to the poller that died
    latencies_s: list[float] = field(default_factory=list)
    blows: Counter[Blow] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Right answers per second."""
        return self.num_right / self.seconds

    @property
    def num_asked(self) -> int:
        """All requests."""
        return self.num_right + self.num_refused + self.num_cut + self.num_unread + len(self.faults)

    @property
    def max_refused(self) -> int:
        """As many as can have been executing when workers died."""
        return sum(number for (kind, _), number in self.blows.items() if kind == "worker") * MAX_BATCH_SIZE

    @property
    def max_cut(self) -> int:
        """All connections of each front end that died."""
        return sum(VICTIMS[kind].num_connections * number for (kind, _), number in self.blows.items())

    def num_blows(self, number: signal.Signals) -> int:
        """How often this signal was sent."""
        return sum(times for (_, sent), times in self.blows.items() if sent == number)

    @property
    def summary(self) -> str:
        """The phase's figures in one line."""
        times = self.latencies_s or [0.0]
        return (
            f"{self.name}: {self.num_asked:,} requests, {self.rate:.0f}/s right, p50 {1e3 * quantile(times, 0.5):.1f} "
            f"ms, p99 {1e3 * quantile(times, 0.99):.1f} ms; {self.num_blows(KILLED)} KILL, {self.num_blows(STOPPED)} "
            f"STOP; {self.num_refused} refused (at most {self.max_refused}), {self.num_cut} cut, {self.num_unread} "
            f"questions to a dead poller, {len(self.faults)} faults"
        )

    def describe(self) -> str:
        """The summary, and how often each kind of process was killed and stopped."""
        kinds = [
            f"{number.name}: " + ", ".join(f"{kind} {times}" for kind, times in sorted(self.kinds(number).items()))
            for number in (KILLED, STOPPED)
        ]
        return "\n".join([self.summary, *kinds])

    def kinds(self, number: signal.Signals) -> dict[str, int]:
        """How often each kind was sent this signal."""
        return {kind: times for (kind, sent), times in self.blows.items() if sent == number}


class Storm:
    """One server, many connections, and blows to its processes."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        # Changed by every request.
        self._number = 0
        # Changed by every right answer, and by every blow: models, and kinds of processes, that have answered a request
        # that was sent after the last blow to one of theirs; when that fell.
        self._answered: set[str] = set()
        self._struck_s: dict[str, float] = {}
        # Changed by every blow: until when processes of a kind are spared.
        self._spared_s: dict[str, float] = {}

    async def phase(
        self, phase: Phase, is_over: Callable[[], bool], blows: Sequence[Blow] = (), kinds: Sequence[Kind] = KINDS
    ) -> Phase:
        """Requests over all connections until the phase is over, while these blows fall."""
        start = time.monotonic()
        tasks = [self._client(phase, is_over, kind) for kind in kinds for _ in range(kind.num_clients)]
        for number, every_s in ((KILLED, KILL_EVERY_S), (STOPPED, STOP_EVERY_S)):
            if victims := [kind for kind, sent in blows if sent == number]:
                tasks.append(self._strike(phase, is_over, victims, number, every_s))
        # Lines of the log that are not read are lost once the pipe is full.
        assert self._server.process.stdout is not None
        log_fd = self._server.process.stdout.fileno()
        # A client that looks for a port reads it, too: none may wait for what the other has read.
        asyncio.get_running_loop().add_reader(log_fd, self._server.read_on)
        await asyncio.gather(*tasks)
        phase.seconds = time.monotonic() - start
        return phase

    async def _client(self, phase: Phase, is_over: Callable[[], bool], kind: Kind) -> None:
        while not is_over():
            try:
                connection = await kind.connect(self._server)
            except OSError as error:
                phase.faults.append(f"no connection: {error!r}")
                return
            try:
                while not is_over():
                    self._number = number = self._number + 1
                    answer = await asyncio.wait_for(connection.ask(number), UNANSWERED_S)
                    self._count(phase, kind, answer)
                    await asyncio.sleep(kind.pause_s)
                    if answer.is_last:
                        break
            except Cut:
                phase.num_cut += 1
            except asyncio.TimeoutError:
                phase.faults.append(f"{kind.model} by {kind.front_end}: no answer within {UNANSWERED_S:.0f} s")
            finally:
                connection.close()

    def _count(self, phase: Phase, kind: Kind, answer: Answer) -> None:
        phase.latencies_s.append(answer.seconds)
        if answer.is_right:
            phase.num_right += 1
            sent_s = time.monotonic() - answer.seconds
            names = (*kind.models, "batcher", kind.front_end)
            self._answered.update(name for name in names if sent_s > self._struck_s.get(name, 0.0))
        elif is_refused(answer):
            phase.num_refused += 1
        elif (
            kind.model == POLLER
            and answer.status >= 400
            and b"the process that reads model repositories" in answer.body
        ):
            phase.num_unread += 1
        else:
            phase.faults.append(f"{kind.model}: {answer.status} {answer.body[:300]!r} to {answer.number}")

    async def _strike(
        self,
        phase: Phase,
        is_over: Callable[[], bool],
        kinds: Sequence[str],
        number: signal.Signals,
        every_s: tuple[float, float],
    ) -> None:
        while not is_over():
            await asyncio.sleep(self._random.uniform(*every_s))
            alive = [(kind, pid) for kind in kinds if not is_ahead(phase, kind, number) for pid in self._alive(kind)]
            spared = [(kind, pid) for kind, pid in alive if not phase.blows[kind, number]]
            if not alive:
                continue
            kind, pid = self._random.choice(spared or alive)  # so that each kind has its turn
            name = title(pid)
            with suppress(ProcessLookupError):  # one that was killed before has only now ended
                os.kill(pid, number)
                phase.blows[kind, number] += 1
                self._spared_s[kind] = time.monotonic() + VICTIMS[kind].pause_s
                struck = concerned(name) if kind == "worker" else VICTIMS[kind].proofs
                self._answered.difference_update(struck)
                self._struck_s.update(dict.fromkeys(struck, time.monotonic()))

    def _alive(self, kind: str) -> list[int]:
        """Those that may be struck now: no batcher that stands by for one, no lane that is alone, nothing that is
        stopped, nothing whose kind has not answered since, and no worker of a model that has not: an instance that dies
        again and again before it has completed a batch is given up."""
        if time.monotonic() < self._spared_s.get(kind, 0.0) or not self._answered.issuperset(VICTIMS[kind].proofs):
            return []
        titles = {pid: title(pid) for pid in descendants(self._server.process.pid)}
        found = [pid for pid, name in titles.items() if name.startswith(VICTIMS[kind].titles) and not is_stopped(pid)]
        if kind == "batcher":
            found = [pid for pid in found if titles[pid] == "shoal batcher"]
        if kind == "worker":
            found = [pid for pid in found if self._answered.issuperset(concerned(titles[pid]))]
        return [] if kind == "lane" and len(found) < NUM_LANES else found


def is_refused(answer: Answer) -> bool:
    """Whether an answer says that the instance died which was executing its request."""
    if answer.status in TORCHSERVE_STATUSES and DIED_IN_TORCHSERVE in answer.body:
        return True
    return answer.status == 500 and any(each in answer.body for each in DIED)


def is_ahead(phase: Phase, kind: str, number: signal.Signals) -> bool:
    """Whether processes of this kind, which are spared for long after each blow, have had more of this signal than of
    the other in a storm of both: it is the other's turn."""
    other = STOPPED if number == KILLED else KILLED
    is_rare = VICTIMS[kind].pause_s >= RARE_S and phase.num_blows(other) > 0
    return is_rare and phase.blows[kind, number] > phase.blows[kind, other]


def model_of(worker: str) -> str:
    """The model of a worker with this title; nothing of one that has ended."""
    return worker.removeprefix("shoal worker ").partition(" ")[0].rpartition("_0_")[0]


def concerned(worker: str) -> tuple[str, ...]:
    """The models that a blow to the worker with this title concerns: its own, and those that call it."""
    model = model_of(worker)
    return (model, *CALLERS.get(model, ()))


@contextmanager
def storm_server(directory: Path) -> Iterator[Server]:
    """The server of a storm, with little memory and few descriptors; its files lie in this directory."""
    limits = MAX_DESCRIPTORS, MAX_DESCRIPTORS
    flags = [*FLAGS, f"--http-process-count={NUM_LANES}", "--grpc-process-count=1", "--grpc-port=0"]
    flags += [f"--model-execution-timeout-secs={EXECUTION_LIMIT_S}", "--models=all"]
    flags += [f"--model-store={write_store(directory / 'store', EXECUTION_LIMIT_S)}", *TORCHSERVE_FLAGS]
    with serving(write_models(directory / "models"), *flags, descriptors=limits) as server:
        yield server


def warm_up(storm: Storm, server: Server) -> list[object]:
    """What every process has once it has been at work. Without large payloads, whose memory is kept for a second."""
    small = [kind for kind in KINDS if kind.model not in ("large", POLLER)]
    asyncio.run(storm.phase(Phase("warm-up"), lasting(0.5), (), small))
    return footprint_at_rest(server)


async def _call_once(server: Server) -> None:
    (caller,) = [kind for kind in KINDS if kind.model == "caller"]
    connection = await caller.connect(server)
    answer = await connection.ask(0)
    assert answer.is_right, answer
    connection.close()


def footprint_at_rest(server: Server, expected: list[object] | None = None) -> list[object]:
    """What every process has, once all that was taken has been given back, and is as `expected`.

    It fails where that does not come. Soon after a storm a process may not yet have been told of the last new worker.
    """

    def is_at_rest(ledger: Ledger) -> bool:
        is_whole = len(ledger["processes"]) == NUM_PROCESSES and not imbalances(ledger)
        return is_whole and (expected is None or footprint(ledger) == expected)

    # A worker that the storm has stopped last is left alone by the server until a request is given to it.
    for pid in filter(is_stopped, descendants(server.process.pid)):
        os.kill(pid, signal.SIGCONT)
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
        wrong.append(f"{phase.name}: {phase.num_cut} connections cut, more than their front ends had")
    return wrong


def run(course: Course) -> None:
    """The long form: every kind of process, killed and stopped, and what is left."""
    with storm_server(course.directory) as server:
        storm = Storm(server, course.seed)
        before = warm_up(storm, server)
        phase = Phase("storm")
        asyncio.run(storm.phase(phase, lasting(course.pick(14, 1100)), EVERY_BLOW))
        wrong = judge(phase)
        print(phase.describe(), *wrong, *phase.faults, sep="\n", flush=True)
        if wrong:
            print(server.log.decode(errors="replace")[-20_000:])
        course.found("answers", phase.summary, wrong, is_met=not wrong)
        is_large = phase.num_blows(KILLED) >= 1000 <= phase.num_blows(STOPPED) and phase.num_asked >= 500_000
        is_each = all(phase.blows[blow] for blow in EVERY_BLOW)
        course.found(
            "number",
            f"{phase.num_blows(KILLED)} KILL, {phase.num_blows(STOPPED)} STOP, {phase.num_asked:,} requests; "
            f"{sum(bool(phase.blows[blow]) for blow in EVERY_BLOW)} of {len(EVERY_BLOW)} kinds of blows",
            is_met=is_each if course.is_short else is_large,
        )
        try:
            footprint_at_rest(server, before)
        except AssertionError as error:
            course.found("left", str(error)[:600], is_met=False)
            raise
        code = server.stop()
        course.found("left", f"nothing; the server then ended with {code}", is_met=code == 0)
        if code:
            print(server.log.decode()[-4000:])
