"""A client of a real batcher's exchange, over real segments; the test plays supervisor and worker by hand."""

import gc
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from shoal.control import ADDRESS_VARIABLE, Listener
from shoal.errors import CancelledError, InternalError, ShoalError, UnavailableError
from shoal.messages.from_client import CallerConnected
from shoal.messages.shared import Refused
from shoal.request import unpack_request
from shoal.shm import layout
from shoal.star import client as module
from shoal.star.client import HeldResponse, join
from shoal.star.models import ModelEntry
from tests.batcher.star import CLIENT
from tests.client.client_harness import WAIT_S, ClientHarness
from tests.messages import receive

FAR = 1 << 62


class Told:
    """What a client was told of one request."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[HeldResponse | ShoalError | None, bool]] = queue.SimpleQueue()

    def __call__(self, answer: HeldResponse | ShoalError | None, is_final: bool) -> None:
        self._queue.put((answer, is_final))

    def next(self) -> tuple[HeldResponse | ShoalError | None, bool]:
        return self._queue.get(timeout=WAIT_S)

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


Fixture = Callable[..., ModelEntry]


@pytest.fixture
def around(make_entry: Fixture) -> Iterator[ClientHarness]:
    around = ClientHarness(make_entry("m", 0, [("A", "TYPE_FP32", [-1])]))
    yield around
    around.step()
    assert around.is_all_returned()


def values(answer: HeldResponse | ShoalError | None) -> Any:
    assert isinstance(answer, HeldResponse), answer
    (ref,) = answer.response.outputs
    return np.ndarray(ref.shape, np.float32, answer.block, ref.offset)


def test_an_answer_is_held_for_as_long_as_an_array_looks_into_it(around: ClientHarness) -> None:
    told = Told()
    around.client.submit(around.ask(np.arange(3, dtype=np.float32)), told, FAR)
    item = around.batch()
    asked = np.frombuffer(around.end.own.bytes, np.float32, 3, around.end.own.header.slab_offset)
    assert asked.tolist() == [0, 1, 2]
    around.answer(item, np.array([5, 6], np.float32))
    answer, is_final = told.next()
    assert is_final
    view = values(answer)[1:]
    del answer
    gc.collect()
    around.step()
    assert view.tolist() == [6]
    assert around.star.exchange.holders.num_held == 1
    del view
    assert around.is_all_returned()


def test_beyond_what_may_be_held_answers_are_copies(around: ClientHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD_NBYTES", 4096)
    answers = []
    for number in range(3):
        told = Told()
        around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
        around.answer(around.batch(), np.array([number], np.float32))
        answers.append(told.next()[0])
    end = time.monotonic() + WAIT_S
    while around.star.exchange.holders.num_held > 1 and time.monotonic() < end:
        around.step()
    assert around.star.exchange.holders.num_held == 1
    assert [values(answer).tolist() for answer in answers] == [[0], [1], [2]]
    assert [isinstance(answer, HeldResponse) and bool(answer.ref) for answer in answers] == [True, False, False]
    with pytest.raises(ValueError, match="read-only"):
        values(answers[2])[0] = 1
    answers.clear()
    assert around.is_all_returned()
    around.worker.received()
    told = Told()
    around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
    around.answer(around.batch(), np.zeros(1, np.float32))
    answer, _ = told.next()
    assert isinstance(answer, HeldResponse)
    assert answer.ref  # there is room again
    del answer, told


def test_an_array_cannot_be_written_to(around: ClientHarness) -> None:
    told = Told()
    around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
    around.answer(around.batch(), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        values(told.next()[0])[0] = 1


def test_a_models_sentence_is_the_answer(around: ClientHarness) -> None:
    told = Told()
    around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
    item = around.batch()
    block = around.slab.allocate(10)
    assert block is not None
    block.memory[:2] = b"no"
    around.worker.send(layout.DONE, item[layout.B.KEY], item[layout.B.BATCH], UnavailableError.wire, block.ref, 2)
    around.step()
    error, is_final = told.next()
    assert (type(error), str(error), is_final) == (UnavailableError, "no", True)


def test_many_answers_to_one_request(around: ClientHarness) -> None:
    told = Told()
    around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
    item = around.batch()
    for number in range(3):
        around.answer(item, np.full(1, number, np.float32), layout.RESPONSE)
    around.worker.send(layout.DONE, item[layout.B.KEY], item[layout.B.BATCH])
    around.step()
    assert [(values(answer).tolist(), is_final) for answer, is_final in (told.next() for _ in range(3))] == [
        ([number], False) for number in range(3)
    ]
    assert told.next() == (None, True)


def test_a_deadline_ends_the_wait_and_the_late_answer_is_dropped(around: ClientHarness) -> None:
    told = Told()
    around.client.submit(around.ask(np.zeros(1, np.float32)), told, time.monotonic_ns())
    error, is_final = told.next()
    assert (type(error), is_final) == (UnavailableError, True)
    assert str(error) == "Request timeout expired: no answer from model 'm' in time"
    around.step()  # the batcher hears of the request and of its end
    assert around.star.exchange.num_open <= 1
    if items := around.worker.received():  # it was quicker than the end
        around.answer(items[0], np.zeros(1, np.float32))
    assert told.is_empty


def test_an_unwanted_request_is_cancelled(around: ClientHarness) -> None:
    told, unwanted = Told(), threading.Event()
    around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR, unwanted.is_set)
    item = around.batch()
    unwanted.set()
    error, is_final = told.next()
    assert (type(error), is_final) == (CancelledError, True)
    around.answer(item, np.zeros(1, np.float32))
    assert told.is_empty


def test_lent_blocks_are_waited_for(around: ClientHarness) -> None:
    told, ref, keep = Told(), 12345, object()
    array = np.zeros(100, np.float32)
    around.client.submit(around.ask(array, ref=ref, offset=64), told, FAR, keep=keep)
    item = around.batch()
    block, span = item[layout.B.BLOCK], item[layout.B.HEADER]
    assert block >> 40 == CLIENT
    memory = around.port.slab.open(block)
    header = memory[span >> 32 :][: span & 0xFFFFFFFF]
    with pytest.raises(InternalError):
        unpack_request(header, len(memory))  # a worker alone reads what is lent
    assert bytes(header).endswith(b"\xcd\x30\x39\x90\x80") or b"\xcd\x30\x39" in bytes(header)  # 12345
    for _ in range(2):
        around.client.lend([ref])
    assert around.client.has_lent([1, ref])
    assert not around.client.has_lent([1])
    waiting = threading.Thread(target=around.client.wait_until_returned, args=([ref],))
    waiting.start()
    around.answer(item, np.zeros(1, np.float32))
    told.next()
    around.client.give_back([ref])
    assert around.client.has_lent([ref])
    around.client.give_back([ref])
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_threads_get_their_own_answers(around: ClientHarness) -> None:
    found: dict[int, list[float]] = {}

    def call(number: int) -> None:
        told = Told()
        around.client.submit(around.ask(np.full(1, number, np.float32)), told, FAR)
        found[number] = values(told.next()[0]).tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + WAIT_S
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < end
        around.step()
        for item in around.worker.received():
            if item[0] == layout.BATCH_ITEM:
                block, span = around.port.slab.open(item[layout.B.BLOCK]), item[layout.B.HEADER]
                (asked,) = unpack_request(block[span >> 32 :][: span & 0xFFFFFFFF], len(block)).inputs
                around.answer(item, np.ndarray((1,), np.float32, block, asked.offset) * 10)
    assert found == {number: [number * 10] for number in range(8)}


def test_of_thousands_of_answers_that_are_let_go_the_batcher_is_woken_and_requests_still_find_room(
    around: ClientHarness,
) -> None:
    answers = []
    for number in range(4):
        told = Told()
        around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
        around.answer(around.batch(), np.full(1, number, np.float32))
        answers.append(told.next())
    around.batcher_bell.clear()
    around.crowd(2 * 32 + 2)
    answers.clear()
    gc.collect()
    assert select.select([around.batcher_bell], [], [], WAIT_S)[0]  # two releases are there, two wait for room
    assert around.end.own.header.ring_capacity - around.port_unread() == 2 * 32
    around.step()
    assert around.is_all_returned()


def test_a_request_for_which_the_ring_has_no_room_is_refused_and_takes_no_memory(around: ClientHarness) -> None:
    around.crowd(0)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        around.client.submit(around.ask(np.zeros(1, np.float32)), Told(), FAR)
    assert (around.port.slab.num_taken, around.port.counts["requests_open"]) == (0, 0)


def test_a_request_is_given_up_although_the_ring_has_no_room_to_say_so(around: ClientHarness) -> None:
    told = Told()
    number = around.client.submit(around.ask(np.zeros(1, np.float32)), told, FAR)
    item = around.batch()
    around.crowd(0)
    around.client.cancel(number)
    assert isinstance(told.next()[0], CancelledError)
    around.answer(item, np.zeros(1, np.float32))


class Supervisor:
    """What answers one join, at an address of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        self._listener = Listener.create()
        monkeypatch.setenv(ADDRESS_VARIABLE, self._listener.address)
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        select.select([self._listener], [], [], WAIT_S)
        accepted = self._listener.accept()
        assert accepted is not None
        channel, _ = accepted
        channel.setblocking(True)
        assert receive(channel)[0] == CallerConnected()
        channel.send(self._answer)
        channel.close()
        self._listener.close()

    def close(self) -> None:
        self._thread.join()


def test_a_join_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(monkeypatch, Refused(wire=5, sentence="no room"))
    with pytest.raises(UnavailableError, match=r"^no room$"):
        join()
    supervisor.close()
