"""The verb `explain`: what it asks, and how the answer is shown."""

import json
from typing import Any

import pytest

from shoal.cli.explain import explain
from tests.cli.answering import Answering

BATCHES = "GET /v2/repository/models/digits/batches"
TOLD: dict[str, Any] = {
    "model": "digits",
    "versions": [
        {
            "version": "1", "max_batch_size": 8, "scheduler": "goal", "latency_target_ms": 50, "arrivals_per_s": 120.5,
            "reasons": [
                {"reason": "instance_idle", "meaning": "an instance was idle", "batches": 3},
                {"reason": "full", "meaning": "it was full", "batches": 1},
            ],
            "last_batches": [
                {"rows": 1, "reason": "instance_idle"}, {"rows": 8, "reason": "full"},
            ],
            "learned": [{"rows": 1, "ns": 4_250_000, "samples": 7}],
            "measured": [{"rows": 1, "batches": 3, "ns": 4_000_000}, {"rows": 8, "batches": 1, "ns": 6_000_000}],
        }
    ],
}  # fmt: skip
PRINTED = """\
digits, version 1: batched so that answers take at most 50 ms; 120.5 rows arrive per second
SHARE  BATCHES  WHY IT HAD ITS SIZE
75%    3        an instance was idle
25%    1        it was full
rows of the last 2, oldest first: 1 8
ROWS  BATCHES  MEASURED  PER ROW  EXPECTED
1     3        4 ms      4 ms     4.25 ms
8     1        6 ms      0.75 ms  -
"""


def test_the_answer_is_shown(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(BATCHES, TOLD)
    assert explain(["digits", "--url", server.url], environ={}) == 0
    assert capsys.readouterr() == (PRINTED, "")


def test_programs_get_the_answer_as_it_is(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(BATCHES, TOLD)
    assert explain(["digits", "--json"], environ={"SHOAL_URL": server.url}) == 0
    assert json.loads(capsys.readouterr().out) == TOLD


@pytest.mark.parametrize(
    ("scheduler", "how"),
    [
        ("default", "without dynamic_batching each request is executed alone"),
        ("dynamic", "batched by size and delay, as dynamic_batching says"),
        ("ensemble", "an ensemble; its models batch, it does not"),
        ("other", "its scheduler keeps no account of its batches"),
    ],
)
def test_who_has_nothing_to_explain_says_so(
    server: Answering, scheduler: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = {"version": "2", "scheduler": scheduler, "reasons": [], "last_batches": [], "measured": []}
    server.answer(BATCHES, {"model": "digits", "versions": [version]})
    assert explain(["digits"], environ={"SHOAL_URL": server.url}) == 0
    assert capsys.readouterr().out == f"digits, version 2: {how}\n"


def test_a_model_that_serves_no_version(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(BATCHES, {"model": "digits", "versions": []})
    assert explain(["digits"], environ={"SHOAL_URL": server.url}) == 0
    assert capsys.readouterr().out == "No version of digits is served.\n"
