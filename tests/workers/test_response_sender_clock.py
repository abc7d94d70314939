"""Senders and the execution limit: which batch's clock a response restarts; how long a client may hold others up."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.workers.answers import Answers
from shoal.workers.requests import Request
from shoal.workers.response_sender import WINDOW
from tests.workers.sending import output, started
from tests.workers.worker_harness import Batcher, rows


@pytest.mark.parametrize("is_executing", [True, False])
def test_a_client_that_reads_late_is_given_up_while_it_keeps_the_instance_from_others(
    make_batcher: Callable[..., Batcher], monkeypatch: pytest.MonkeyPatch, *, is_executing: bool
) -> None:
    """It reads a response whenever the model waits, each time two seconds later, by a clock that the test moves."""
    now_s, waits_s = [1000.0], list[float]()
    monkeypatch.setattr("shoal.workers.response_sender.time.monotonic", lambda: now_s[0])

    def wait_for(_attempt: Callable[[], Any], _batch: int, wait_s: float) -> bool | None:
        waits_s.append(wait_s)
        now_s[0] += 2.0
        return wait_s >= 2.0 or None

    def send_on(sender: Any) -> None:
        monkeypatch.setattr(sender._memory, "wait_for", wait_for)
        for _ in range(WINDOW + 30):
            sender.send(output(1), final=False)

    batcher = make_batcher(block_wait_s=10.0)
    if is_executing:
        backend = started(batcher, also=lambda requests, answers: send_on(answers.sender(requests[0])))
        assert "has not read 32 responses of the request for too long" in str(backend.raised)
        assert waits_s == [10.0 - 0.75 * number for number in range(12)]
    else:
        send_on(started(batcher).senders[0])
        assert waits_s == [10.0] * 30


def moved_ns(batcher: Batcher) -> int:
    """The word that the supervisor looks at."""
    return batcher.worker_view.words[56]


def test_a_response_restarts_the_clock_of_the_batch_that_is_executed(batcher: Batcher) -> None:
    seen: list[tuple[int, int]] = []

    def send(requests: Sequence[Request], answers: Answers) -> None:
        sender = answers.sender(requests[0])
        for _ in range(2):
            before = moved_ns(batcher)
            sender.send(output(5), final=False)
            seen.append((before, moved_ns(batcher)))

    started(batcher, also=send)
    (first, second), (third, fourth) = seen
    assert first == 0 < batcher.worker_view.words[40] < second == third < fourth


def test_a_response_of_an_earlier_batch_restarts_no_clock(batcher: Batcher) -> None:
    backend = started(batcher)
    before = moved_ns(batcher)
    seen: list[int] = []

    def execute(_requests: Sequence[Request], _answers: Answers) -> None:
        backend.senders[0].send(output(5), final=False)
        seen.append(moved_ns(batcher))

    backend._also = execute
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]), batch=2)
    backend.loop.step()
    assert seen == [before]


def test_while_a_client_is_waited_for_the_clock_does_not_run(make_batcher: Callable[..., Batcher]) -> None:
    batcher, seen = make_batcher(block_wait_s=0.01), []

    def send(requests: Sequence[Request], answers: Answers) -> None:
        sender = answers.sender(requests[0])
        for number in range(WINDOW):
            sender.send(output(number), final=False)
        before = moved_ns(batcher)
        with pytest.raises(UnavailableError):
            sender.send(output(99), final=False)
        seen.append(moved_ns(batcher) - before)

    started(batcher, also=send)
    assert seen[0] >= 10_000_000
