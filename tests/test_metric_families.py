"""shoal/metric_families.py: names that are unique, Shoal's by Prometheus's conventions, all of them documented."""

import re
from pathlib import Path

from shoal import metric_families as families
from shoal.shm.counters import CELLS
from shoal.shm.windows import PHASES

DOCUMENTATION = Path(__file__).parents[1] / "docs" / "metrics.md"


def test_every_family_is_there_once() -> None:
    names = [family.name for family in families.ALL]
    assert sorted(names) == sorted(set(names))
    assert all(re.fullmatch(r"(nv|shoal)_[a-z0-9_]+", name) for name in names)


def test_what_is_counted_is_a_cell_and_what_is_timed_a_phase() -> None:
    counted = [*families.COUNTERS, *families.DURATIONS, *families.MODEL_CACHE, families.PENDING]
    timed = [*families.SUMMARIES, *families.HISTOGRAMS]
    cells = {*(each.cell for each in counted), *(each.cell for each in timed), *families.FAILURE_CELLS.values()}
    assert cells <= set(CELLS)
    assert [each.phase for each in timed] == [*PHASES, *PHASES]


def test_shoals_own_follow_the_conventions() -> None:
    for family in families.ALL:
        if family.name.startswith("shoal_"):
            assert family.name.endswith("_total") == (family.kind == "counter"), family
            assert not re.search(r"_(ms|us|ns|count|sum|bucket)$", family.name), family


def test_the_documentation_lists_them_all() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \| (.*) \|$", DOCUMENTATION.read_text(), re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert sorted(listed) == sorted(families.ALL)
