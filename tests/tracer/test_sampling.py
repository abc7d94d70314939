"""Whose turn it is, and which headers name a span."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tracer.sampling import Sampler, is_context
from shoal.tracer.settings import TENSORS, TIMESTAMPS, TraceSetting

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@given(st.integers(1, 20), st.integers(0, 100))
def test_every_rate_th_request_hits(rate: int, num_requests: int) -> None:
    sampler = Sampler(TraceSetting(level=TIMESTAMPS, rate=rate, file="x"))
    hits = [number for number in range(1, num_requests + 1) if sampler.hits()]
    assert hits == [number for number in range(1, num_requests + 1) if number % rate == 0]


@pytest.mark.parametrize(("rate", "count"), [(0, -1), (1, 0)])
def test_nothing_hits_at_rate_0_or_when_enough_was_collected(rate: int, count: int) -> None:
    sampler = Sampler(TraceSetting(level=TIMESTAMPS, rate=rate, count=count, mode="opentelemetry"))
    assert not any(sampler.hits() for _ in range(100))


def test_what_else_it_says() -> None:
    assert not Sampler(TraceSetting(level=TIMESTAMPS, file="x")).has_tensors
    assert Sampler(TraceSetting(level=TENSORS, file="x")).has_tensors
    assert not Sampler(TraceSetting(level=TENSORS, mode="opentelemetry")).has_tensors
    assert not Sampler(TraceSetting(level=TIMESTAMPS, file="x")).heeds_context
    assert Sampler(TraceSetting(level=TIMESTAMPS, mode="opentelemetry")).heeds_context


@pytest.mark.parametrize("text", [CONTEXT, CONTEXT[:-2] + "00", "cc" + CONTEXT[2:] + "-what-comes-later"])
def test_a_context(text: str) -> None:
    assert is_context(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "00", CONTEXT.upper(), CONTEXT[:-1], CONTEXT + "0", "ff" + CONTEXT[2:], f" {CONTEXT}",
        f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)  # fmt: skip
def test_no_context(text: str) -> None:
    assert not is_context(text)
