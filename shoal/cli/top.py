"""The verb `top`: figures of a running server's models, again and again: rates, batch sizes, where the time goes.

The figures are differences of Triton's statistics between two samples: any server of that protocol can be watched.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.cli import top_requests
from shoal.cli.cells import clipped
from shoal.cli.cells import width as width_of
from shoal.cli.colour import printable
from shoal.cli.models import LEAST_NAME, cut, table
from shoal.cli.operate import OperatingParser, operate, seconds
from shoal.cli.remote import RefusedError, RemoteServer, Row
from shoal.cli.request_arguments import count
from shoal.cli.top_requests import NUM_SHOWN
from shoal.cli.verb import EXIT_DONE, model_name

_DESCRIPTION = """\
Show what the models of a running server do, again and again until Ctrl-C. Per model and version: requests and failures
per second, rows in a batch, and the mean time of a request in the queue, in the model, and in all; of a Shoal server
the memory of the model's processes, and on GPUs. With --requests the slowest and the failed requests of the last five
minutes, with where the time of each went, and why it waited. A narrow terminal gets shorter heads and names, and only
the figures that it has room for."""

_EXAMPLES = """\
  shoal top
  shoal top digits
  shoal top --requests --model digits --count 1
  shoal top --interval 5 --url http://gpu-1:8000
  shoal top --count 1 --json | jq '.[] | select(.failures_per_s > 0)'    # one interval, then the end

Options of this verb:
  --interval <seconds>   between two samples (default: 1)
  --count <number>       end after so many intervals
  --requests             single requests of a Shoal server, for those who may administer it
  <model>                only this one; --model <name> is the same
"""


class _Column(NamedTuple):
    """A column of the table, with its head where a terminal is narrow."""

    head: str
    short: str
    rank: int = 0  # where a terminal is too narrow, columns of the highest rank are left out first; 0: never
    is_rare: bool = False  # is left out if no model has this figure, as on most servers


_COLUMNS = (
    _Column("MODEL", "MODEL"),
    _Column("VERSION", "VER"),
    _Column("REQUESTS/S", "REQ/S"),
    _Column("FAILED/S", "FAIL/S", 1),
    _Column("ROWS/BATCH", "ROWS", 3),
    _Column("QUEUE", "QUEUE", 2),
    _Column("COMPUTE", "COMPUTE", 4),
    _Column("TOTAL", "TOTAL"),
    _Column("CACHED", "CACHED", 6, is_rare=True),
    _Column("MEMORY", "MEMORY", 5, is_rare=True),
    _Column("GPUS", "GPUS", 7, is_rare=True),
)
_MIB = 1 << 20
#: Moves the cursor to the terminal's top left corner and clears all behind it.
_CLEAR = "\x1b[H\x1b[J"
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


class Figures(NamedTuple):
    """A model version's figures over an interval. Times are means in ms; None where there was no request to measure."""

    model: str
    version: str
    requests_per_s: float
    failures_per_s: float
    rows_per_batch: float | None
    queue_ms: float | None
    compute_ms: float | None
    total_ms: float | None
    cached_share: float | None  # the share of look-ups that the response cache answered; None without look-ups
    memory_mib: float | None = None  # of the version's processes, at the interval's end; None: not known
    gpu_memory_mib: float | None = None  # of the version's processes on all GPUs together


class StatisticsSample(NamedTuple):
    """The statistics of all versions at one time, in s of a monotonic clock."""

    time_s: float
    rows: Mapping[tuple[str, str], Row]  # by model and version
    memory: Mapping[tuple[str, str], Row] = {}  # of each version's processes, as far as the server says


def top(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print figures until Ctrl-C, or for --count intervals; returns the exit code."""
    parser = OperatingParser("top", "[<model>] [options]", _DESCRIPTION, _EXAMPLES, timeout_s=10)
    parser.add_argument("shown", nargs="?", type=model_name)
    parser.add_argument("--interval", type=seconds, default=1.0)
    parser.add_argument("--count", type=count)
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--model", type=model_name)

    def sample(server: RemoteServer, model: str) -> StatisticsSample:
        rows = {(row["name"], row["version"]): row for row in server.statistics() if model in ("", row["name"])}
        return StatisticsSample(clock(), rows, _memory(server, {name for name, _ in rows}))

    def watch(arguments: argparse.Namespace, server: RemoteServer) -> str:
        model = arguments.model or arguments.shown or ""
        earlier, num_left = None if arguments.requests else sample(server, model), arguments.count
        if earlier is not None and model and not earlier.rows:  # later, a model may be away while it is loaded anew
            raise RefusedError(404, f"No version of model '{model}' is ready. 'shoal models' says why.")
        while True:
            is_terminal = sys.stdout.isatty() and not arguments.json
            columns, lines = shutil.get_terminal_size() if is_terminal else (None, 0)
            if earlier is None:
                told = server.finished_requests(model, NUM_SHOWN)
                shown = json.dumps(told) if arguments.json else top_requests.as_text(told, columns or sys.maxsize)
            else:
                sleep(arguments.interval)
                later = sample(server, model)
                figures = compare(earlier, later)
                shown = (
                    json.dumps([each._asdict() for each in figures]) if arguments.json else as_text(figures, columns)
                )
                earlier = later
            if num_left is not None and (num_left := num_left - 1) == 0:
                return shown
            if columns is not None:
                shown = _CLEAR + fitted(shown, columns, lines)
            print(shown, flush=True)
            if earlier is None:
                sleep(arguments.interval)

    try:
        return operate(parser, argv, environ, watch)
    except KeyboardInterrupt:
        return EXIT_DONE


def fitted(text: str, columns: int, rows: int) -> str:
    """The text as far as a terminal shows it: the ends of long lines are left out, and of lines beyond the last row all
    but their number. Pure."""
    lines = text.splitlines()
    if len(lines) >= rows > 1:  # the cursor takes the last row
        lines[rows - 2 :] = [f"… and {len(lines) - (rows - 2)} lines more"]
    return "\n".join(clipped(line, columns) for line in lines)


def compare(earlier: StatisticsSample, later: StatisticsSample) -> list[Figures]:
    """The figures of the interval between two samples, busiest first; a version that was loaded in it counts from zero.

    Pure. A version whose counters went back was loaded again, and counts from zero, too.
    """
    interval_s = max(later.time_s - earlier.time_s, 1e-9)
    found = [
        _with_memory(_figures(row, earlier.rows.get(key), interval_s), later.memory.get(key, {}))
        for key, row in later.rows.items()
    ]
    return sorted(found, key=lambda each: (-each.requests_per_s, each.model, each.version))


def _memory(server: RemoteServer, models: Iterable[str]) -> dict[tuple[str, str], Row]:
    """By model and version, the rows of /instances; none from a server without that endpoint, such as Triton."""
    found = {}
    try:
        for model in models:
            found.update({(model, each["version"]): each for each in server.instances(model)["versions"]})
    except RefusedError:
        pass  # a server without /instances, or a model that was unloaded meanwhile: the next sample has the others
    return found


def _with_memory(figures: Figures, version: Row) -> Figures:
    host, gpus = version.get("memory_bytes"), version.get("gpu_memory_bytes")
    return figures._replace(
        memory_mib=host / _MIB if host else None, gpu_memory_mib=sum(gpus.values()) / _MIB if gpus else None
    )


def _figures(row: Row, before: Row | None, interval_s: float) -> Figures:
    if before is None or before["inference_stats"]["success"]["count"] > row["inference_stats"]["success"]["count"]:
        before = None

    def grown(part: str, key: str) -> int:
        stats = row["inference_stats"].get(part, {})
        was = before["inference_stats"].get(part, {}) if before is not None else {}
        return int(stats.get(key, 0)) - int(was.get(key, 0))

    def mean_ms(*parts: str) -> float | None:
        counts = [grown(part, "count") for part in parts]
        return sum(grown(part, "ns") for part in parts) / max(counts) / 1e6 if max(counts) > 0 else None

    rows, batches = (
        int(row[key]) - (int(before[key]) if before is not None else 0)
        for key in ("inference_count", "execution_count")
    )
    hits, misses = grown("cache_hit", "count"), grown("cache_miss", "count")
    return Figures(
        row["name"],
        row["version"],
        grown("success", "count") / interval_s,
        grown("fail", "count") / interval_s,
        rows / batches if batches > 0 else None,
        mean_ms("queue"),
        mean_ms(*_COMPUTE),
        mean_ms("success"),
        hits / (hits + misses) if hits + misses > 0 else None,
    )


def as_text(figures: Sequence[Figures], columns: int | None = None) -> str:
    """A table of the figures, in a terminal of so many columns. A table that would be wider has short heads, leaves out
    the rare figures that no model has, then those of the lowest rank until names have LEAST_NAME cells, and cuts
    longer names."""
    if not figures:
        return "The server has no models that are ready."
    cells = [_cells(each) for each in figures]
    text = table([column.head for column in _COLUMNS], cells)
    if columns is None or max(map(width_of, text.splitlines())) <= columns:
        return text
    names = [printable(each.model) for each in figures]
    short = [[column.short for column in _COLUMNS], *([cell.replace(" ", "") for cell in row] for row in cells)]
    widths = [max(map(width_of, each)) for each in zip(*short, strict=True)]
    shown = [
        at for at, column in enumerate(_COLUMNS) if at and (not column.is_rare or any(row[at] != "-" for row in cells))
    ]

    def room() -> int:
        return columns - sum([2 + widths[at] for at in shown])

    least = min(LEAST_NAME, max(map(width_of, [_COLUMNS[0].short, *names])))
    for at in sorted([at for at in shown if _COLUMNS[at].rank], key=lambda at: -_COLUMNS[at].rank):
        if room() < least:
            shown.remove(at)
    width = max(room(), least)
    rows = [[name, *(row[at] for at in shown)] for name, row in zip(["MODEL", *names], short, strict=True)]
    return table(rows[0], [[cut(name, width), *row] for name, *row in rows[1:]])


def _cells(figures: Figures) -> list[str]:
    times = [_or_dash(each, "{:.2f} ms") for each in (figures.queue_ms, figures.compute_ms, figures.total_ms)]
    return [
        figures.model,
        figures.version,
        f"{figures.requests_per_s:.1f}",
        f"{figures.failures_per_s:.1f}",
        _or_dash(figures.rows_per_batch, "{:.1f}"),
        *times,
        _or_dash(figures.cached_share, "{:.0%}"),
        _or_dash(figures.memory_mib, "{:.0f} MiB"),
        _or_dash(figures.gpu_memory_mib, "{:.0f} MiB"),
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
