"""frontend/page/figures.py: what the page is told of models, and how often the counters are read for it."""

import json
from typing import Any

from shoal.frontend.page import figures
from shoal.frontend.state import ServerState
from shoal.shm.counters import CELL, CounterTable
from tests.frontend.conftest import dispatch


def look(state: ServerState, transport: Any) -> dict[str, Any]:
    state.has_page = True
    (body,) = dispatch(state, transport, "GET", "/ui/figures", {}, memoryview(b"")).chunks
    found: dict[str, Any] = json.loads(bytes(body))
    return found


def of(found: dict[str, Any], name: str, version: str | None) -> dict[str, Any]:
    (model,) = [each for each in found["models"] if (each["name"], each["version"]) == (name, version)]
    return dict(model)


def test_every_version_is_there_whatever_its_state_with_the_reason(state: ServerState, transport: Any) -> None:
    found = look(state, transport)
    entries = list(state.models.entries())
    assert len(found["models"]) == len(entries)
    broken = of(found, "broken", None)
    assert (broken["state"], bool(broken["reason"])) == ("UNAVAILABLE", True)
    assert of(found, "stream", "1")["is_decoupled"]
    assert found["server"]["name"] == "triton"


def test_the_counts_are_those_of_the_statistics(state: ServerState, transport: Any, counters: CounterTable) -> None:
    entry = next(each for each in state.models.entries() if each.name == "simple" and each.version == 3)
    row = counters.row(entry.row)
    row.cells[CELL["success_count"]] = 5
    row.histograms[0][20] += 5
    row.count_execution(4, 10, 700, 10)
    row.count_execution(1, 10, 300, 10)
    row.publish()
    model = of(look(state, transport), "simple", "3")
    assert model["cells"]["success_count"] == 5
    assert model["times"]["request"] == [[20, 5]]
    assert model["batches"] == [[4, 1, 700], [1, 1, 300]]


def test_many_pages_cost_one_reading_in_half_a_second(state: ServerState, transport: Any, monkeypatch: Any) -> None:
    times = iter([0, 499_999_999, 500_000_000, 999_999_999])
    monkeypatch.setattr("shoal.frontend.page.figures.time.monotonic_ns", lambda: 10**12 + next(times))
    calls: list[int] = []

    def read(_state: ServerState) -> bytes:
        calls.append(1)
        return b'{"models":[]}'

    monkeypatch.setattr(figures, "_read", read)
    for _ in range(4):
        look(state, transport)
    assert len(calls) == 2


def test_nothing_is_read_before_a_page_asks(state: ServerState, transport: Any) -> None:
    state.has_page = True
    dispatch(state, transport, "GET", "/", {}, memoryview(b""))
    assert state.page_figures is None


def test_a_name_that_is_no_unicode_is_told_in_escapes(state: ServerState, transport: Any, make_message: Any) -> None:
    state.models.apply(make_message("na\udcffme", 1, 9, None, state="UNAVAILABLE", reason="b\udcffd"))
    model = of(look(state, transport), "na\\udcffme", "1")
    assert model["reason"] == "b\\udcffd"
