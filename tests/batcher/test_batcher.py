"""The batcher's loop, at a real control connection: the test plays the supervisor, a client and workers."""

import fcntl
import os
import struct
import termios
import time

import pytest

from shoal.batcher import batcher
from shoal.messages import to_batcher
from shoal.messages.from_batcher import ModelRetired, WorkerRetired
from shoal.messages.shared import LedgerWanted, Ping
from shoal.shm import layout, segment
from shoal.shm.doorbell import GuestBell
from shoal.shm.layout import BATCH_ITEM, CLIENT, HAVE, LINK, REPLY, REQUEST, B, P
from shoal.shm.segment import Segment
from tests.batcher.batcher_process import FIRST, FRONT_END, MODEL, SECOND, End, answer, ask, batching
from tests.batcher.star import GEOMETRY

NEVER_S = 1000.0


def place(client: End, number: int) -> None:
    """A request stands in the client's ring, and no bell has rung for it."""
    client.writer.push(layout.record(REQUEST, number, MODEL, layout.pack_ref(FRONT_END, 3, 1), 64 << 32 | 40, 1))
    client.writer.publish()


def test_a_worker_that_makes_way_is_reported_when_it_has_answered() -> None:
    with batching() as supervisor:
        client, first = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        ask(client, 1)
        item = first.receive()
        supervisor.send_message(to_batcher.RetireWorker(FIRST))
        second = supervisor.add_worker(SECOND)
        ask(client, 2)
        answer(second, second.receive())
        assert client.receive()[P.NUMBER] == 2
        answer(first, item)
        assert supervisor.receive() == WorkerRetired(FIRST)
        assert client.receive()[:2] == (REPLY, 1)
        supervisor.send_message(to_batcher.WorkerDied(FIRST, 5, 0, is_repeated=False))


def test_a_model_that_makes_way_first_serves_what_stands_in_rings() -> None:
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        place(client, 1)
        supervisor.send_message(to_batcher.RetireModel(MODEL))
        item = worker.receive()
        assert item[0] == BATCH_ITEM
        answer(worker, item)
        assert supervisor.receive() == ModelRetired(MODEL)
        supervisor.send_message(to_batcher.ModelRemoved(MODEL))


def test_a_successor_that_is_told_again_reports_after_it_serves() -> None:
    with batching(is_successor=True) as supervisor:
        supervisor.add(CLIENT, FRONT_END)
        supervisor.add_worker(FIRST)
        for message in (to_batcher.RetireWorker(FIRST), to_batcher.RetireModel(MODEL)):
            supervisor.send_message(message)
        supervisor.send_message(Ping())  # turns the loop once more; nothing may have been said
        supervisor.send_message(to_batcher.Resume())
        assert supervisor.receive() == WorkerRetired(FIRST)
        assert supervisor.receive() == ModelRetired(MODEL)


def test_a_successor_looks_once_more_at_a_worker_that_has_told_it_all() -> None:
    with batching(is_successor=True) as supervisor:
        supervisor.add(CLIENT, FRONT_END)
        worker = supervisor.add_worker(FIRST)
        supervisor.send_message(to_batcher.Resume())
        for number in (1, 2):  # from the second time on nothing else is awaited of it
            worker.send(HAVE, 0, 0, 0, layout.pack_ref(FIRST, number, 1))
            supervisor.send_message(to_batcher.WorkerCaughtUp(FIRST))
            supervisor.channel.send(LedgerWanted())
            counts = supervisor.receive().counts
            assert (counts["slots_acquired"], counts["slots_released"]) == (number, number)


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batcher looks at all rings for no other reason than what wakes it: not once a second, nor after a sleep."""
    monkeypatch.setattr(batcher, "LOOK_NS", round(NEVER_S * 1e9))
    monkeypatch.setattr(batcher, "MAX_SLEEP_S", NEVER_S)


def test_the_wall_clock_may_be_set_while_the_batcher_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    offset_ns, time_ns = 0, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + offset_ns)
    monkeypatch.setattr(batcher, "LOOK_NS", 0)
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        last_ms = []
        for number in (1, 2):
            for _ in range(2):  # a turn of the loop, at whose end the clock is looked at, and the beginning of the next
                supervisor.send_message(Ping())
            ask(client, number)
            answer(worker, worker.receive())
            client.receive()
            supervisor.send_message(Ping())
            last_ms.append(supervisor.counters.read(0).cells["last_inference_ms"])
            offset_ns = 86_400_000_000_000
        assert 86_400_000 <= last_ms[1] - last_ms[0] < 86_460_000


@pytest.mark.usefixtures("no_looks")
def test_a_bell_says_whose_ring_is_read_and_the_supervisor_or_the_own_bell_that_all_are() -> None:
    other = FRONT_END + 1
    with batching() as supervisor:
        client, silent = supervisor.add(CLIENT, FRONT_END), supervisor.add(CLIENT, other)
        worker = supervisor.add_worker(FIRST)
        ask(client, 1)
        answer(worker, worker.receive())
        assert client.receive()[P.NUMBER] == 1  # so the steps that follow the supervisor's messages are over
        place(silent, 1)
        ask(client, 2)
        item = worker.receive()
        assert item[B.KEY] == FRONT_END << layout.NUMBER_BITS | 2
        answer(worker, item)
        assert client.receive()[P.NUMBER] == 2
        assert not [*worker.reader.drain()]
        supervisor.send_message(Ping())
        answer(worker, worker.receive())
        assert silent.receive()[P.NUMBER] == 1
        place(silent, 3)
        supervisor.bell.ring()
        answer(worker, worker.receive())
        assert silent.receive()[P.NUMBER] == 3


def test_rings_are_read_after_a_sleep_that_no_bell_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "LOOK_NS", round(NEVER_S * 1e9))
    monkeypatch.setattr(batcher, "MAX_SLEEP_S", 0.05)
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        place(client, 1)
        answer(worker, worker.receive())
        assert client.receive()[P.NUMBER] == 1


@pytest.mark.usefixtures("no_looks")
def test_what_a_guest_has_rung_is_taken_out_of_its_socket() -> None:
    """Else the socket is full after some hundred rings, and no further ring wakes the batcher."""
    guest = FRONT_END + 1
    own, link = (
        segment.create(CLIENT, guest, GEOMETRY, sealed=True),
        segment.create(LINK, guest, GEOMETRY, sealed=False),
    )
    batchers, guests = GuestBell.pair()
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        supervisor.send_message(
            to_batcher.ClientJoined(guest, segment.read_only(own), link, os.dup(batchers.fd), None, is_guest=True)
        )
        for _ in range(100):
            guests.ring()
        for number in (1, 2):  # the second pass of the loop begins after all of the first
            ask(client, number)
            answer(worker, worker.receive())
            assert client.receive()[P.NUMBER] == number
        (num_unread,) = struct.unpack("i", fcntl.ioctl(guests.fd, termios.TIOCOUTQ, bytes(4)))
        assert num_unread == 0
    Segment.attach(own)
