"""scripts/bench --isolation: each situation on a server of its own, checkouts in turns, and the table."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.bench import print_line
from bench.errors import BenchmarkError
from bench.isolation.figures import Row, Situation, number, table, verdict
from bench.isolation.site import Checkout, serving

BEGIN, END = "<!-- isolation: written by scripts/bench --isolation --write -->\n", "<!-- isolation: end -->\n"


def measure(situations: Sequence[Situation], checkouts: Sequence[Checkout], num_rounds: int, folder: Path) -> list[Row]:
    """Measure all situations; returns a row for each situation and checkout. One that fails has a fault in its row, and
    the others are measured all the same."""
    rows = {(each, checkout): Row(each, checkout.title, []) for each in situations for checkout in checkouts}
    for round_number in range(num_rounds):
        print_line(f"== round {round_number + 1} of {num_rounds}")
        for situation in situations:
            # A B B A: no checkout is always the first.
            for checkout in checkouts if round_number % 2 == 0 else checkouts[::-1]:
                _visit(rows[situation, checkout], checkout, folder)
    return list(rows.values())


def _visit(row: Row, checkout: Checkout, folder: Path) -> None:
    situation = row.situation
    if row.fault:
        return
    with tempfile.TemporaryDirectory(prefix="site-", dir=folder) as own:
        try:
            with serving(checkout, Path(own), situation.models, situation.flags) as site:
                row.measures.append(situation.measure(site))
        except (BenchmarkError, OSError, ValueError) as error:
            row.fault = f"{type(error).__name__}: {error}"
    print_line(f"{situation.name:18} {row.server:12} {_brief(row)}")


def _brief(row: Row) -> str:
    if row.fault:
        return row.fault
    last = row.measures[-1]
    unit = row.situation.unit.value
    lost = f"{last.num_refused} refused, {last.num_failed} failed"
    sign = "> " if last.is_cut else ""
    return f"{number(last.quiet)} → {sign}{number(last.loaded)} {unit}, {lost}, met: {verdict(row)}  {last.note}"


def section(rows: Sequence[Row], machine: Sequence[str], num_rounds: int) -> str:
    """The table of isolation, with the conditions."""
    return f"{table(rows)}\nRounds: {num_rounds}. {'; '.join(machine)}.\n"


def put(document: str, text: str) -> str:
    """The document with this text between its two marks. Raises BenchmarkError where it has none."""
    found = re.search(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", document, re.DOTALL)
    if found is None:
        raise BenchmarkError("the document has no place for the table of isolation")
    return document[: found.start()] + f"\n{text.strip()}\n\n" + document[found.end() :]
