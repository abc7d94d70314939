"""What a guest may write into its ring, and what its end undoes: others' requests, blocks and memory stay theirs."""

import pytest

from shoal.batcher.guests import GUEST_HOLDS_NS, MAX_HEADER_BYTES, is_fixed
from shoal.messages.from_batcher import ProcessDistrusted
from shoal.model_config.signature import Signature
from shoal.shm import layout
from shoal.shm.layout import B
from tests.batcher.fuzz import Fuzz
from tests.batcher.star import BATCHER, HEADER, MODEL, WORKER, End, Star, ask

GUEST, OTHER = 41, 42
BATCHED = {"name": "m", "max_batch_size": 4, "dynamic_batching": {}}
OWN_BLOCK = layout.pack_ref(GUEST, 3, 1)
RESULT = layout.pack_ref(WORKER, 2, 1)
NOW = 1_000_000_000_000


def star_with_guest(*, max_rows: int = 4, is_fixed: bool = True) -> tuple[Star, End, End, End]:
    """A star, a guest, another client, a worker."""
    star = Star()
    model = star.add_model(MODEL, {"name": "m", "max_batch_size": 0})
    model.max_rows, model.is_fixed = max_rows, is_fixed
    guest = star.add_client(GUEST, is_guest=True)
    return star, guest, star.add_client(21), star.add_worker(WORKER, model)


def request(number: int = 1, **words: int) -> tuple[int, ...]:
    said = {"model": MODEL, "block": OWN_BLOCK, "header": HEADER, "rows": 1, "key": 0, "priority": 0, "timeout": 0}
    said |= words
    return (1, number, said["model"], said["block"], said["header"], said["rows"], said["key"], said["priority"],
            said["timeout"], 0, 0, said.get("start", NOW))  # fmt: skip


@pytest.mark.parametrize(
    "record",
    [
        request(block=layout.pack_ref(21, 3, 1)),
        request(block=0),
        request(header=MAX_HEADER_BYTES + 1),
        request(rows=0),
        request(rows=5),
        request(rows=2**63),
        request(priority=2**63),
        request(timeout=2**64 - 1),
        request(number=2**40),
        (3, 1 << 40),
        (2, 1 << 40),
        (11, 1 << 63),
        (9, 1, 0, RESULT),
        (4, 1),
        (99, 1),
        (0,) * 16,
    ],
    ids=str,
)
def test_a_record_that_no_client_writes_ends_its_guest_alone(record: tuple[int, ...]) -> None:
    star, guest, client, worker = star_with_guest()
    ask(client, 1)
    guest.send(*record)
    star.exchange.step(NOW)
    assert star.reports() == [ProcessDistrusted(GUEST)]
    assert GUEST not in star.exchange.clients
    (item,) = worker.received()
    worker.send(7, item[B.KEY], item[B.BATCH], 0, RESULT)
    star.exchange.step(NOW)
    assert [record[:4] for record in client.received()] == [(4, 1, 0, RESULT)]
    assert star.exchange.num_open == 0


def test_another_clients_request_is_neither_cancelled_nor_released() -> None:
    star, guest, client, worker = star_with_guest()
    ask(client, 7)
    star.exchange.step(NOW)
    # (owner 21, 7) as the guest, whose keys begin at 41 << 40, would have to say it: beyond 64 bits, or backwards.
    for kind in (2, 3, 11):
        guest.send(kind, 7)
    star.exchange.step(NOW)
    (item,) = worker.received()
    worker.send(7, item[B.KEY], item[B.BATCH], 0, RESULT)
    star.exchange.step(NOW)
    guest.send(3, 7)
    star.exchange.step(NOW)
    assert star.exchange.holders.is_held(RESULT)
    assert star.reports() == []


def test_a_number_counts_once() -> None:
    star, guest, _, worker = star_with_guest()
    guest.send(*request(5))
    star.exchange.step(NOW)
    (item,) = worker.received()
    worker.send(7, item[B.KEY], item[B.BATCH], 0, RESULT)
    star.exchange.step(NOW)
    guest.send(*request(5))  # still held: a second answer would hide that from the table
    guest.send(*request(4))
    star.exchange.step(NOW)
    assert worker.received() == []
    guest.send(3, 5)
    star.exchange.step(NOW)
    assert len(star.exchange.holders) == 0


def test_times_and_shapes_are_the_batchers_own() -> None:
    star, guest, _, worker = star_with_guest()
    for number, start_ns in enumerate((0, NOW * 2, 2**64 - 1, NOW - 5_000), 1):
        guest.send(*request(number, start=start_ns, key=number))
        star.exchange.step(NOW)
        (item,) = worker.received()
        worker.send(7, item[B.KEY], item[B.BATCH], 0, 0, 0, NOW, NOW, NOW, NOW)
        star.exchange.step(NOW)
    assert star.figures(MODEL)["success_ns"] == 5_000


def test_two_guests_share_a_batch_only_where_all_requests_look_alike() -> None:
    for fixed in (True, False):
        star = Star()
        model = star.add_model(MODEL, BATCHED)
        model.max_rows, model.is_fixed = 4, fixed
        guests = [star.add_client(owner, is_guest=True) for owner in (GUEST, OTHER)]
        for guest in guests:
            guest.send(*request(1, block=layout.pack_ref(guest.owner, 3, 1), key=9))
        worker = star.add_worker(WORKER, model)
        star.exchange.step(NOW)
        assert [item[B.COUNT] for item in worker.received()] == ([2, 2] if fixed else [1])


def test_of_a_padded_model_a_guests_length_is_bounded_and_it_shares_a_batch() -> None:
    star = Star()
    model = star.add_model(MODEL, {**BATCHED, "parameters": {"ragged": {"string_value": "pad"}}})
    model.signature = Signature("m", 4, {}, {}, lengths={"X": 0})
    model.max_rows = 4
    guests = [star.add_client(owner, is_guest=True) for owner in (GUEST, OTHER)]
    for guest, length in zip(guests, (9, 2**63), strict=True):
        guest.send(*request(1, block=layout.pack_ref(guest.owner, 3, 1), key=length))
        guest.send(*request(2, block=layout.pack_ref(guest.owner, 3, 1), key=8))
    worker = star.add_worker(WORKER, model)
    star.exchange.step(NOW)
    assert [item[B.COUNT] for item in worker.received()] == [3, 3, 3]  # and the other one by itself


def test_which_models_requests_all_look_alike() -> None:
    assert is_fixed({"input": [{"dims": [3, 4]}, {"dims": []}]})
    assert not is_fixed({"input": [{"dims": [3, -1]}]})
    assert not is_fixed({"input": [{"dims": [3], "optional": True}]})
    assert not is_fixed({"input": [{"dims": [3], "allow_ragged_batch": True}]})


def test_a_guest_that_asks_more_than_it_may_is_ended() -> None:
    star, guest, _, _ = star_with_guest()
    star.exchange._max_in_flight = 20  # of two clients, one of whom asks
    for number in range(1, 42):
        guest.send(*request(number))
    star.exchange.step(NOW)
    assert star.reports() == [ProcessDistrusted(GUEST)]
    assert star.exchange.num_open == 0


def test_nothing_more_is_read_of_a_guest_that_is_ended_while_others_are_read() -> None:
    star, _, client, _ = star_with_guest()
    star.exchange._max_in_flight = 2
    last = star.add_client(OTHER, is_guest=True)
    mine = layout.pack_ref(OTHER, 3, 1)
    for number in range(1, 6):
        last.send(*request(number, block=mine))
    star.exchange.step(NOW)
    assert star.reports() == []  # three clients may have six
    last.send(*request(6, block=mine))
    ask(client, 1, 2)
    star.exchange.step(NOW)
    assert star.reports() == [ProcessDistrusted(OTHER)]
    assert star.exchange.num_open == 2


def test_a_guest_that_takes_no_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.batcher.exchange.MAX_BACKLOG", 20)
    star, guest, _, _ = star_with_guest()
    number = 0
    while GUEST in star.exchange.clients:
        number += 1
        guest.send(*request(number, model=999))
        star.exchange.step(NOW)
    assert star.reports() == [ProcessDistrusted(GUEST)]
    assert number < 200


def test_what_a_guest_claims_to_hold_is_freed_by_its_workers_word_only() -> None:
    star, guest, _, worker = star_with_guest()
    star.succeed()
    guest.send(9, 1, 0, RESULT)
    star.exchange.resume(NOW)
    guest.send(3, 1)
    star.exchange.step(NOW)
    assert worker.received() == []  # the worker may have made another block of it, and be writing
    worker.send(8)
    worker.send(10, 0, 0, 0, RESULT)
    star.exchange.busy[WORKER] = star.exchange.workers[WORKER]
    star.exchange.step(NOW)
    assert [record[:4] for record in worker.received()] == [(6, 0, 0, RESULT)]


@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("block", [RESULT, layout.pack_ref(BATCHER, 2, 1)])
def test_a_claim_ends_with_its_guests_hold_though_no_worker_names_the_block(block: int, is_dead: bool) -> None:
    """Where none does, or it was a dead batcher's, nothing more is done for it with each record of each worker."""
    star, guest, _, worker = star_with_guest()
    star.succeed()
    guest.send(9, 1, 1, block)
    star.exchange.resume(NOW)
    assert star.exchange._late.are_any
    if is_dead:
        star.exchange.remove_client(GUEST)
    else:
        guest.send(3, 1)
    star.exchange.step(NOW)
    assert worker.received() == []
    assert not star.exchange._late.are_any


def test_a_guest_that_starves_a_worker_goes() -> None:
    star, guest, client, worker = star_with_guest()
    for number, end in ((1, guest), (1, client)):
        end.send(*request(number, block=layout.pack_ref(end.owner, 3, 1)))
        star.exchange.step(NOW)
        (item,) = worker.received()
        worker.send(7, item[B.KEY], item[B.BATCH], 0, layout.pack_ref(WORKER, number + end.owner, 1))
        star.exchange.step(NOW)
    ask(client, 2)
    star.exchange.step(NOW)
    for now_ns in (NOW, NOW + GUEST_HOLDS_NS, NOW + GUEST_HOLDS_NS + 1):
        assert star.reports() == []
        worker.send(8, 0, 0, 2)
        star.exchange.step(now_ns)
    assert star.reports() == [ProcessDistrusted(GUEST)]
    assert [record[3] for record in worker.received() if record[0] == 6] == [layout.pack_ref(WORKER, 1 + GUEST, 1)]


def test_some_thousand_records_of_anything() -> None:
    fuzz = Fuzz(seed=1)
    fuzz.run(4_000)
    assert fuzz.num_distrusted > 50
    assert fuzz.num_answered > 50
