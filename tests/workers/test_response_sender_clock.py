"""Senders and the execution limit: which batch's clock a response restarts; how long a client may hold others up."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.shm.layout import WANT
from shoal.workers.answers import Answers
from shoal.workers.requests import Request
from shoal.workers.response_sender import WINDOW
from tests.workers.sending import RESPONSE, output, started
from tests.workers.worker_harness import Batcher, rows


@pytest.mark.parametrize("is_executing", [True, False])
def test_a_client_that_reads_late_is_given_up_while_it_keeps_the_instance_from_others(
    make_batcher: Callable[..., Batcher], monkeypatch: pytest.MonkeyPatch, *, is_executing: bool
) -> None:
    """It reads a response two seconds after the model has begun to wait, by a clock that each WANT moves."""
    now_s, unread, num_wants, num_read = 1000.0, deque[int](), 0, 0
    monkeypatch.setattr("shoal.workers.response_sender.time.monotonic", lambda: now_s)

    def ring() -> None:
        nonlocal now_s, num_wants, num_read
        for kind, _, _, _, ref, *_ in batcher.reader.drain():
            if kind == RESPONSE:
                unread.append(ref)
            elif kind == WANT:
                now_s += 0.25
                num_wants += 1
                if num_wants % 8 == 0:
                    num_read += 1
                    batcher.free(unread.popleft())
                batcher.worker_bell.ring()

    def send_on(sender: Any) -> None:
        sender._memory.ring = ring
        for _ in range(WINDOW + 30):
            sender.send(output(1), final=False)

    batcher = make_batcher(block_wait_s=10.0)
    if is_executing:
        backend = started(batcher, also=lambda requests, answers: send_on(answers.sender(requests[0])))
        assert "has not read 32 responses of the request for too long" in str(backend.raised)
        # Each read costs 2 s of the 10 s and gives 1.25 s back, so the twelfth, after 1.75 s, is not waited for.
        assert (num_read, num_wants) == (11, 11 * 8 + 7)
    else:
        send_on(started(batcher).senders[0])
        assert num_read == 30


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
