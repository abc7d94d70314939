"""The queue: its order and bounds, and that a refused or cancelled request leaves no trace."""

import pytest

from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.errors import UnavailableError


def request(key: int, rows: int = 1) -> QueuedRequest:
    return QueuedRequest(key, rows, shape_key=0, arrival_ns=100 + key)


def filled(*requests: QueuedRequest, max_queue_size: int = 0, max_total_queue: int = 100) -> RequestQueue:
    queue = RequestQueue(max_queue_size, max_total_queue)
    for each in requests:
        queue.add(each)
    return queue


def test_serves_in_order_of_arrival() -> None:
    queue = filled(request(7), request(3), request(5))
    assert [each.key for each in queue] == [7, 3, 5]
    assert [queue.popleft().key for _ in range(3)] == [7, 3, 5]
    assert len(queue) == 0


def test_counts_rows_and_requests() -> None:
    queue = filled(request(1, rows=4), request(2), request(3, rows=2))
    assert (len(queue), queue.rows) == (3, 7)
    queue.popleft()
    assert (len(queue), queue.rows) == (2, 3)
    assert queue.cancel(3)
    assert (len(queue), queue.rows) == (1, 1)


def test_the_delay_counts_from_the_first_that_is_left() -> None:
    queue = filled(request(1), request(2))
    assert queue.oldest_arrival_ns() == 101
    queue.cancel(1)
    assert queue.oldest_arrival_ns() == 102


def test_what_is_not_waiting_cannot_be_cancelled() -> None:
    queue = filled(request(1), request(2))
    queue.popleft()
    assert not queue.cancel(1)
    assert not queue.cancel(9)
    assert [each.key for each in queue] == [2]


def test_a_key_may_come_back_after_it_was_cancelled() -> None:
    queue = filled(request(1), request(2))
    queue.cancel(1)
    queue.add(request(1))
    assert [each.key for each in queue] == [2, 1]


@pytest.mark.parametrize(("max_queue_size", "max_total_queue"), [(2, 100), (0, 2), (5, 2)])
def test_a_full_queue_refuses_with_tritons_sentence_and_stays_as_it_is(
    max_queue_size: int, max_total_queue: int
) -> None:
    queue = filled(request(1), request(2, rows=3), max_queue_size=max_queue_size, max_total_queue=max_total_queue)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        queue.add(request(3))
    assert [each.key for each in queue] == [1, 2]
    assert queue.rows == 4
    queue.popleft()
    queue.add(request(3))


def test_requests_in_payloads_count_towards_the_servers_bound_only() -> None:
    queue = filled(request(1), max_queue_size=2, max_total_queue=4)
    queue.add(request(2), num_in_payloads=2)
    queue.popleft()
    with pytest.raises(UnavailableError):
        queue.add(request(3), num_in_payloads=3)
    queue.add(request(3), num_in_payloads=2)


def test_drain_empties_it() -> None:
    queue = filled(request(1), request(2))
    assert [each.key for each in queue.drain()] == [1, 2]
    assert (len(queue), queue.rows) == (0, 0)
