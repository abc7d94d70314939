"""Arguments, windows, stability, ratios, the table, and the pictures of `shoal bench`."""

import argparse
import xml.etree.ElementTree as ET
from array import array
from collections import Counter

import pytest

from shoal.cli.bench import arguments, report
from shoal.cli.bench.measurement import Level, Measured, is_stable, ratios
from shoal.cli.bench.picture import Series, sparkline, svg
from shoal.cli.bench.window import Window, merged
from shoal.cli.top import Figures

MS = 1_000_000
SERVER = Figures("m", "1", 100, 0, 2.0, 0.5, 1.5, 2.0, None)


def window(per_s: int, latency_ms: float, errors: int = 0, busy: float = 0.1) -> Window:
    """A second in which all requests took equally long."""
    idle_ns = round(1000 * MS * (1 - busy))
    counted = Counter({"no": errors} if errors else {})
    return Window(1000 * MS, array("Q", [round(latency_ms * MS)] * per_s), counted, idle_ns, 10 * MS)


def measured(*windows: Window, level: Level | None = None, **more: object) -> Measured:
    found = Measured(level or Level(4), list(windows), SERVER, is_stable=True)
    for name, value in more.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("text", "levels"),
    [("8", [8]), ("1:5", [1, 2, 4, 5]), ("1:64", [1, 2, 4, 8, 16, 32, 64]), ("3:3", [3]), ("8:32:8", [8, 16, 24, 32])],
)  # fmt: skip
def test_levels_of_concurrency(text: str, levels: list[int]) -> None:
    assert arguments.concurrencies(text) == levels


def test_levels_of_rate() -> None:
    assert arguments.rates("0.5") == [0.5]
    assert arguments.rates("100:300:100") == [100, 200, 300]


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (arguments.concurrencies, "0", "expected requests at a time"),
        (arguments.concurrencies, "1:2:3:4", "expected requests at a time"),
        (arguments.concurrencies, "8:1", "ends below its beginning"),
        (arguments.concurrencies, "1:1000:1", "more than 100 levels"),
        (arguments.rates, "fast", "expected requests a second"),
        (arguments.rates, "1:2", "expected requests a second"),
        (arguments.rates, "1:1e8:1", "more than 100 levels"),
        (arguments.shape, "1,2", "expected <input>"),
        (arguments.shape, "x:1,-1", "expected <input>"),
        (arguments.percent, "0", "expected a percentage"),
        (arguments.goal, "p99=20", "a goal is p99=20ms"),
        (arguments.goal, "p99=0ms", "a goal is p99=20ms"),
        (arguments.goal, "p100=1ms", "a goal is p99=20ms"),
        (arguments.latency_goal, "throughput=5", "a latency is wanted"),
    ],
)
def test_what_cannot_be_understood(parse: object, text: str, words: str) -> None:
    assert callable(parse)
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        parse(text)


def test_a_shape_names_its_input() -> None:
    assert arguments.shape("a:b:1,3,224") == ("a:b", (1, 3, 224))


def test_goals() -> None:
    whole = merged([window(90, 10), window(10, 30)])
    assert arguments.goal("p90=10ms").is_met(whole)
    assert not arguments.goal("p91=10ms").is_met(whole)
    assert arguments.goal("p99.9=0.03s").is_met(whole)
    assert arguments.goal("p50=10000us").is_met(whole)
    assert arguments.goal("throughput=50").is_met(whole)
    assert not arguments.goal("throughput=51").is_met(whole)
    assert not arguments.goal("p50=1s").is_met(Window(1000 * MS))  # nothing was answered


def test_percentiles_are_of_the_nearest_rank() -> None:
    some = Window(1000 * MS, array("Q", [each * MS for each in range(1, 101)]))
    assert [some.percentile_ms(each) for each in (0, 1, 50, 99, 99.5, 100)] == [1, 1, 50, 99, 100, 100]
    assert Window().percentile_ms(50) is None


def test_three_windows_agree_in_throughput_and_median() -> None:
    assert not is_stable([window(100, 5)] * 2, 10)
    assert is_stable([window(50, 9), window(100, 5), window(105, 5), window(95, 5)], 10)
    assert not is_stable([window(100, 5), window(100, 5), window(130, 5)], 10)
    assert not is_stable([window(100, 5), window(100, 5), window(100, 9)], 10)
    assert not is_stable([window(0, 0)] * 3, 10)  # nothing was answered


def test_ratios_are_medians_over_turns() -> None:
    first = measured(window(100, 10), window(50, 20), window(100, 10))
    second = measured(window(200, 5), window(100, 10), window(90, 50))
    shares = ratios(first, second, [50, 99])
    assert (shares.throughput, shares.latency) == (2.0, {50: 0.5, 99: 0.5})


def test_the_table_has_the_servers_share_and_notes_what_a_reader_must_know() -> None:
    found = [
        measured(window(100, 5)),
        measured(window(200, 250.4, errors=3, busy=0.97), level=Level(256, 500.0), is_stable=False, num_waiting=7),
    ]
    lines = report.as_text(found, 1).splitlines()
    assert lines[0].split() == report._HEAD
    row = " ".join(lines[1].split())
    assert row == "4 at once 100.0 5.00 ms 5.00 ms 5.00 ms 5.00 ms 0.500 ms 1.50 ms 2.0 10% busy 0"
    assert "250 ms" in lines[2]
    assert lines[4] == "requests/s ▅█   p99 ▁█"
    notes = "\n".join(lines[5:])
    assert "500/s Poisson: not known to be stable: that takes 3 --windows that agree." in notes
    assert "the client was the bottleneck: 97% busy, 49.3 µs of CPU a request, so it asks at most 20,300/s" in notes
    assert "7 requests were due and waited for a connection" in notes
    assert "500/s Poisson: 3 errors: no" in notes
    assert "4 at once:" not in notes


def test_windows_that_differ_are_told_apart_from_too_few() -> None:
    differing = [window(100, 5), window(200, 5), window(400, 5)]
    (note,) = report.notes(measured(*differing, is_stable=False))
    assert note == "4 at once: not stable: the last windows differ, in throughput or p50, by more than --stability."
    (note,) = report.notes(measured(*differing[:2], is_stable=False))
    assert note == "4 at once: not known to be stable: that takes 3 --windows that agree."


def test_the_goal_is_met_by_the_fastest_level_that_meets_it() -> None:
    goals = [arguments.goal("p99=20ms")]
    levels = [
        measured(window(100, 5), level=Level(1)),
        measured(window(150, 15), level=Level(2)),
        measured(window(200, 25), level=Level(4)),
        measured(window(900, 1, errors=1), level=Level(8)),
    ]
    assert report.judged(goals, levels) == (True, ["Goal p99=20ms: met with 150.0 requests/s, 2 at once."])
    assert report.judged(goals, levels[2:]) == (False, ["Goal p99=20ms: missed at every level."])


def test_json_has_all_figures() -> None:
    document = report.as_json(measured(window(100, 5)), 8)
    assert (document["concurrency"], document["requests_per_s"], document["rows_per_s"]) == (4, 100, 800)
    assert (document["p99_ms"], document["server"]["queue_ms"], document["errors"]) == (5, 0.5, {})
    assert document["client"] == {
        "busy_share": pytest.approx(0.1),
        "cpu_us_per_request": 100,
        "is_bottleneck": False,
    }


def test_the_picture_is_well_formed_and_has_every_point() -> None:
    series = [Series("p50 <&>", [(100, 1.0, "1 at once"), (180, 1.5, "2")]), Series("p99", [(100, 0.0, "none")])]
    root = ET.fromstring(svg("a < b", series, goal_ms=20))
    space = "{http://www.w3.org/2000/svg}"
    assert [each.text for each in root.iter(f"{space}title")] == ["a < b", "1 at once", "2"]
    places = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in root.iter(f"{space}circle")]
    assert places[0][0] < places[1][0]
    assert places[0][1] > places[1][1]  # upwards
    assert "goal 20 ms" in [each.text for each in root.iter(f"{space}text")]
    ET.fromstring(svg("nothing was measured", []))


def test_sparks() -> None:
    assert sparkline([1, 4, 8]) == "▂▅█"
    assert sparkline([0, 0]) == "▁▁"
