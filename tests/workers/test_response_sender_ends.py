"""Responses and ends that the batcher has no room for, and an end that comes in the middle of anything."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from shoal.errors import InternalError, UnavailableError
from shoal.shm.slab import taken_nbytes
from shoal.workers.response_sender import WINDOW, ResponseSender, WrittenResponseSender
from tests.garbage import ids_of
from tests.workers.sending import DONE, Sending, heard, output, rung, started, value
from tests.workers.worker_harness import CONFIG, Batcher, loop_of, rows


def fill_ring(batcher: Batcher) -> ResponseSender:
    """Half of the worker's ring is full, which is all that senders may use; this one did not help."""
    *others, last = started(batcher, num_requests=5).senders
    for number in range(127):  # and the news that the instance is free
        others[number // WINDOW].fail(InternalError("no"), final=False)
    return last


@pytest.mark.parametrize("how", ["send", "fail"])
def test_a_response_that_cannot_be_published_is_taken_back(make_batcher: Callable[..., Batcher], how: str) -> None:
    batcher = make_batcher(block_wait_s=0.01)
    sender = fill_ring(batcher)
    before = taken_nbytes(batcher.worker_view)
    attempt = {"send": partial(sender.send, output(1)), "fail": partial(sender.fail, InternalError("no"))}[how]
    with pytest.raises(UnavailableError, match="has not read the worker's ring for too long"):
        attempt(final=False)
    assert taken_nbytes(batcher.worker_view) - before == 4096  # of the error that ends the request
    assert not sender.is_open


def test_the_end_of_a_request_waits_for_room_however_long(make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(block_wait_s=0.01)
    sender = fill_ring(batcher)
    sender.finish()
    assert not sender.is_open
    assert len(heard(batcher)) == 128
    last: list[tuple[int, ...]] = []
    while not last:
        rung(batcher)
        last = heard(batcher)
    assert [record[:5] for record in last] == [(DONE, 5, 0, 0, 0)]


def test_a_sender_may_be_dropped_in_the_middle_of_anything(batcher: Batcher) -> None:
    backend = Sending()
    loop = loop_of(batcher, CONFIG, backend)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    loop.step()
    (sender,) = backend.senders
    heard(batcher)
    batcher.bell.clear()
    with ThreadPoolExecutor(1) as pool, loop._memory.lock:
        pool.submit(sender.fail_later, InternalError("dropped")).result(timeout=10)
        assert heard(batcher) == []
    rung(batcher)
    (last,) = heard(batcher)
    assert (last[0], last[3], value(batcher, last)) == (DONE, 2, "dropped")


@pytest.mark.usefixtures("no_garbage")
def test_a_request_that_has_ended_is_freed_without_a_garbage_collection(make_batcher: Callable[..., Batcher]) -> None:
    """A client's memory stays mapped as long as anything refers to it, though the client has died."""
    backend = started(make_batcher(), num_requests=2)
    senders = set(map(id, backend.senders))
    assert senders <= ids_of(WrittenResponseSender)
    while backend.senders:
        backend.senders.pop().finish()
    backend.requests.clear()
    backend.loop.step()
    assert not senders & ids_of(WrittenResponseSender)
