"""bench/client_paths.py: all ways to ask answer right, and what their times become."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench.client_paths import PICTURE, Cost, document, picture, run, size, targets
from bench.client_ways import WAYS

ROOT = Path(__file__).parents[2]
NAMES = {way.name for way in WAYS}


def test_every_way_answers_right_and_is_timed(tmp_path: Path) -> None:
    times, costs = run(tmp_path, (64,), 1, 160, with_triton=False)
    assert {name for name, _ in times} == NAMES - {"triton-region"}
    assert all(took > 0 for each in times.values() for took in each)
    assert [each.title for each in costs] == ["AsyncClient", "Client, 16 threads"]
    assert all(1 <= each.batch <= 16 for each in costs)


TIMES = {(name, nbytes): [1.0, 2.0 + nbytes / 1000, 1e9] for name in NAMES - {"json"} for nbytes in (64, 16 << 20)}
COSTS = [Cost("AsyncClient", 30.4, 55, 15.9)]


def test_the_chapter_has_a_line_for_each_way() -> None:
    chapter = document(TIMES, COSTS)
    assert "| JSON over HTTP | – | – | – | – |\n" in chapter
    assert "| gRPC | 2 µs | – | – | 16.8 ms |\n" in chapter
    assert "| AsyncClient | 30 µs | 55 µs | 15.9 |" in chapter
    assert PICTURE in chapter


def test_the_picture_has_a_line_for_each_way() -> None:
    drawn = ET.fromstring(picture(TIMES))
    lines = [each.attrib["points"] for each in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == len(NAMES) - 1
    assert len(set(lines)) == 1
    words = "".join(drawn.itertext())
    assert {way.title for way in WAYS if way.title in words} == {way.title for way in WAYS if way.name != "json"}
    assert "16 MiB" in words


def test_what_was_asked_is_told_beside_what_was_measured() -> None:
    told = targets(TIMES, COSTS)
    assert "Client / binary over HTTP at 64 B: 100% (60 %), of a bare socket: 100%" in told
    assert "AsyncClient: 30 µs of the server's CPU per request (45)" in told
    assert "Triton's regions take 1.0 times as long (2)" in told


@pytest.mark.parametrize(("nbytes", "text"), [(64, "64 B"), (1024, "1 KiB"), (16 << 20, "16 MiB")])
def test_sizes_in_words(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_the_page_has_what_the_benchmark_wrote() -> None:
    page = (ROOT / "docs" / "client.md").read_text()
    chapter = re.search(r"<!-- measured -->\n(.*)<!-- end -->", page, re.DOTALL)
    assert chapter is not None
    assert all(f"| {way.title} |" in chapter[1] for way in WAYS)
    assert PICTURE in chapter[1]
    ET.parse(ROOT / "docs" / "client.svg")
