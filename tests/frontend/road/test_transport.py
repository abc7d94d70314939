"""frontend/road/transport.py over a real port: which memory a request gets, and whose answers come where."""

import os
import queue
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from math import inf
from typing import Any

import pytest

from shoal import log
from shoal.errors import CancelledError, UnavailableError
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.road.held_answers import StreamedReplies
from shoal.frontend.road.transport import ModelResponse, StreamedResponse, Waiter, WatchedTransport
from shoal.frontend.state import ServerState
from shoal.messages import shared
from shoal.shm import segment
from shoal.shm.layout import OVERSIZE, Geometry
from tests.frontend.transport_harness import TransportHarness, harness, rung
from tests.messages import receive
from tests.submitted import submit

__all__ = ["harness"]

EMPTY = b"\x92\x90\x80"  # msgpack: no outputs, no parameters
OF_WORKER, OF_ANOTHER = 9, 8


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_up_to_a_quarter_of_the_slab_is_shared(harness: TransportHarness, pool: ThreadPoolExecutor) -> None:
    future: Future[ModelResponse] = pool.submit(harness.transport.infer, harness.prepared(4 * 4096 - 256))
    rung(harness)
    number, block = harness.submitted()
    assert block >> 40 == 5
    harness.refuse(number)
    assert isinstance(future.exception(), UnavailableError)
    assert harness.port.slab.num_taken == 0


def test_more_than_that_gets_a_segment_until_its_reply(harness: TransportHarness, pool: ThreadPoolExecutor) -> None:
    future: Future[ModelResponse] = pool.submit(harness.transport.infer, harness.prepared(4 * 4096))
    asked, _ = receive(harness.supervisor)
    assert (type(asked), asked.request, asked.model_id) == (shared.PayloadWanted, 1, 3)
    assert 4 * 4096 < asked.nbytes < 5 * 4096
    fd = segment.create(OVERSIZE, 80, Geometry(0, 5 * 4096), sealed=True)
    harness.supervisor.send(shared.PayloadGranted(request=1, owner=80, may_be_kept=False, segment=fd))
    os.close(fd)
    harness.transport.shared.receive()
    assert receive(harness.supervisor)[0] == shared.PayloadMapped(80)
    harness.supervisor.send(shared.PayloadReady(80))
    harness.transport.shared.receive()
    rung(harness)
    number, block = harness.submitted()
    assert block == 0x000050_00000_00001
    assert harness.port.slab.num_taken == 0
    harness.refuse(number)
    assert isinstance(future.exception(), UnavailableError)
    assert receive(harness.supervisor)[0] == shared.PayloadReleased(80)


def test_no_segment_is_asked_for_where_too_much_is_in_flight(harness: TransportHarness) -> None:
    for _ in range(2):
        submit(harness.port, 3)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        harness.transport.infer(harness.prepared(4 * 4096))
    harness.supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(harness.supervisor)


def test_log_settings_are_in_force_and_told_before_they_are_acknowledged(
    harness: TransportHarness, state: ServerState
) -> None:
    before = (log.logger.handlers[:], log.logger.level, log.logger.propagate)
    settings: shared.LogSettings = {
        "log_verbose": 3, "log_info": True, "log_warning": True, "log_error": True, "log_format": "default",
    }  # fmt: skip
    try:
        harness.supervisor.send(shared.LogChanged(settings), seq=4)
        harness.transport.shared.receive()
        assert (log.logger.level, state.log_settings) == (log.verbose(3), settings)
        assert receive(harness.supervisor) == (shared.Acknowledged(4), 0)
    finally:
        log.logger.handlers[:], log.logger.level, log.logger.propagate = before


# -- several answers --------------------------------------------------------------------------------------------------

EMPTY = b"\x92\x90\x80"  # msgpack: no outputs, no parameters
OF_WORKER, OF_ANOTHER = 9, 8
NAMED = b"\x92\x90\x81\xa1n\x01"  # the parameter n = 1


def test_a_stream_gives_each_answer_as_it_comes(harness: TransportHarness, pool: ThreadPoolExecutor) -> None:
    parts = harness.transport.stream(harness.prepared(10))
    first = pool.submit(next, parts)
    rung(harness)
    number, _ = harness.submitted()
    harness.say(number, NAMED, more=True)
    part = first.result(timeout=10)
    assert part.answer is not None
    assert (part.answer.response.parameters, part.error, part.is_final) == ({"n": 1}, None, False)
    harness.say(number, b"oh", more=True, status=2)
    harness.say(number, more=False)
    part.answer.release()
    error, end = parts
    assert (str(error.error), error.is_final) == ("oh", False)
    assert (end.answer, end.error, end.is_final) == (None, None, True)
    assert [record[:2] for record in harness.records()] == [(3, number)] * 2
    assert harness.port.counts["replies_held"] == harness.port.counts["requests_open"] == 0
    assert harness.port.slab.num_taken == 0


def test_a_stream_that_is_closed_is_cancelled_and_what_still_comes_is_given_back(
    harness: TransportHarness, pool: ThreadPoolExecutor
) -> None:
    parts = harness.transport.stream(harness.prepared(10))
    first = pool.submit(next, parts)
    rung(harness)
    number, _ = harness.submitted()
    harness.say(number, EMPTY, more=True)
    harness.say(number, EMPTY, more=True)
    answer = first.result(timeout=10).answer
    assert answer is not None
    parts.close()
    harness.say(number, EMPTY, more=True)
    answer.release()
    assert sorted(record[0] for record in harness.records()) == [2, 3, 3, 3]  # CANCEL, and all three released
    assert harness.port.counts["requests_open"] == 1
    harness.say(number, more=False)
    assert harness.port.counts["replies_held"] == harness.port.counts["requests_open"] == 0


def test_a_stream_whose_client_gives_up_while_nothing_comes(harness: TransportHarness) -> None:
    harness.transport.request_timeout_s = 0.01
    with pytest.raises(UnavailableError, match=r"^Request timeout expired: no answer within 0\.01 s"):
        next(harness.transport.stream(harness.prepared(10)))
    assert [record[0] for record in harness.records()] == [1, 2]


def first_of_several(transport: WatchedTransport, prepared: PreparedRequest) -> object:
    with transport.several() as executions:
        executions.start(prepared, in_time=True)
        return executions.next_in_time()


@pytest.mark.parametrize(
    "ask",
    [
        WatchedTransport.infer,
        lambda transport, prepared: next(transport.stream(prepared)),
        first_of_several,
    ],
    ids=["infer", "stream", "several"],
)
def test_an_answer_is_due_from_the_time_at_which_its_request_came(
    harness: TransportHarness, ask: Callable[[WatchedTransport, PreparedRequest], object]
) -> None:
    """The request has waited for its thread for all of its ten seconds, and waits no more for its answer."""
    came_s = time.monotonic() - 10
    watched = WatchedTransport(harness.transport, lambda _notify: nullcontext(), came_s)
    with pytest.raises(UnavailableError, match=r"^Request timeout expired: no answer within 10 s"):
        ask(watched, harness.prepared(10))
    assert [record[0] for record in harness.records()] == [1, 2]
    harness.transport.shared._oversize._wait_s = inf
    with pytest.raises(UnavailableError, match=r"^Request timeout expired: no shared memory"):
        ask(watched, harness.prepared(20 * 4096))


def of_infer(answer: ModelResponse) -> object:
    return answer.response.parameters


def of_several(found: tuple[int, StreamedResponse]) -> object:
    _, part = found
    assert part.answer is not None
    return part.answer.response.parameters


@pytest.mark.parametrize(
    ("ask", "parameters_of"), [(WatchedTransport.infer, of_infer), (first_of_several, of_several)],
    ids=["infer", "several"],
)  # fmt: skip
def test_an_answer_that_came_while_the_process_stood_still_is_sent_though_its_time_is_over(
    harness: TransportHarness,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[WatchedTransport, PreparedRequest], Any],
    parameters_of: Callable[[Any], object],
) -> None:
    """The request's thread may run before the one that listens."""
    submit_, deliver = harness.transport.submit, harness.transport.shared.deliver

    def submit_and_stand_still(*arguments: Any, **more: Any) -> int:
        number = submit_(*arguments, **more)
        monkeypatch.setattr(harness.transport.shared, "deliver", lambda: None)
        harness.say(number, NAMED, more=False)
        monkeypatch.setattr(harness.transport.shared, "deliver", deliver)
        return number

    monkeypatch.setattr(harness.transport, "submit", submit_and_stand_still)
    watched = WatchedTransport(harness.transport, lambda _notify: nullcontext(), time.monotonic() - 10)
    assert parameters_of(ask(watched, harness.prepared(10))) == {"n": 1}


def test_a_wait_for_an_answer_can_be_called_off(harness: TransportHarness, pool: ThreadPoolExecutor) -> None:
    waiter: Waiter = queue.SimpleQueue()
    future = pool.submit(harness.transport.infer, harness.prepared(10), None, waiter)
    rung(harness)
    number, _ = harness.submitted()
    waiter.put(None)
    with pytest.raises(CancelledError, match=r"^Request was cancelled$"):
        future.result(timeout=10)
    assert [record[:2] for record in harness.records()] == [(2, number)]  # CANCEL
    harness.say(number, EMPTY, more=False)  # comes all the same
    assert harness.port.counts["replies_held"] == harness.port.counts["requests_open"] == 0


def test_the_replies_to_several_requests_can_come_in_at_one_place(harness: TransportHarness) -> None:
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    prepared = harness.prepared(10)
    first, second = [harness.transport.submit(prepared, replies) for _ in range(2)]
    harness.say(second, NAMED, more=False)
    harness.say(first, EMPTY, more=True)
    (reply, other) = replies.get_nowait(), replies.get_nowait()
    assert (reply.number, other.number) == (second, first)
    part = harness.transport.part(prepared, reply)
    assert part.answer is not None
    assert (part.answer.response.parameters, part.is_final) == ({"n": 1}, True)
    part.answer.release()
    harness.transport.drop(other)
    harness.transport.cancel(first)
    harness.say(first, EMPTY, more=False)
    assert replies.empty()
    assert harness.port.counts["replies_held"] == harness.port.counts["requests_open"] == 0


def test_infer_takes_the_last_of_several_replies(harness: TransportHarness, pool: ThreadPoolExecutor) -> None:
    future = pool.submit(harness.transport.infer, harness.prepared(10))
    rung(harness)
    number, _ = harness.submitted()
    harness.say(number, EMPTY, more=True)
    harness.say(number, NAMED, more=False)
    assert future.result(timeout=10).response.parameters == {"n": 1}
    assert [record[0] for record in harness.records()] == [3]


def waiting_parts(harness: TransportHarness, pool: ThreadPoolExecutor) -> Generator[StreamedResponse, None, None]:
    """A stream whose first reply has been taken, while two and the final one wait."""
    parts = harness.transport.stream(harness.prepared(10))
    first = pool.submit(next, parts)
    rung(harness)
    number, _ = harness.submitted()
    harness.say(number, EMPTY, more=True)
    answer = first.result(timeout=10).answer
    assert answer is not None
    answer.release()
    for more in (True, True, False):
        harness.say(number, EMPTY, more=more, tensors=bytes(100))
    return parts


def test_replies_that_wait_for_their_client_leave_the_worker_s_memory(
    harness: TransportHarness, pool: ThreadPoolExecutor
) -> None:
    parts, kept = waiting_parts(harness, pool), harness.transport._kept
    assert harness.port.counts["replies_held"] == 1  # nothing waited before that one
    kept_bytes = [kept.nbytes]
    for part in parts:
        assert part.answer is not None
        assert bytes(part.answer.block[:100]) == bytes(100)
        part.answer.release()
        kept_bytes.append(kept.nbytes)
    block_nbytes = kept_bytes[0] // 2
    assert kept_bytes == [2 * block_nbytes, 2 * block_nbytes, block_nbytes, 0]
    assert block_nbytes >= 100 + len(EMPTY)
    assert harness.port.counts["replies_held"] == 0


def test_replies_that_were_kept_for_a_stream_end_with_it(harness: TransportHarness, pool: ThreadPoolExecutor) -> None:
    parts, kept = waiting_parts(harness, pool), harness.transport._kept
    assert kept.nbytes > 0
    parts.close()
    assert (kept.nbytes, harness.port.counts["replies_held"]) == (0, 0)


def test_replies_that_wait_without_room_leave_a_worker_s_memory_once_it_lacks_any(
    harness: TransportHarness, pool: ThreadPoolExecutor
) -> None:
    """They are copied where there is room by then; else they end when they have had their time."""
    kept, port = harness.transport._kept, harness.port
    kept.nbytes = kept.most_bytes
    parts = waiting_parts(harness, pool)
    (unread,) = harness.transport._held.unread
    assert isinstance(unread, StreamedReplies)
    block = unread._unread[0][0].block
    assert block is not None
    assert unread.recall({OF_ANOTHER}, inf, is_urgent=True) == 0
    assert unread.recall({OF_WORKER}, 0.0, is_urgent=True) == 0
    assert port.num_held == 3
    kept.nbytes -= 8 * len(block)
    harness.writer.push((15, 0, OF_WORKER, *[0] * 13))
    harness.writer.publish()
    harness.transport.shared.deliver()
    assert port.num_held == 2
    assert unread.recall({OF_WORKER}, inf, is_urgent=True) == 2
    assert port.num_held == 0
    found = [next(parts) for _ in range(3)]
    assert [part.is_final for part in found] == [False, False, True]
    assert found[0].answer is not None
    assert bytes(found[0].answer.block[:100]) == bytes(100)
    found[0].answer.release()
    assert kept.nbytes == kept.most_bytes - 8 * len(block)
    assert all("have no shared memory left for results" in str(part.error) for part in found[1:])
    assert list(parts) == []
    assert not harness.transport._held.unread
