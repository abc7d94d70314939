"""A payload: merging and cancelling keep order and row count."""

from shoal.batcher.scheduling.payload import Payload
from shoal.batcher.scheduling.queue import QueuedRequest


def payload(*requests: tuple[int, int]) -> Payload:
    made = Payload(shape_key=0)
    made.requests = [QueuedRequest(key, rows, 0, 0) for key, rows in requests]
    made.rows = sum(rows for _, rows in requests)
    return made


def test_merge_appends() -> None:
    first = payload((1, 2))
    first.merge(payload((2, 1), (3, 4)))
    assert [request.key for request in first.requests] == [1, 2, 3]
    assert first.rows == 7


def test_cancel_removes_one_and_its_rows() -> None:
    cut = payload((1, 2), (2, 3), (3, 1))
    assert cut.cancel(2)
    assert [request.key for request in cut.requests] == [1, 3]
    assert cut.rows == 3


def test_cancel_of_a_stranger_changes_nothing() -> None:
    cut = payload((1, 2))
    assert not cut.cancel(2)
    assert (len(cut.requests), cut.rows) == (1, 2)
