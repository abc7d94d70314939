"""frontend/road/held_answers.py over a real port: what the road sends, and when a worker has its block back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.frontend.kept_memory import HOLD_S, KeptMemory
from shoal.frontend.response import Response
from shoal.frontend.road import held_answers
from shoal.frontend.road.held_answers import HeldAnswer
from shoal.frontend.road.transport import ModelResponse
from shoal.shm.layout import RELEASE
from tests.frontend.transport_harness import TransportHarness, harness, rung

__all__ = ["harness"]

PIECE = 1000
#: msgpack: no outputs, no parameters.
EMPTY = b"\x92\x90\x80"
TENSORS = bytes(range(256)) * 20
OF_WORKER, OF_ANOTHER = 9, 8


@pytest.fixture(autouse=True)
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_answers, "PIECE_BYTES", PIECE)


@pytest.fixture
def answer(harness: TransportHarness) -> Iterator[ModelResponse]:
    """Its block is worker 9's."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(harness.transport.infer, harness.prepared(10))
        rung(harness)
        number, _ = harness.submitted()
        harness.say(number, EMPTY, more=False, tensors=TENSORS)
        yield asked.result(timeout=10)


def is_held(harness: TransportHarness) -> bool:
    return harness.port.counts["replies_held"] == 1


def recall(harness: TransportHarness, owner: int, *, is_urgent: bool = False) -> None:
    harness.writer.push((15, int(is_urgent), owner, *[0] * 13))
    harness.writer.publish()
    harness.transport.shared.deliver()


def test_what_is_short_is_copied_and_given_back_at_once(harness: TransportHarness, answer: ModelResponse) -> None:
    sent = answer.send(Response(200, (), (b"head", answer.block[: PIECE - 4])))
    assert sent.chunks == (b"head", TENSORS[: PIECE - 4])
    assert sent.close is None
    assert not is_held(harness)


def test_what_cannot_be_copied_is_given_back_once(harness: TransportHarness, answer: ModelResponse) -> None:
    """A chunk that is none stands for one for whose copy there is no memory."""
    with pytest.raises(TypeError):
        answer.send(Response(200, (), (answer.block[:8], ("x",))))  # type: ignore[arg-type]
    assert not is_held(harness)
    assert [kind for kind, _, _ in harness.records()] == [RELEASE]


def test_what_was_compressed_needs_no_block(harness: TransportHarness, answer: ModelResponse) -> None:
    sent = answer.send(Response(200, (), (bytes(3 * PIECE),)))
    assert sent.chunks == (bytes(3 * PIECE),)
    assert not is_held(harness)


def test_what_is_long_is_sent_in_pieces_and_given_back_with_the_last(
    harness: TransportHarness, answer: ModelResponse
) -> None:
    sent = answer.send(Response(200, (("A", "b"),), (b"head", answer.block)))
    assert sent.headers == (("A", "b"), ("Content-Length", str(4 + len(answer.block))))
    assert sent.stream is not None
    pieces = [next(sent.stream) for _ in range(3)]
    assert is_held(harness)
    pieces += sent.stream
    assert not is_held(harness)
    assert b"".join(pieces) == b"head" + bytes(answer.block)
    assert max(map(len, pieces)) == PIECE


def test_a_worker_that_lacks_memory_has_it_back_while_the_client_reads(
    harness: TransportHarness, answer: ModelResponse
) -> None:
    expected = bytes(answer.block)
    sent = answer.send(Response(200, (), (answer.block,)))
    assert sent.stream is not None
    pieces = [next(sent.stream)]
    recall(harness, OF_ANOTHER)
    assert is_held(harness)
    recall(harness, OF_WORKER)
    assert not is_held(harness)
    assert harness.result is not None
    harness.result.memory[:] = bytes(len(harness.result.memory))  # the worker's next result
    pieces += sent.stream
    assert b"".join(pieces) == expected
    assert harness.transport._kept.nbytes == 0


def test_without_room_for_a_copy_a_block_stays_until_the_connection_ends(
    harness: TransportHarness, answer: ModelResponse
) -> None:
    sent = answer.send(Response(200, (), (answer.block,)))
    assert sent.stream is not None
    next(sent.stream)
    harness.transport._kept.nbytes = KeptMemory().most_bytes - PIECE
    recall(harness, OF_WORKER)
    assert is_held(harness)
    assert sent.close is not None
    sent.close()
    assert not is_held(harness)
    assert list(sent.stream) == []
    assert harness.transport._kept.nbytes == KeptMemory().most_bytes - PIECE


def test_what_is_kept_is_kept_no_longer_than_the_connection(harness: TransportHarness, answer: ModelResponse) -> None:
    sent = answer.send(Response(200, (), (answer.block,)))
    assert sent.stream is not None
    next(sent.stream)
    recall(harness, OF_WORKER)
    assert harness.transport._kept.nbytes == len(answer.block) - PIECE
    assert sent.close is not None
    for _ in range(2):  # the server closes the stream and the response
        sent.close()
    assert harness.transport._kept.nbytes == 0


def test_without_any_memory_an_answer_without_room_ends_when_it_has_had_its_time(
    harness: TransportHarness, answer: ModelResponse, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = answer.send(Response(200, (), (answer.block,)))
    assert isinstance(sent.stream, HeldAnswer)
    next(sent.stream)
    harness.transport._kept.nbytes = KeptMemory().most_bytes
    recall(harness, OF_WORKER, is_urgent=True)
    assert is_held(harness)
    monkeypatch.setattr(sent.stream, "since_s", sent.stream.since_s - HOLD_S)
    recall(harness, OF_ANOTHER, is_urgent=True)
    recall(harness, OF_WORKER)
    assert is_held(harness)
    recall(harness, OF_WORKER, is_urgent=True)
    assert not is_held(harness)
    with pytest.raises(ConnectionResetError):
        next(sent.stream)
    sent.stream.close()
    assert harness.transport._kept.nbytes == KeptMemory().most_bytes
