"""The chapter of docs/benchmarks.md on TorchServe: workloads, targets, and times of servers that are alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import targets, torchserve_peers
from bench.bench import Bench, check_answer, print_line
from bench.document import Conditions, figures
from bench.errors import BenchmarkError
from bench.peers import Peer
from bench.results import Row
from bench.table import MIB, OURS, head, line
from bench.targets import Target
from bench.torchserve_peers import SHOAL, TORCHSERVE
from bench.worker_deaths import Moments, moments
from bench.workloads import DOUBLED, NOOP, Workload

TEXT = """\
## Shoal beside TorchServe

Written by `scripts/bench --peer torchserve --write`. Shoal's command `torchserve` and TorchServe's, with the same
archives and the same `config.properties`. {rounds} rounds of {seconds} s for each server, which are both up and take
turns of half a second; the tables show medians. A target is met where all rounds meet it.

{targets}
{summary}
Each server alone on the machine, with the archive that does nothing, {num_starts} starts of each; of kills, the median
of each start's:

{moments}{by_process}
### Conditions

{machine}
- The load generator ({generator}, one thread) runs on the same cores and takes its part of them. All requests of a
  workload have the same bytes, as programs that use TorchServe send one head again and again.
- Each server has one worker, is started anew for every archive in every round, and is loaded for {warm_up_s:.0f} s
  before it is timed, in which a Java virtual machine compiles what it runs often. Its answer is checked before the load
  and after it, to the bit.
- *first answer*: from exec to the first right answer, files in the page cache. *back*: from SIGKILL of the worker,
  while no request is executed, to the next answer with status 200; a client asks without a pause. *worker*: memory of
  the worker's process after an answer, resident and, in parentheses, with shared pages counted by their share.
- What a column says is explained in the first chapter.
- {others}

{peers}

### Every figure, TorchServe

{details}"""

_WARM_UP_SLICES = 12
_TITLES = {NOOP: "an archive that does nothing, 16 connections", DOUBLED: "16 floats doubled, JSON, 16 connections"}
WORKLOADS = (
    Workload("ts-noop-c16", _TITLES[NOOP], NOOP, "body", 16, repeats=True, warm_up_slices=_WARM_UP_SLICES),
    Workload("ts-doubled-c16", _TITLES[DOUBLED], DOUBLED, "json", 16, repeats=True, warm_up_slices=_WARM_UP_SLICES),
)
PEERS = (SHOAL, TORCHSERVE)
#: Kills of the worker for each start: TorchServe waits a second before it starts another.
NUM_KILLS = {OURS: 7, TORCHSERVE.name: 3}

TARGETS = (
    Target("ts-noop-c16", "requests/s", lambda sample: sample.requests_per_s, 8),
    Target("ts-noop-c16", "CPU µs/request", lambda sample: sample.cpu_us, 0.2, is_most=True),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that a figure of Shoal's moments must not exceed."""

    title: str
    figure: Callable[[Moments], float]
    most: float
    unit: str
    shown: Callable[[Moments], str]


def _back(each: Moments) -> str:
    low, high = 1000 * min(each.backs_s), 1000 * max(each.backs_s)
    return f"{1000 * each.back_s:,.0f} ms ({low:,.0f}–{high:,.0f})"


def _memory(each: Moments) -> str:
    return f"{each.worker_rss_bytes / MIB:,.0f} ({each.worker_pss_bytes / MIB:,.0f}) MiB"


LIMITS = (
    Limit("first answer", lambda each: each.first_answer_s, 2, "s", lambda each: f"{each.first_answer_s:.2f} s"),
    Limit("a crashed worker is back", lambda each: 1000 * each.back_s, 100, "ms", _back),
    Limit("worker", lambda each: each.worker_rss_bytes / MIB, 30, "MiB", _memory),
)


def measure_moments(bench: Bench, num_starts: int, folder: Path) -> dict[str, list[Moments]]:
    """The moments of each server, started `num_starts` times, in turns; a server with a fault has those before it."""
    found: dict[str, list[Moments]] = {peer.name: [] for peer in PEERS}
    for _ in range(num_starts):
        for peer in PEERS:
            try:
                found[peer.name].append(_moments(bench, peer, folder))
            except (BenchmarkError, OSError) as error:
                print_line(f"{'moments':16} {peer.name:12} {error}")
            else:
                last = found[peer.name][-1]
                said = ", ".join(f"{each.title} {each.shown(last)}" for each in LIMITS)
                print_line(f"{'moments':16} {peer.name:12} {said}")
    return found


def _moments(bench: Bench, peer: Peer, folder: Path) -> Moments:
    request = peer.request(NOOP, "body")
    server = peer.launch(folder, NOOP, "body")
    server.start()
    try:
        first_s = server.wait_for_answer(request, partial(check_answer, peer, NOOP), bench.generator.ask)
        ask_pid = partial(torchserve_peers.worker_pid, server.port, NOOP)
        return moments(server, first_s, request, ask_pid, NUM_KILLS[peer.name])
    finally:
        server.stop()


def markdown(rows: Sequence[Row], found: Mapping[str, Sequence[Moments]], where: Conditions) -> str:
    """The chapter, as Markdown."""
    return TEXT.format(
        **figures(rows, where),
        targets=targets.table(TARGETS, rows, TORCHSERVE),
        moments=moments_table(found),
        num_starts=max(map(len, found.values()), default=0),
        warm_up_s=_WARM_UP_SLICES * WORKLOADS[0].slice_s,
    )


def moments_table(found: Mapping[str, Sequence[Moments]]) -> str:
    """A table with a line per limit: the median start of each server, and whether every one of Shoal's keeps it."""
    lines = head(["", *(peer.title for peer in PEERS), "wanted", "met"])
    for limit in LIMITS:
        cells = []
        for peer in PEERS:
            every = sorted(found.get(peer.name, ()), key=limit.figure)
            cells.append(limit.shown(every[len(every) // 2]) if every else "–")
        kept = [limit.figure(each) <= limit.most for each in found.get(OURS, ())]
        lines.append(line([limit.title, *cells, f"≤ {limit.most:g} {limit.unit}", targets.verdict(kept)]))
    return "\n".join(lines) + "\n"
