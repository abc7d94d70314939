"""A check of the promises of docs/reliability.md on the running system, row by row.

Each row is a process of its own with a time limit, and its lines are printed as it ends; a row that fails or hangs
stops no other. The exit status is 1 where a fact is not as promised; times and shares, which another load on the
machine may spoil, are only reported. The whole form writes the table of docs/reliability.md.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from scripts import row_process
from tests.reliability import table
from tests.reliability.row import RESULT, Course, Kind, Row
from tests.reliability.rows import ROWS
from tests.reliability.table import Measured

#: Lines of the output of a row that are printed where it has not handed over everything, or a fact is not met.
SHOWN = 30


def main(argv: Sequence[str]) -> int:
    """Run the rows; returns 0 where every fact is as promised, 1 where one is not, 2 for a row that is not there."""
    given = parser().parse_args(argv)
    names = {row.name: row for row in ROWS}
    if unknown := {*given.only, *filter(None, [given.row])} - set(names):
        print(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    if given.row:
        return run_row(names[given.row], given)
    with tempfile.TemporaryDirectory(prefix="reliability-") as directory:
        logs = Path(given.logs or directory)
        logs.mkdir(parents=True, exist_ok=True)
        return check([row for row in ROWS if row.name in (given.only or names)], logs, given)


def parser() -> argparse.ArgumentParser:
    """The command's flags, and that of a row's process."""
    found = argparse.ArgumentParser(prog="scripts/reliability", description=__doc__)
    found.add_argument("--short", action="store_true", help="minutes instead of an hour: everything, but less often")
    found.add_argument("--part", type=float, default=1.0, help="of the whole form, 0.1 for six minutes (default: 1)")
    found.add_argument("--only", action="append", default=[], metavar="ROW", help="run this row; may be repeated")
    found.add_argument("--seed", type=int, default=1, help="of all that is drawn by chance (default: 1)")
    found.add_argument("--logs", metavar="DIR", help="keep the output of each row here")
    found.add_argument("--write", action="store_true", help="write docs/reliability.md after the short form, too")
    found.add_argument("--row", help=argparse.SUPPRESS)
    return found


def check(rows: Sequence[Row], logs: Path, given: argparse.Namespace) -> int:
    """Run the rows one after the other, print and perhaps write their table; returns the exit code."""
    found: dict[tuple[str, str], Measured] = {}
    print(f"{table.machine()}; load of the machine: {os.getloadavg()[0]:.1f}\n\n{table.HEAD}", flush=True)
    for row in rows:
        start_s = time.monotonic()
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        measured = run(row, logs / f"{row.name}.log", given)
        took = f"{time.monotonic() - start_s:.0f} s"
        when = table.when("short" if given.short else f"{given.part:.0%}")
        for key, line in row.lines.items():
            found[row.name, key] = measured[key]._replace(when=when)
            word = table.word(measured[key], line.kind)
            print(table.cells(line.what, line.bar, measured[key].figure, word, took), flush=True)
    if given.write or not given.short:
        page = table.PAGE.read_text()
        table.PAGE.write_text(table.written(page, ROWS, found))
    is_wrong = [key for row in rows for key in row.lines if is_failure(row, key, found[row.name, key])]
    return int(bool(is_wrong))


def is_failure(row: Row, key: str, measured: Measured) -> bool:
    """Whether the check fails for this: a fact that is not met, or any line that its row has not handed over."""
    return measured.is_met is None or (row.lines[key].kind is Kind.FACT and not measured.is_met)


def run(row: Row, log: Path, given: argparse.Namespace) -> dict[str, Measured]:
    """What a row's process has handed over, by line."""
    limit_s = row.short_s if given.short else max(row.short_s, 60 + row.whole_s * given.part)
    command = [
        sys.executable,
        "-m",
        "tests.reliability",
        "--row",
        row.name,
        f"--seed={given.seed}",
        f"--part={given.part}",
    ]
    command += ["--short"] * given.short
    code, lines = row_process.run(command, log, limit_s)
    results = [json.loads(line.removeprefix(RESULT)) for line in lines if line.startswith(RESULT)]
    how = f"it was not done after {limit_s:.0f} s" if code is None else f"its process ended with {code}"
    found = {key: Measured(figure, is_met) for key, figure, is_met in results}
    found = {key: found.get(key, Measured(f"not measured: {how}", None)) for key in row.lines}
    if any(is_failure(row, key, each) for key, each in found.items()):
        print(f"--- the last lines of row {row.name}:", *lines[-SHOWN:], "---", sep="\n", file=sys.stderr, flush=True)
    return found


def run_row(row: Row, given: argparse.Namespace) -> int:
    """Run a row in this process; returns 0 unless it raises."""
    module, _, function = row.function.partition(":")
    with tempfile.TemporaryDirectory(prefix=f"reliability-{row.name}-") as directory:
        try:
            getattr(importlib.import_module(f"tests.reliability.{module}"), function)(
                Course(Path(directory), given.short, given.seed, given.part)
            )
        except Exception:  # noqa: BLE001 - whatever it is, the row's log says it and the other rows go on
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
