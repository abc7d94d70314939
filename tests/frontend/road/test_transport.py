"""frontend/road/transport.py over a real port: which memory a request gets, and whose answers come where."""

import os
import queue
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

import pytest

from shoal import log
from shoal.errors import CancelledError, UnavailableError
from shoal.frontend.road.streamed_replies import StreamedReplies
from shoal.frontend.road.transport import ModelResponse, StreamedResponse, Waiter
from shoal.frontend.state import ServerState
from shoal.messages import shared
from shoal.shm import segment
from shoal.shm.layout import OVERSIZE, Geometry
from shoal.shm.port import Reply
from tests.frontend.transport_harness import Surroundings, rung, surroundings
from tests.messages import receive
from tests.submitted import submit

__all__ = ["surroundings"]

EMPTY = b"\x92\x90\x80"  # msgpack: no outputs, no parameters
OF_WORKER, OF_ANOTHER = 9, 8


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_up_to_a_quarter_of_the_slab_is_shared(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    future: Future[ModelResponse] = pool.submit(surroundings.transport.infer, surroundings.prepared(4 * 4096 - 256))
    rung(surroundings)
    number, block = surroundings.submitted()
    assert block >> 40 == 5
    surroundings.refuse(number)
    assert isinstance(future.exception(), UnavailableError)
    assert surroundings.port.slab.num_taken == 0


def test_more_than_that_gets_a_segment_until_its_reply(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    future: Future[ModelResponse] = pool.submit(surroundings.transport.infer, surroundings.prepared(4 * 4096))
    asked, _ = receive(surroundings.supervisor)
    assert (type(asked), asked.request, asked.model_id) == (shared.PayloadWanted, 1, 3)
    assert 4 * 4096 < asked.nbytes < 5 * 4096
    fd = segment.create(OVERSIZE, 80, 1, Geometry(0, 5 * 4096), sealed=True)
    surroundings.supervisor.send(shared.PayloadGranted(request=1, owner=80, may_be_kept=False, segment=fd))
    os.close(fd)
    surroundings.transport.shared.receive()
    assert receive(surroundings.supervisor)[0] == shared.PayloadMapped(80)
    surroundings.supervisor.send(shared.PayloadReady(80))
    surroundings.transport.shared.receive()
    rung(surroundings)
    number, block = surroundings.submitted()
    assert block == 0x000050_00000_00001
    assert surroundings.port.slab.num_taken == 0
    surroundings.refuse(number)
    assert isinstance(future.exception(), UnavailableError)
    assert receive(surroundings.supervisor)[0] == shared.PayloadReleased(80)


def test_no_segment_is_asked_for_where_too_much_is_in_flight(surroundings: Surroundings) -> None:
    for _ in range(2):
        submit(surroundings.port, 3)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        surroundings.transport.infer(surroundings.prepared(4 * 4096))
    surroundings.supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(surroundings.supervisor)


def test_log_settings_are_in_force_and_told_before_they_are_acknowledged(
    surroundings: Surroundings, state: ServerState
) -> None:
    before = (log.logger.handlers[:], log.logger.level, log.logger.propagate)
    settings = {"log_verbose": 3, "log_info": True, "log_warning": True, "log_error": True, "log_format": "default"}
    try:
        surroundings.supervisor.send(shared.LogChanged(settings), seq=4)
        surroundings.transport.shared.receive()
        assert (log.logger.level, state.log_settings) == (log.verbose(3), settings)
        assert receive(surroundings.supervisor) == (shared.Acknowledged(4), 0)
    finally:
        log.logger.handlers[:], log.logger.level, log.logger.propagate = before


# -- several answers --------------------------------------------------------------------------------------------------

EMPTY = b"\x92\x90\x80"  # msgpack: no outputs, no parameters
OF_WORKER, OF_ANOTHER = 9, 8
NAMED = b"\x92\x90\x81\xa1n\x01"  # the parameter n = 1


def test_a_stream_gives_each_answer_as_it_comes(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    parts = surroundings.transport.stream(surroundings.prepared(10))
    first = pool.submit(next, parts)
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, NAMED, more=True)
    part = first.result(timeout=10)
    assert part.answer is not None
    assert (part.answer.response.parameters, part.error, part.is_final) == ({"n": 1}, None, False)
    surroundings.say(number, b"oh", more=True, status=2)
    surroundings.say(number, more=False)
    part.answer.release()
    error, end = parts
    assert (str(error.error), error.is_final) == ("oh", False)
    assert (end.answer, end.error, end.is_final) == (None, None, True)
    assert [record[:2] for record in surroundings.records()] == [(3, number)] * 2
    assert surroundings.port.counts["replies_held"] == surroundings.port.counts["requests_open"] == 0
    assert surroundings.port.slab.num_taken == 0


def test_a_stream_that_is_closed_is_cancelled_and_what_still_comes_is_given_back(
    surroundings: Surroundings, pool: ThreadPoolExecutor
) -> None:
    parts = surroundings.transport.stream(surroundings.prepared(10))
    first = pool.submit(next, parts)
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, EMPTY, more=True)
    surroundings.say(number, EMPTY, more=True)
    answer = first.result(timeout=10).answer
    assert answer is not None
    parts.close()
    surroundings.say(number, EMPTY, more=True)
    answer.release()
    assert sorted(record[0] for record in surroundings.records()) == [2, 3, 3, 3]  # CANCEL, and all three released
    assert surroundings.port.counts["requests_open"] == 1
    surroundings.say(number, more=False)
    assert surroundings.port.counts["replies_held"] == surroundings.port.counts["requests_open"] == 0


def test_a_stream_whose_client_gives_up_while_nothing_comes(surroundings: Surroundings) -> None:
    surroundings.transport.request_timeout_s = 0.01
    with pytest.raises(UnavailableError, match=r"^Request timeout expired: no answer within 0\.01 s"):
        next(surroundings.transport.stream(surroundings.prepared(10)))
    assert [record[0] for record in surroundings.records()] == [1, 2]


def test_whoever_waits_for_an_answer_can_be_called_off(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    waiter: Waiter = queue.SimpleQueue()
    future = pool.submit(surroundings.transport.infer, surroundings.prepared(10), None, waiter)
    rung(surroundings)
    number, _ = surroundings.submitted()
    waiter.put(None)
    with pytest.raises(CancelledError, match=r"^Request was cancelled$"):
        future.result(timeout=10)
    assert [record[:2] for record in surroundings.records()] == [(2, number)]  # CANCEL
    surroundings.say(number, EMPTY, more=False)  # comes all the same
    assert surroundings.port.counts["replies_held"] == surroundings.port.counts["requests_open"] == 0


def test_the_replies_to_several_requests_can_come_in_at_one_place(surroundings: Surroundings) -> None:
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    prepared = surroundings.prepared(10)
    first, second = [surroundings.transport.submit(prepared, replies) for _ in range(2)]
    surroundings.say(second, NAMED, more=False)
    surroundings.say(first, EMPTY, more=True)
    (reply, other) = replies.get_nowait(), replies.get_nowait()
    assert (reply.number, other.number) == (second, first)
    part = surroundings.transport.part(prepared, reply)
    assert part.answer is not None
    assert (part.answer.response.parameters, part.is_final) == ({"n": 1}, True)
    part.answer.release()
    surroundings.transport.drop(other)
    surroundings.transport.cancel(first)
    surroundings.say(first, EMPTY, more=False)
    assert replies.empty()
    assert surroundings.port.counts["replies_held"] == surroundings.port.counts["requests_open"] == 0


def test_infer_takes_the_last_of_several_replies(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    future = pool.submit(surroundings.transport.infer, surroundings.prepared(10))
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, EMPTY, more=True)
    surroundings.say(number, NAMED, more=False)
    assert future.result(timeout=10).response.parameters == {"n": 1}
    assert [record[0] for record in surroundings.records()] == [3]


def waiting_parts(surroundings: Surroundings, pool: ThreadPoolExecutor) -> Generator[StreamedResponse, None, None]:
    """A stream whose first reply has been taken, while two and the final one wait."""
    parts = surroundings.transport.stream(surroundings.prepared(10))
    first = pool.submit(next, parts)
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, EMPTY, more=True)
    answer = first.result(timeout=10).answer
    assert answer is not None
    answer.release()
    for more in (True, True, False):
        surroundings.say(number, EMPTY, more=more, tensors=bytes(100))
    return parts


def test_replies_that_wait_for_their_client_leave_the_worker_s_memory(
    surroundings: Surroundings, pool: ThreadPoolExecutor
) -> None:
    parts, kept = waiting_parts(surroundings, pool), surroundings.transport._kept
    assert surroundings.port.counts["replies_held"] == 1  # nothing waited before that one
    kept_bytes = [kept.nbytes]
    for part in parts:
        assert part.answer is not None
        assert bytes(part.answer.block[:100]) == bytes(100)
        part.answer.release()
        kept_bytes.append(kept.nbytes)
    block_nbytes = kept_bytes[0] // 2
    assert kept_bytes == [2 * block_nbytes, 2 * block_nbytes, block_nbytes, 0]
    assert block_nbytes >= 100 + len(EMPTY)
    assert surroundings.port.counts["replies_held"] == 0


def test_replies_that_were_kept_for_a_stream_end_with_it(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    parts, kept = waiting_parts(surroundings, pool), surroundings.transport._kept
    assert kept.nbytes > 0
    parts.close()
    assert (kept.nbytes, surroundings.port.counts["replies_held"]) == (0, 0)


def test_replies_that_wait_without_room_leave_a_worker_s_memory_once_it_lacks_any(
    surroundings: Surroundings, pool: ThreadPoolExecutor
) -> None:
    """They are copied where there is room by then; else they end when they have had their time."""
    kept, port = surroundings.transport._kept, surroundings.port
    kept.nbytes = kept.most_bytes
    parts = waiting_parts(surroundings, pool)
    (unread,) = surroundings.transport._held.unread
    assert isinstance(unread, StreamedReplies)
    block = unread._unread[0][0].block
    assert block is not None
    assert unread.recall({OF_ANOTHER}, inf, is_urgent=True) == 0
    assert unread.recall({OF_WORKER}, 0.0, is_urgent=True) == 0
    assert port.num_held == 3
    kept.nbytes -= 8 * len(block)
    surroundings.writer.push((15, 0, OF_WORKER, *[0] * 13))
    surroundings.writer.publish()
    surroundings.transport.shared.deliver()
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
    assert not surroundings.transport._held.unread
