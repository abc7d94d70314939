"""bench/flat.py: ratios, verdicts, growth and instructions by process of Shoal beside itself."""

from dataclasses import replace

import pytest

from bench import flat
from bench.comparisons import COMPARISONS, WORKLOAD, Comparison
from bench.document import Conditions
from bench.results import Row, Sample

MIB = 1024 * 1024
PLAIN = Sample(10_000, 800, 2000, 100, 300 * MIB, 1.0, 0, 0.04)
BY_NAME = {each.name: each for each in COMPARISONS}
RATE, P99, MODELS, CPU = (BY_NAME[name] for name in ("idle", "half-heads", "models", "record-others"))


def rows(comparison: Comparison, *others: Sample) -> tuple[Row, Row]:
    """The plain setting, always the same, and the other one."""
    return Row(comparison.plain, WORKLOAD, [PLAIN] * len(others)), Row(comparison.other, WORKLOAD, list(others))


@pytest.mark.parametrize(
    ("comparison", "other", "word"),
    [
        (RATE, replace(PLAIN, requests_per_s=8500), "yes"),
        (RATE, replace(PLAIN, requests_per_s=8400), "**no**"),
        (RATE, replace(PLAIN, errors=3), "no: 3 failed requests"),
        (P99, replace(PLAIN, p99_us=3000, requests_per_s=10), "yes"),
        (P99, replace(PLAIN, p99_us=3100), "**no**"),
        (P99, replace(PLAIN, p99_us=3100, foreign=0.16), "unclear: others 16%"),
        (CPU, replace(PLAIN, cpu_us=101, requests_per_s=10), "yes"),
        (CPU, replace(PLAIN, cpu_us=102), "**no**"),
    ],
)
def test_a_target_is_met_or_not_and_never_with_failed_requests(
    comparison: Comparison, other: Sample, word: str
) -> None:
    assert flat.verdict(comparison, *rows(comparison, other)) == word


def test_rounds_that_do_not_agree_leave_it_unclear() -> None:
    samples = [replace(PLAIN, p99_us=p99_us) for p99_us in (2000, 2900, 3100)]
    assert flat.verdict(P99, *rows(P99, *samples)) == "unclear: some rounds"


def test_ratios_have_the_range_of_the_single_rounds() -> None:
    samples = [replace(PLAIN, requests_per_s=rate, cpu_us=110) for rate in (9000, 9500, 8600)]
    assert flat.summary({RATE: rows(RATE, *samples)}) == (
        "|  | requests/s, plain | so | × | at least | met | CPU × |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| 1,000 idle keep-alive connections | 10,000 | 9,000 | 0.90 (0.86–0.95) | 0.85 | yes | 1.10 |\n"
    )


def test_growth_is_told_per_model() -> None:
    table = flat.summary({MODELS: rows(MODELS, replace(PLAIN, start_s=10.9, pss_bytes=498 * MIB))})
    assert "|  | 1 model | 200 models | each further one |\n" in table
    assert "| start, s | 1.00 | 10.90 | 0.05 |\n" in table
    assert "| memory, MiB | 300 | 498 | 0.99 |\n" in table


def test_instructions_are_told_by_process() -> None:
    plain, other = rows(P99, replace(PLAIN, instructions={"worker": 60_000, "lane": 100_000, "batcher": 90_000}))
    plain.samples[0] = replace(PLAIN, instructions={"lane": 80_000, "batcher": 45_000})
    table = flat.summary({P99: (plain, other)})
    assert table.endswith(
        "| 1,000 instructions/request | lane | batcher | worker | all |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| plain | 80 | 45 | 0 | 125 |\n"
        "| with 1,000 half heads | 100 | 90 | 60 | 250 |\n"
    )
    assert "| 1.00 | 2.00 |\n" in table


def test_what_could_not_be_measured_is_told() -> None:
    plain, other = rows(P99, PLAIN)
    other.fault = "no answer within 120 s"
    pairs = {P99: (plain, other)}
    assert "| 2.00 | – | – | 1.5 | not measured | – |" in flat.summary(pairs)
    assert "with 1,000 half heads could not be measured: no answer within 120 s.\n" in flat.details(pairs)


def test_the_chapter_names_its_conditions() -> None:
    where = Conditions(4, 3, ["A CPU, 2 cores"], "wrk 4.1.0", [("plain", "shoal 1.2", "Notes.")])
    pairs = {RATE: rows(RATE, PLAIN)}
    text = flat.markdown(pairs, where)
    for part in (
        "3 rounds of 4 s",
        "- A CPU, 2 cores\n- shoal 1.2\n",
        "(wrk 4.1.0, one",
        "perf is missing",
        "4% on average",
    ):
        assert part in text
    assert flat.summary(pairs) in text
    assert text.endswith(flat.details(pairs))


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(COMPARISONS)
