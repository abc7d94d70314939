"""A worker, or the batcher, that lacks memory: which front ends are asked for what they hold of it, and how often."""

import pytest

from shoal.batcher.guests import GUEST_HOLDS_NS
from shoal.batcher.shortages import FORGOTTEN_NS, URGENT_NS
from shoal.messages.from_batcher import ProcessDistrusted
from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, DONE, RECALL, RELEASE, REQUEST, RESPONSE, UNIT, WANT, B, P, pack_ref
from shoal.shm.slab import Slab
from tests.batcher.ensemble_star import CHAIN, DOUBLE, FAN, EnsembleStar
from tests.batcher.star import CLIENT, MODEL, SINGLE, WORKER, End, Star, ask

FRONT_END, CALLER, GUEST, OTHER, OTHER_WORKER, OTHER_MODEL = 21, 22, 41, 42, 32, 6
#: Urgencies.
NEWS, ROOM, ROOM_NOW = 0, 1, 2
NOW = 1_000_000_000_000


def answered(star: Star, client: End, worker: End, number: int, segment: int = WORKER) -> int:
    """A reply that the client holds, in a block of that segment."""
    ask(client, number)
    star.exchange.step(NOW)
    (item,) = [record for record in worker.received() if record[0] == 5]
    ref = pack_ref(segment, number, 1)
    worker.send(DONE, item[B.KEY], item[B.BATCH], 0, ref)
    star.exchange.step(NOW)
    assert [record[3] for record in client.received()] == [ref]
    return ref


def want(star: Star, worker: End, urgency: int, now_ns: int = NOW) -> None:
    """WANT of a worker that is at work."""
    star.exchange.busy[worker.owner] = star.exchange.workers[worker.owner]
    worker.send(WANT, 0, 0, urgency)
    star.exchange.step(now_ns)


def star_of_one() -> tuple[Star, End, End]:
    star = Star()
    model = star.add_model(MODEL, SINGLE)
    return star, star.add_client(FRONT_END, is_front_end=True), star.add_worker(WORKER, model)


def test_a_front_end_is_asked_for_what_it_holds_once_until_it_has_read_that() -> None:
    star, front_end, worker = star_of_one()
    answered(star, front_end, worker, 1)
    want(star, worker, NEWS)
    assert front_end.received() == []
    front_end.bell.clear()
    for _ in range(3):
        want(star, worker, ROOM)
    assert [record[:4] for record in front_end.received()] == [(RECALL, 0, WORKER, 0)]
    want(star, worker, ROOM)
    assert len(front_end.received()) == 1
    front_end.send(RELEASE, 1)
    want(star, worker, ROOM)
    assert front_end.received() == []  # it holds nothing any more


def test_others_are_not_asked() -> None:
    """Neither who holds another worker's results, nor who cannot give them back."""
    star, front_end, worker = star_of_one()
    caller, guest = star.add_client(CALLER), star.add_client(GUEST, is_guest=True)
    star.exchange.models[MODEL].is_fixed = True
    answered(star, caller, worker, 1)
    guest.send(1, 1, MODEL, pack_ref(GUEST, 3, 1), 64 << 32 | 40, 1, 0, 0, 0, 0, 0, NOW)
    star.exchange.step(NOW)
    (item,) = worker.received()
    worker.send(DONE, item[B.KEY], item[B.BATCH], 0, pack_ref(WORKER, 9, 1))
    star.exchange.step(NOW)
    assert len(guest.received()) == 1
    want(star, worker, ROOM)
    assert [end.received() for end in (front_end, caller, guest)] == [[], [], []]


def test_only_what_is_urgent_is_for_results_in_segments_of_their_own() -> None:
    star, front_end, worker = star_of_one()
    segments = range(100, 120)
    for number, segment in enumerate(segments):
        star.exchange.blocks.add_result(segment, WORKER)
        answered(star, front_end, worker, number + 1, segment)
    want(star, worker, ROOM)
    assert front_end.received() == []  # none of it is room in the slab
    want(star, worker, ROOM_NOW)
    records = front_end.received()
    assert {record[:2] for record in records} == {(RECALL, 1)}
    owners = [owner for record in records for owner in record[2:] if owner]
    assert sorted(owners) == list(segments)


def test_a_front_end_whose_ring_is_full_is_asked_again() -> None:
    star, front_end, worker = star_of_one()
    answered(star, front_end, worker, 1)
    writer = star.exchange.clients[FRONT_END].writer
    while writer.num_free:
        writer.push((4, 99))
    want(star, worker, ROOM)
    assert {record[0] for record in front_end.received()} == {4}
    want(star, worker, ROOM)
    assert [record[:3] for record in front_end.received()] == [(RECALL, 0, WORKER)]


@pytest.mark.parametrize("urgency", [NEWS, ROOM])
def test_a_guest_goes_only_where_there_is_no_other_memory(urgency: int) -> None:
    """A worker that waits for news lacks no memory: another client reads the responses of a stream slowly. So where it
    then does, the guest has its time all the same."""
    star, _, worker = star_of_one()
    guest = star.add_client(GUEST, is_guest=True)
    star.exchange.models[MODEL].is_fixed = True
    guest.send(1, 1, MODEL, pack_ref(GUEST, 3, 1), 64 << 32 | 40, 1, 0, 0, 0, 0, 0, NOW)
    star.exchange.step(NOW)
    (item,) = worker.received()
    worker.send(DONE, item[B.KEY], item[B.BATCH], 0, pack_ref(WORKER, 9, 1))
    star.exchange.step(NOW)
    for now_ns in (NOW, NOW + GUEST_HOLDS_NS, NOW + GUEST_HOLDS_NS + 1):
        want(star, worker, urgency, now_ns)
    assert star.reports() == []
    want(star, worker, ROOM_NOW, NOW + GUEST_HOLDS_NS + 1)
    if urgency == NEWS:
        assert star.reports() == []
        want(star, worker, ROOM_NOW, NOW + 2 * GUEST_HOLDS_NS + 2)
    assert star.reports() == [ProcessDistrusted(GUEST)]


@pytest.mark.parametrize(("units", "is_ended"), [(2, True), (4, False)])
def test_a_guest_that_holds_little_beside_a_front_end_stays(units: int, is_ended: bool) -> None:
    """Two replies of one block each; the front end holds one of that many. The more replies were taken for more."""
    star, front_end, worker = star_of_one()
    guest = star.add_client(GUEST, is_guest=True)
    star.exchange.models[MODEL].is_fixed = True
    slab = Slab(worker.own)
    for number in range(3):
        if number < 2:
            block = pack_ref(GUEST, 3 + number, 1)
            guest.send(1, number + 1, MODEL, block, 64 << 32 | 40, 1, 0, 0, 0, 0, 0, NOW)
        else:
            ask(front_end, 1)
        star.exchange.step(NOW)
        (item,) = [record for record in worker.received() if record[0] == BATCH_ITEM]
        taken = slab.allocate(UNIT if number < 2 else units * UNIT)
        assert taken is not None
        worker.send(DONE, item[B.KEY], item[B.BATCH], 0, taken.ref)
        star.exchange.step(NOW)
    want(star, worker, ROOM_NOW)
    want(star, worker, ROOM_NOW, NOW + GUEST_HOLDS_NS + 1)
    assert star.reports() == [ProcessDistrusted(GUEST)] * is_ended


@pytest.mark.parametrize("kind", [DONE, RESPONSE])
def test_a_guest_has_its_time_again_once_the_worker_has_gone_on(kind: int) -> None:
    """A stream's last DONE names no block, and its responses are no DONE. The shortage is over with either."""
    star, _, worker = star_of_one()
    guest = star.add_client(GUEST, is_guest=True)
    star.exchange.models[MODEL].is_fixed = True
    for number in (1, 2):
        guest.send(1, number, MODEL, pack_ref(GUEST, 2 + number, 1), 64 << 32 | 40, 1, 0, 0, 0, 0, 0, NOW)
    star.exchange.step(NOW)
    (held,) = [record for record in worker.received() if record[0] == BATCH_ITEM]
    worker.send(DONE, held[B.KEY], held[B.BATCH], 0, pack_ref(WORKER, 9, 1))
    star.exchange.step(NOW)
    (streamed,) = [record for record in worker.received() if record[0] == BATCH_ITEM]
    want(star, worker, ROOM)
    worker.send(kind, streamed[B.KEY], streamed[B.BATCH])
    star.exchange.step(NOW)
    later = NOW + 10 * GUEST_HOLDS_NS
    want(star, worker, ROOM_NOW, later)
    want(star, worker, ROOM_NOW, later + GUEST_HOLDS_NS)
    assert star.reports() == []
    want(star, worker, ROOM_NOW, later + GUEST_HOLDS_NS + 1)
    assert star.reports() == [ProcessDistrusted(GUEST)]


def star_without_memory_for_ensembles() -> tuple[EnsembleStar, End]:
    """Responses that a client holds take all of it; another client asks in vain."""
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    for number in range(1, 17):
        star.client.send(REQUEST, number, FAN, 0, 0, 1)  # each fails, and holds the block of its sentence
    star.step(NOW)
    assert [reply[P.REASON] for reply in star.client.received()] == [Reason.NONE] * 16
    return star, star.add_client(OTHER)


def ask_in_vain(star: EnsembleStar, other: End, number: int, now_ns: int) -> None:
    other.send(REQUEST, number, FAN, 0, 0, 1)
    star.step(now_ns)
    assert [reply[P.REASON] for reply in other.received()] == [Reason.NO_STEP_MEMORY]


def test_a_front_end_is_asked_for_responses_of_ensembles_that_take_all_memory() -> None:
    star, other = star_without_memory_for_ensembles()
    star.exchange.clients[CLIENT].is_front_end = True
    for number, now_ns in enumerate((NOW, NOW + URGENT_NS, NOW + URGENT_NS + FORGOTTEN_NS + 1)):
        ask_in_vain(star, other, number + 1, now_ns)
        is_urgent = int(number == 1)
        assert [record[:3] for record in star.client.received()] == [(RECALL, is_urgent, star.batcher_owner)]
    star.client.send(RELEASE, 1)
    other.send(REQUEST, 9, FAN, 0, 0, 1)
    star.step(NOW)
    assert [reply[P.REASON] for reply in other.received()] == [Reason.NONE]


def test_a_guest_that_keeps_responses_of_ensembles_from_all_others_is_ended() -> None:
    star, other = star_without_memory_for_ensembles()
    star.exchange.clients[CLIENT].is_guest = True
    for number, now_ns in enumerate((NOW, NOW + GUEST_HOLDS_NS, NOW + GUEST_HOLDS_NS + 1)):
        assert star.reports() == []
        ask_in_vain(star, other, number + 1, now_ns)
    assert star.reports() == [ProcessDistrusted(CLIENT)]
    other.send(REQUEST, 9, FAN, 0, 0, 1)
    star.step(NOW + 2 * GUEST_HOLDS_NS)
    assert [reply[P.REASON] for reply in other.received()] == [Reason.NONE]


def test_a_guest_that_holds_little_of_it_stays() -> None:
    star, other = star_without_memory_for_ensembles()
    guest = star.add_client(GUEST, is_guest=True)
    star.client.send(RELEASE, 1)
    star.step(NOW)
    star.exchange.clients[GUEST].is_guest = False
    guest.send(REQUEST, 1, FAN, 0, 0, 1)
    star.step(NOW)
    star.exchange.clients[GUEST].is_guest = True
    for number, now_ns in enumerate((NOW, NOW + GUEST_HOLDS_NS, NOW + GUEST_HOLDS_NS + 1)):
        ask_in_vain(star, other, number + 1, now_ns)
    assert star.reports() == []
