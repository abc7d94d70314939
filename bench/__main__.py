"""scripts/bench: measures Shoal and its peers side by side, in alternating rounds, and prints the tables."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Protocol, TypeVar

from bench import flat, grpc_chapter, instructions, torchserve_chapter
from bench.bench import Bench, print_line
from bench.comparisons import COMPARISONS, WORKLOAD, Comparison
from bench.document import conditions, markdown, put
from bench.errors import BenchmarkError
from bench.grpc_load import H2load
from bench.isolation import chapter
from bench.isolation.site import Checkout
from bench.isolation.situations import SITUATIONS
from bench.load import Wrk
from bench.peers import COMPILED_PYTHON, PEERS, ROOT, Peer, shoal_build
from bench.picture import svg
from bench.results import Row
from bench.table import details, summaries
from bench.workloads import WORKLOADS, Workload

DOCUMENT = ROOT / "docs" / "benchmarks.md"
ISOLATION_DOCUMENT = ROOT / "docs" / "performance.md"

HELP = """\
Measures Shoal, Triton, mosec and Flask with the same models under the same load, one server at a time, in slices of
half a second A B C D D C B A …, and prints medians as Markdown; those of ratios are of neighbouring slices, with the
quartiles. Every server's answer is checked before it is timed.
With --grpc: Shoal and Triton over gRPC, in the same way. With --peer torchserve: TorchServe and Shoal's command
`torchserve` with the same archives, their starts, and how soon a killed worker is back.
With --flat: Shoal beside itself, whether an ordinary request stays as cheap and as quick beside 1,000 connections, 200
models, 8 instances, stalled clients and large bodies.
With --isolation: whether a model that has little to do is answered as ever beside what others do to a server: slow
models with long queues, clients that do not read, processes that die while users' code executes. Each situation has a
server of its own; --beside PATH measures another working tree of Shoal (with its .venv) in turns with this one. All of
them take three to four minutes for each tree and round.

  scripts/bench --quick                        a first impression, in less than a minute
  scripts/bench --peer shoal --workload 'mlp*' what a change to Shoal did to one workload
  scripts/bench --grpc --peer shoal            what a change to Shoal did to gRPC
  scripts/bench --peer torchserve --write      everything about TorchServe, into docs/benchmarks.md; four minutes
  scripts/bench --flat models instances        what 200 models or 8 instances cost
  scripts/bench --isolation 'takeover*'        what a batcher's death costs an idle model
  scripts/bench --isolation --beside ../before --write   before and after, into docs/performance.md
  scripts/bench --write                        everything about the peers, into docs/benchmarks.md and its picture
  scripts/_compiled && scripts/bench --write   the same with the compiled build as one server more
  scripts/bench --grpc --write                 everything about gRPC, into docs/benchmarks.md
  scripts/bench --flat --write                 everything about Shoal alone, into docs/benchmarks.md; five minutes

Load comes from wrk, over gRPC from h2load, on the same machine (apt install wrk nghttp2-client): close other programs,
and compare only figures of one run. CPU µs per request, over all processes of a server, is a figure that a busy machine
disturbs little; instructions per request, where perf is installed (apt install linux-perf), are disturbed least.
"""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "scripts/bench",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n\n".join(
            [
                _listing("Workloads", WORKLOADS),
                _listing("Workloads of --grpc", grpc_chapter.WORKLOADS),
                _listing("Workloads of --peer torchserve", torchserve_chapter.WORKLOADS),
                _listing("Comparisons of --flat", COMPARISONS),
                _listing("Situations of --isolation", SITUATIONS),
            ]
        ),
    )
    names = [*{each.name: each for each in (*PEERS, *grpc_chapter.PEERS, *torchserve_chapter.PEERS)}]
    parser.add_argument("--workload", action="append", metavar="NAME", help="name or pattern; repeat it (default: all)")
    parser.add_argument("--peer", action="append", choices=names, help="repeat it for several (default: all)")
    parser.add_argument("--grpc", action="store_true", help="the workloads over gRPC, with their servers")
    parser.add_argument(
        "--flat", nargs="*", metavar="NAME", help="Shoal beside itself: all comparisons, or these names or patterns"
    )
    parser.add_argument(
        "--isolation", nargs="*", metavar="NAME", help="an idle model beside others: all situations, or these names"
    )
    parser.add_argument("--beside", type=Path, metavar="PATH", help="with --isolation: another checkout, measured too")
    parser.add_argument("--seconds", type=int, default=4, help="of load per workload, server and round (default: 4)")
    parser.add_argument("--rounds", type=int, help="of which the median counts (default: 3; with --isolation: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="one round of one second; of the peers three workloads without Flask"
    )
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md or performance.md")
    options = parser.parse_args(arguments)
    if options.flat is not None and (options.workload or options.peer or options.grpc):
        parser.error("--flat has comparisons of its own: it goes without --workload, --peer and --grpc")
    alone = (options.workload, options.peer, options.grpc, options.flat is not None, options.quick)
    if options.isolation is not None and any(alone):
        parser.error("--isolation has situations of its own: it goes with --beside, --rounds and --write alone")
    if options.beside is not None and options.isolation is None:
        parser.error("--beside goes with --isolation")
    options.torchserve = "torchserve" in (options.peer or ())
    if options.torchserve and (options.grpc or len(options.peer) > 1):
        parser.error("--peer torchserve is a comparison of its own, with Shoal: it goes without --grpc and other peers")
    if options.rounds is None:
        options.rounds = 3 if options.isolation is None else 1
    if options.quick:
        options.workload = options.workload or (
            ["grpc-c16"] if options.grpc else ["ts-*"] if options.torchserve else ["json-c10", "mlp-c64", "image-c8"]
        )
        options.peer = options.peer or ["shoal", "triton", "mosec"]
        options.rounds = options.seconds = 1
    every: Sequence[Workload] = grpc_chapter.WORKLOADS if options.grpc else WORKLOADS
    peers: Sequence[Peer] = grpc_chapter.PEERS if options.grpc else PEERS
    if options.torchserve:
        every, peers, options.peer = torchserve_chapter.WORKLOADS, torchserve_chapter.PEERS, None
    options.workloads = _chosen(parser, "workload", every, options.workload)
    options.situations = _chosen(parser, "situation", SITUATIONS, options.isolation)
    options.comparisons = _chosen(parser, "comparison", COMPARISONS, options.flat)
    has_compiled = COMPILED_PYTHON.exists()
    if "compiled" in (options.peer or ()) and not has_compiled:
        parser.error("there is no compiled build to measure yet: run scripts/_compiled")
    chosen = options.peer or [peer.name for peer in peers if has_compiled or peer.name != "compiled"]
    options.peers = [peer for peer in peers if peer.name in chosen]
    if options.seconds < 1 or options.rounds < 1:
        parser.error("--seconds and --rounds are at least 1")
    return options


class Named(Protocol):
    """A peer, workload or situation that can be chosen on the command line."""

    @property
    def name(self) -> str:
        """The word that chooses it on the command line."""
        ...

    @property
    def title(self) -> str:
        """The description in --help."""
        ...


N = TypeVar("N", bound=Named)


def _chosen(parser: argparse.ArgumentParser, kind: str, every: Sequence[N], patterns: Sequence[str] | None) -> list[N]:
    for pattern in patterns or ():
        if not any(fnmatchcase(each.name, pattern) for each in every):
            parser.error(f"no {kind} is called '{pattern}'; there are {', '.join(each.name for each in every)}")
    return [each for each in every if any(fnmatchcase(each.name, pattern) for pattern in patterns or ["*"])]


def _listing(title: str, every: Sequence[Named]) -> str:
    return f"{title}:\n" + "\n".join(f"  {each.name:16} {each.title}" for each in every)


def measure_peers(bench: Bench, options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure the chapter on Shoal and its peers, over HTTP or gRPC, or the one on TorchServe; returns its rows."""
    workloads: list[Workload] = options.workloads
    peers: list[Peer] = options.peers
    rows = {
        (peer, each): Row(peer, each, [])
        for each in workloads
        for peer in peers
        if peer.can_serve(each.model, each.encoding) and (not options.grpc or grpc_chapter.is_measured(peer, each))
    }
    # Servers are started once for all workloads with the same model.
    groups = [list(group) for _, group in groupby(workloads, lambda each: (each.model, each.encoding))]
    visits = [[rows[peer, each] for each in group for peer in peers if (peer, each) in rows] for group in groups]
    _repeat(bench, options.rounds, visits)
    every = list(rows.values())
    where = conditions(bench.generator.title, options.seconds, options.rounds, peers, bench.versions)
    if options.torchserve:
        found = torchserve_chapter.measure_moments(bench, options.rounds, folder)
        if options.write:
            _write("torchserve", torchserve_chapter.markdown(every, found, where))
        print(torchserve_chapter.moments_table(found))
    elif options.write:
        if options.grpc:
            _write("grpc", grpc_chapter.markdown(every, where))
        else:
            _write("others", markdown(every, where))
            DOCUMENT.with_suffix(".svg").write_text(svg(every))
    if options.grpc:
        print(grpc_chapter.targets(every), grpc_chapter.streams(every), sep="\n")
    print(summaries(every), details(every), sep="\n")
    return every


def measure_flatness(bench: Bench, options: argparse.Namespace, _folder: Path) -> list[Row]:
    """Measure the chapter that compares Shoal with itself; returns its rows."""
    comparisons: list[Comparison] = options.comparisons
    pairs = {each: (Row(each.plain, WORKLOAD, []), Row(each.other, WORKLOAD, [])) for each in comparisons}
    every = [row for pair in pairs.values() for row in pair]
    _repeat(bench, options.rounds, [[row] for row in every])
    if options.write:
        where = conditions(bench.generator.title, options.seconds, options.rounds, [every[0].peer], bench.versions)
        _write("itself", flat.markdown(pairs, where))
    print(flat.summary(pairs), flat.details(pairs), sep="\n")
    return every


def measure_isolation(options: argparse.Namespace) -> int:
    """Measure the chapter on an idle model; returns 1 where a situation could not be measured."""
    checkouts = [Checkout.at(folder) for folder in (options.beside, ROOT) if folder is not None]
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        rows = chapter.measure(options.situations, checkouts, options.rounds, Path(folder))
    builds = [f"{each.title}: {shoal_build(each.folder / '.venv' / 'bin' / 'python')}" for each in checkouts]
    text = chapter.section(rows, [*conditions("", 0, 0, [], {}).machine, *builds], options.rounds)
    print(text)
    if options.write:
        ISOLATION_DOCUMENT.write_text(chapter.put(ISOLATION_DOCUMENT.read_text(), text))
    return int(any(row.fault for row in rows))


def _repeat(bench: Bench, num_rounds: int, visits: Sequence[Sequence[Row]]) -> None:
    for number in range(num_rounds):
        print_line(f"== round {number + 1} of {num_rounds}, {time.strftime('%H:%M:%S')}")
        for rows in visits:
            bench.visit(rows)


def _write(chapter: str, text: str) -> None:
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(put(DOCUMENT.read_text() if DOCUMENT.exists() else "", chapter, text))


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; returns 1 where a server could not be measured."""
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped before the exit
    if options.isolation is not None:
        return measure_isolation(options)
    run = measure_peers if options.flat is None else measure_flatness
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        generator = H2load() if options.grpc else Wrk()
        rows = run(Bench(generator, instructions.find_perf(), Path(folder), options.seconds), options, Path(folder))
    return int(any(row.fault or row.median.errors for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        sys.exit(f"scripts/bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
