"""shoal/cli/replay_report.py: the page of a replay has what differs, pictures, and no markup of a client's."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.replay_comparison import Answer, Difference
from shoal.cli.replay_report import as_page
from shoal.recorder.recorded import RecordedRequest, Recording
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made

TOLD = {
    "requests": 3, "equal": 1, "outcome_differs": 1, "values_differ": 1, "failed": 1, "batches_not_as_recorded": 0,
    "recorded_ms": {"p50": 1.0, "p99": 2.0}, "replayed_ms": {"p50": 3.0, "p99": 4.0},
    "late_ms": {"p50": 0.0, "p99": 0.0},
}  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def requests(tmp_path: Path) -> list[RecordedRequest]:
    entries = [
        made(key=number, start_ns=number * 10**9, end_ns=number * 10**9 + number * 10**6) for number in (1, 2, 3)
    ]
    (tmp_path / "three.shoalrec").write_bytes(file_head() + pack_frame(entries))
    return list(Recording(tmp_path))


def pictures(page: str) -> list[ET.Element]:
    """The pictures of a page, parsed."""
    return [ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in page.split("<svg")[1:]]


def test_the_page_has_latencies_and_distances(requests: list[RecordedRequest]) -> None:
    answers = [Answer([{"OUT": np.array([[3, 4]], np.float32)}], time_ns=5 * 10**6) for _ in requests]
    unequal = [
        Difference(2, "values", "output <OUT>: 1 of 2 values differ", 0.25, float("inf")),
        Difference(2, "values", "output NEAR: 1 of 2 values differ", 0.125, 0.0),
        Difference(3, "outcome", "recorded: answered; replayed: Internal"),
    ]
    page = as_page("Replay of <recordings>", TOLD, list(zip(requests, answers, strict=True)), unequal)
    assert "<recordings>" not in page
    assert "output &lt;OUT&gt;: 1 of 2 values differ" in page
    latency, distance = pictures(page)
    assert {"recorded", "replayed", "% of the requests"} <= {each.text for each in latency.iter(f"{SVG}text")}
    said = [each.text for each in distance.iter(f"{SVG}title")]
    assert "request 2: 0.25" in said
    assert len([each for each in said if each and each.startswith("request")]) == 1  # none that is infinitely far


def test_equal_answers_have_no_picture_of_distances(requests: list[RecordedRequest]) -> None:
    answers = [Answer([{}], time_ns=0) for _ in requests]
    assert len(pictures(as_page("Replay", TOLD, list(zip(requests, answers, strict=True)), []))) == 1
