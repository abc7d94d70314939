"""Who rings is looked at, and who does not only where something may stand in its ring that others wait for."""

import select
import threading
from collections import Counter
from typing import Any

import pytest

from shoal.batcher import batcher as loop
from shoal.batcher.bells import Bells
from shoal.shm.doorbell import RING_AFTER_NS, Doorbell, GuestBell
from shoal.shm.layout import (
    BATCH_ITEM,
    BUSY_SINCE_WORD,
    CLIENT,
    DONE,
    FREE,
    RELEASE,
    REPLY,
    WANT,
    B,
    P,
    pack_ref,
    record,
)
from shoal.shm.ring import RingReader
from tests.batcher.batcher_process import FIRST, FRONT_END, Supervisor, answer, batching
from tests.batcher.batcher_process import End as Peer
from tests.batcher.batcher_process import ask as ask_for
from tests.batcher.ensemble_star import CHAIN, EnsembleStar
from tests.batcher.star import HEADER, SINGLE, WORKER, End, Star, ask, one_of_each

OTHER = 22
MANY = 8
OUTPUT_BLOCK = pack_ref(WORKER, 2, 1)


def execute(worker: End) -> None:
    for item in worker.received():
        if item[0] == BATCH_ITEM:
            worker.send(DONE, item[B.KEY], item[B.BATCH], 0, OUTPUT_BLOCK, HEADER, 600, 610, 620, 20_630)


def served(*, count: int) -> tuple[Star, End, End]:
    """A star of one client and one worker, which has answered some requests that the client has not released."""
    star, client, worker = one_of_each(SINGLE)
    for number in range(1, count + 1):
        ask(client, number)
        star.exchange.step(500, [client.owner])
        execute(worker)
        star.exchange.step(500, [WORKER])
    client.received()
    return star, client, worker


def test_only_the_rings_of_those_that_have_rung_are_looked_into() -> None:
    star, client, worker = one_of_each(SINGLE)
    other = star.add_client(OTHER)
    ask(client, 1)
    ask(other, 1)
    star.exchange.step(500, [other.owner])
    assert [item[B.KEY] >> 40 for item in worker.received()] == [OTHER]
    star.exchange.step(500, [])
    assert star.exchange.num_open == 1
    star.exchange.step(500)
    assert star.exchange.num_open == 2


def test_a_bell_of_a_process_that_is_gone_is_ignored() -> None:
    star, client, _ = one_of_each(SINGLE)
    star.exchange.remove_client(client.owner)
    star.remove_worker(WORKER, 500)
    star.exchange.step(500, [client.owner, WORKER, 99])
    assert star.exchange.num_open == 0


def test_a_worker_that_lacks_memory_gets_what_clients_have_released_without_ringing() -> None:
    star, client, worker = served(count=1)
    client.send(RELEASE, 1)
    star.exchange.step(600, [])
    assert worker.received() == []
    worker.send(WANT)
    star.exchange.step(600, [WORKER])
    assert [record[:4] for record in worker.received()] == [(FREE, 0, 0, OUTPUT_BLOCK)]


def test_answers_before_a_long_execution_are_seen_though_their_worker_does_not_ring() -> None:
    star, client, worker = served(count=40)  # so fast that it is given work ahead
    ask(client, 41, 42)
    star.exchange.step(500, [client.owner])
    first, _ = [item for item in worker.received() if item[0] == BATCH_ITEM]
    worker.send(DONE, first[B.KEY], first[B.BATCH], 0, OUTPUT_BLOCK, HEADER, 600, 610, 620, 20_630)
    star.exchange.step(700, [])
    assert [reply[P.NUMBER] for reply in client.received()] == [41]


def test_a_ring_is_looked_into_unasked_until_its_worker_is_sure_to_ring() -> None:
    star, client, worker = served(count=40)
    exchange, now_ns = star.exchange, 10**9
    assert not exchange.may_miss_answers(now_ns)
    ask(client, 41, 42)
    exchange.step(now_ns, [client.owner])
    first, _ = [item for item in worker.received() if item[0] == BATCH_ITEM]
    assert exchange.may_miss_answers(now_ns)  # the first execution may be short
    worker.own.words[BUSY_SINCE_WORD] = now_ns
    assert exchange.may_miss_answers(now_ns + RING_AFTER_NS)
    now_ns += RING_AFTER_NS + 1
    assert not exchange.may_miss_answers(now_ns)
    worker.send(DONE, first[B.KEY], first[B.BATCH], 0, OUTPUT_BLOCK, HEADER, 600, 610, 620, 20_630)
    assert exchange.may_miss_answers(now_ns)
    exchange.step(now_ns, [])
    assert not exchange.may_miss_answers(now_ns)
    worker.own.words[BUSY_SINCE_WORD] = 0
    assert exchange.may_miss_answers(now_ns)


def test_without_room_for_ensembles_all_clients_rings_are_looked_into_and_no_workers() -> None:
    star = EnsembleStar(CHAIN, (5, 6))
    own = star.exchange.blocks.own
    assert own is not None
    ask(star.client, 1)
    star.exchange.step(500, [])
    assert star.exchange.num_open == 0
    while own.is_roomy:
        assert own.allocate(4096) is not None
    star.double.send(WANT)
    star.exchange.step(500, [])
    assert star.exchange.num_open == 1
    assert star.exchange.workers[star.double.owner].reader.has_unread()


def test_bells_know_whose_they_are_and_are_closed_with_their_peers() -> None:
    with select.epoll() as poller:
        bells = Bells(poller)
        plain, (near, far) = Doorbell.create(), GuestBell.pair()
        bells.add(1, plain)
        bells.add(2, near)
        for _ in range(2):  # edges: each ring is one
            plain.ring()
            far.ring()
            assert sorted(bells.owners[fd] for fd, _ in poller.poll(0)) == [1, 2]
            assert poller.poll(0) == []
        assert list(bells.guests.values()) == [near]
        for owner in (1, 2, 2, 3):
            bells.remove(owner)
        assert (bells.owners, bells.guests, plain.fd, near.fd) == ({}, {}, -1, -1)


# --- the loop itself ---


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the batcher's thread, which never looks at all rings unasked, looks into a ring."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(loop, "LOOK_NS", 10**18)

    def counted(name: str) -> Any:
        original = getattr(RingReader, name)

        def look(reader: RingReader) -> Any:
            if threading.current_thread() is not threading.main_thread():
                counts[name] += 1
            return original(reader)

        return look

    for name in ("read", "has_unread"):
        monkeypatch.setattr(RingReader, name, counted(name))
    return counts


def test_a_lone_request_costs_no_look_more_beside_busy_workers_and_idle_clients(looks: Counter[str]) -> None:
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)

        def lone(number: int) -> int:
            """How many looks one request takes."""
            looks.clear()
            ask_for(client, number)
            answer(worker, worker.receive())
            assert client.receive()[:2] == (REPLY, number)
            return looks.total()

        lone(1)  # the batcher has done with what it was told last
        alone = lone(2)
        busy = _keep_busy(supervisor, client, worker)
        lone(100)
        assert lone(101) == alone <= 4
        for each, item in busy:
            answer(each, item)
            client.receive()


def test_an_answer_before_a_long_execution_is_passed_on_though_no_bell_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAX_SLEEP_S", 60.0)
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        for number in range(1, 41):  # so fast that the worker is given work ahead
            ask_for(client, number)
            answer(worker, worker.receive())
            assert client.receive()[:2] == (REPLY, number)
        ask_for(client, 41)
        fast = worker.receive()
        ask_for(client, 42)
        assert worker.receive()[0] == BATCH_ITEM
        worker.writer.push(record(DONE, fast[B.KEY], fast[B.BATCH]))
        worker.writer.publish()  # and it begins the next execution
        assert client.receive()[:2] == (REPLY, 41)


def _keep_busy(supervisor: Supervisor, client: Peer, worker: Peer) -> list[tuple[Peer, tuple[int, ...]]]:
    """Many clients that are idle, many workers that execute, and the first one idle again."""
    for owner in range(50, 50 + MANY):
        supervisor.add(CLIENT, owner)
    workers = [supervisor.add_worker(owner) for owner in range(70, 70 + MANY)]
    for number in range(10, 11 + MANY):
        ask_for(client, number)
    answer(worker, worker.receive())
    client.receive()
    return [(each, each.receive()) for each in workers]
