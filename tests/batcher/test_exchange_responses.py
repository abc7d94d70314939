"""Requests that are answered many times, by workers that take the next batch meanwhile: records in, records out."""

import pytest

from shoal.messages.from_batcher import WorkerRetired
from shoal.reasons import Reason
from shoal.shm.layout import (
    BATCH_ITEM,
    CANCEL,
    DONE,
    FREE,
    HOLD,
    READY,
    RELEASE,
    RESCHEDULE,
    RESPONSE,
    B,
    Geometry,
    P,
    pack_ref,
)
from tests.batcher.star import CLIENT, GEOMETRY, HEADER, MODEL, SINGLE, WORKER, End, Star, ask, cell, one_of_each

TIMES = 1_000, 1_010, 1_110, 1_115
OTHER_WORKER = 32


def block(number: int) -> int:
    return pack_ref(WORKER, number, 1)


def respond(worker: End, item: tuple[int, ...], number: int, status: int = 0) -> None:
    worker.send(RESPONSE, item[B.KEY], 0, status, block(number), HEADER, *TIMES)


def end(worker: End, item: tuple[int, ...], ref: int = 0, status: int = 0) -> None:
    worker.send(DONE, item[B.KEY], 0, status, ref, HEADER if ref else 0, *TIMES)


def ready(worker: End, item: tuple[int, ...]) -> None:
    worker.send(READY, 0, item[B.BATCH], 0, 0, 0, *TIMES)


def replies(client: End) -> list[tuple[int, int, int, int, int]]:
    """(number, status, block, reason, more) of what came."""
    words = P.NUMBER, P.STATUS, P.BLOCK, P.REASON, P.MORE
    return [tuple(reply[word] for word in words) for reply in client.received()]  # type: ignore[misc]


def freed(worker: End) -> list[int]:
    return [record[B.BLOCK] for record in worker.received() if record[0] == FREE]


def running(link_geometry: Geometry = GEOMETRY) -> tuple[Star, End, End, tuple[int, ...]]:
    """A star whose worker has one request, and was executed; `link_geometry` is that of the ring to the client."""
    star, client, worker = one_of_each(SINGLE)
    if link_geometry != GEOMETRY:
        star.drop_client(CLIENT)
        client = star.add_client(CLIENT, link_geometry=link_geometry)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    ready(worker, item)
    star.exchange.step(now_ns=600)
    return star, client, worker, item


def test_responses_are_passed_on_in_order_and_released_one_by_one() -> None:
    star, client, worker, item = running()
    for number in (1, 2):
        respond(worker, item, number)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, 0, block(1), 0, 1), (1, 0, block(2), 0, 1)]
    assert star.exchange.num_open == 1
    client.send(RELEASE, 1, 0, block(2))
    star.exchange.step(now_ns=800)
    assert freed(worker) == [block(2)]
    end(worker, item, block(3))
    star.exchange.step(now_ns=900)
    assert replies(client) == [(1, 0, block(3), 0, 0)]
    assert (star.exchange.num_open, star.exchange.holders.num_held) == (0, 2)
    client.send(RELEASE, 1)
    client.send(RELEASE, 1, 0, block(1))
    client.send(RELEASE, 1, 0, block(1))  # once only
    star.exchange.step(now_ns=1_000)
    assert sorted(freed(worker)) == [block(1), block(3)]
    model = star.model(MODEL)
    assert [cell(model, name) for name in ("success_count", "inference_count", "execution_count")] == [1, 1, 1]


def test_an_instance_that_is_ready_gets_the_next_batch() -> None:
    star, client, worker, first = running()
    ask(client, 2)
    star.exchange.step(now_ns=700)
    (second,) = worker.received()
    assert (second[0], second[B.BATCH]) == (BATCH_ITEM, 2)
    ask(client, 3)
    star.exchange.step(now_ns=800)
    assert worker.received() == []  # not ready again
    end(worker, second)
    star.exchange.step(now_ns=900)
    assert replies(client) == [(2, 0, 0, 0, 0)]
    (third,) = worker.received()
    end(worker, first)
    ready(worker, first)  # late, and void
    star.exchange.step(now_ns=1_000)
    assert worker.received() == []
    end(worker, third)
    star.exchange.step(now_ns=1_100)
    assert cell(star.model(MODEL), "execution_count") == 3


def test_the_end_without_a_response_counts_as_success_and_an_error_does_not() -> None:
    star, client, worker, item = running()
    respond(worker, item, 1, status=2)
    end(worker, item)
    ask(client, 2)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, 2, block(1), 0, 1), (1, 0, 0, 0, 0)]
    second = worker.received()[-1]
    worker.send(DONE, second[B.KEY], 0, 2, block(2), HEADER, *TIMES)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(2, 2, block(2), 0, 0)]
    assert [cell(star.model(MODEL), name) for name in ("success_count", "fail_count")] == [1, 1]


def test_an_answer_is_counted_before_it_is_told_while_others_of_its_batch_are_missing() -> None:
    star, client, worker = one_of_each({"name": "m", "max_batch_size": 2, "dynamic_batching": {}})
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    first, _ = worker.received()
    ready(worker, first)
    star.exchange.step(now_ns=600)
    end(worker, first)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, 0, 0, 0, 0)]
    assert star.figures(MODEL)["success_count"] == 1


def test_a_rescheduled_request_is_executed_again() -> None:
    star, client, worker, item = running()
    worker.send(RESCHEDULE, item[B.KEY], item[B.BATCH])
    star.exchange.step(now_ns=700)
    (again,) = worker.received()
    assert (again[B.KEY], again[B.BATCH], replies(client)) == (item[B.KEY], 2, [])
    worker.send(RESCHEDULE, item[B.KEY], item[B.BATCH])  # read twice, where its first reader has died
    star.exchange.step(now_ns=750)
    assert worker.received() == []
    worker.send(RESCHEDULE, again[B.KEY], again[B.BATCH])
    star.exchange.remove_client(CLIENT)
    star.exchange.step(now_ns=800)
    assert star.exchange.num_open == 0


def test_a_running_request_that_is_cancelled_stays_open_and_its_worker_hears() -> None:
    star, client, worker, item = running()
    client.send(CANCEL, 1)
    star.exchange.step(now_ns=700)
    assert [record[:2] for record in worker.received()] == [(CANCEL, item[B.KEY])]
    assert replies(client) == []
    end(worker, item)
    star.exchange.step(now_ns=800)
    client.send(CANCEL, 1)
    star.exchange.step(now_ns=900)
    assert (replies(client), worker.received()) == ([(1, 0, 0, 0, 0)], [])


def test_a_doubtful_cancel_is_for_who_is_at_work_only() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    ask(client, 2)
    for number in (2, 1):
        client.send(CANCEL, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    star.exchange.step(now_ns=700)
    assert [record[:2] for record in worker.received()] == [(CANCEL, item[B.KEY])]
    assert replies(client) == []
    end(worker, item)
    star.exchange.step(now_ns=800)
    assert [record[P.NUMBER] for record in client.received()] == [1]
    assert [record[B.KEY] & 0xFF for record in worker.received() if record[0] == BATCH_ITEM] == [2]


def test_cancels_wait_for_a_worker_that_does_not_read() -> None:
    star, client, worker = one_of_each(SINGLE)
    for number in range(1, 41):
        ask(client, number)
        star.exchange.step(now_ns=500)
        (item,) = worker.received()
        ready(worker, item)
        star.exchange.step(now_ns=600)
    for number in range(1, 41):
        client.send(CANCEL, number)
    star.exchange.step(now_ns=700)
    assert not star.exchange.has_backlog  # it is at work: to look again soon would be in vain
    first = worker.received()
    assert len(first) == 32
    star.exchange.step(now_ns=800)
    told = first + worker.received()
    assert sorted(record[B.KEY] & 0xFF for record in told) == list(range(1, 41))


def test_a_cancel_that_is_said_again_and_again_fills_no_memory() -> None:
    star, client, worker = one_of_each(SINGLE)
    for number in (1, 2):
        ask(client, number)
        star.exchange.step(now_ns=500)
        ready(worker, worker.received()[0])
        star.exchange.step(now_ns=600)
    for _ in range(100):
        client.send(CANCEL, 1)
        client.send(CANCEL, 2)
        star.exchange.step(now_ns=700)
    assert len(worker.received()) == 32
    star.exchange.step(now_ns=800)
    assert len(worker.received()) <= 2


def test_only_who_has_the_request_hears_that_it_is_cancelled() -> None:
    star, client, worker = one_of_each(SINGLE)
    other = star.add_worker(OTHER_WORKER, star.model(MODEL))
    items = []
    for number in (1, 2):
        ask(client, number)
        star.exchange.step(now_ns=500)
        items += [(end, item) for end in (worker, other) for item in end.received()]
    assert {end.owner for end, _ in items} == {WORKER, OTHER_WORKER}
    for end_of, item in items:  # both overlap
        ready(end_of, item)
    star.exchange.step(now_ns=550)
    client.send(CANCEL, 1)
    star.exchange.step(now_ns=600)
    (having, item), (idle, _) = items
    assert [record[:2] for record in having.received()] == [(CANCEL, item[B.KEY])]
    assert idle.received() == []


def test_a_dead_client_s_worker_hears_and_what_it_says_is_freed() -> None:
    star, _, worker, item = running()
    respond(worker, item, 1)
    star.exchange.step(now_ns=700)
    star.exchange.remove_client(CLIENT)
    respond(worker, item, 2)
    star.exchange.step(now_ns=800)
    records = worker.received()
    assert sorted(record[B.BLOCK] for record in records if record[0] == FREE) == [block(1), block(2)]
    assert [record[:2] for record in records if record[0] == CANCEL] == [(CANCEL, item[B.KEY])]
    end(worker, item)
    star.exchange.step(now_ns=900)
    assert star.exchange.workers[WORKER].missing == {}


@pytest.mark.parametrize("may_run_again", [False, True])
def test_a_dead_worker_s_streams_have_one_end_though_the_model_may_run_again(may_run_again: bool) -> None:
    star, client, worker = one_of_each(SINGLE, may_run_again=may_run_again)
    items = []
    for number in (1, 2):
        ask(client, number)
        star.exchange.step(now_ns=500)
        items += worker.received()
        worker.begin(number)
        ready(worker, items[-1])
        star.exchange.step(now_ns=600)
    respond(worker, items[0], 1)
    star.exchange.step(now_ns=700)
    star.remove_worker(WORKER, now_ns=800)
    star.exchange.step(now_ns=900)
    told = replies(client)
    assert told[0] == (1, 0, block(1), 0, 1)
    assert (1, 2, 0, Reason.INSTANCE_DIED, 0) in told
    # The second had no response: it may run again where the model may.
    assert ((2, 2, 0, Reason.INSTANCE_DIED, 0) in told) is not may_run_again
    assert star.exchange.num_open == star.model(MODEL).scheduler.pending == int(may_run_again)


def test_a_retiring_worker_waits_for_its_streams() -> None:
    star, _, worker, item = running()
    star.exchange.retire_worker(WORKER)
    star.exchange.step(now_ns=700)
    assert star.reports() == []
    end(worker, item)
    star.exchange.step(now_ns=800)
    assert star.reports() == [WorkerRetired(WORKER)]


def test_what_does_not_fit_into_a_client_s_ring_follows_in_order() -> None:
    star, client, worker, item = running()
    for number in range(1, 101):  # the ring holds 64
        respond(worker, item, number % 15 + 1)
        if number % 50 == 0:
            star.exchange.step(now_ns=700 + number)
    end(worker, item)
    star.exchange.step(now_ns=900)
    assert star.exchange.has_backlog
    first = replies(client)
    star.exchange.step(now_ns=1_000)
    told = first + replies(client)
    assert not star.exchange.has_backlog
    assert (len(first), len(told)) == (64, 101)
    assert [reply[2] for reply in told] == [block(number % 15 + 1) for number in range(1, 101)] + [0]


def test_a_small_ring_to_a_client_is_widened_once_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    star, client, worker, item = running(Geometry(64, 0, small_capacity=8))
    with monkeypatch.context() as scarce:
        scarce.setattr(client.link, "make_ring_present", lambda: False)
        for number in range(1, 21):
            respond(worker, item, number % 15 + 1)
        star.exchange.step(now_ns=700)
        assert star.exchange.has_backlog
        told = replies(client)
        assert len(told) == 8
        star.exchange.step(now_ns=800)
        told += replies(client)
        assert len(told) == 16
    for number in range(21, 41):
        respond(worker, item, number % 15 + 1)
    star.exchange.step(now_ns=900)
    assert not star.exchange.has_backlog
    end(worker, item)
    star.exchange.step(now_ns=1_000)
    told += replies(client)
    assert [reply[2] for reply in told] == [block(number % 15 + 1) for number in range(1, 41)] + [0]


def test_a_client_that_never_reads_its_ring_is_told_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.batcher.open_requests.MAX_BACKLOG", 10)
    star, client, worker, item = running()
    for number in range(1, 81):
        respond(worker, item, number % 15 + 1)
        if number % 40 == 0:
            star.exchange.step(now_ns=700 + number)
    assert star.exchange.num_open == 0
    told = replies(client)
    star.exchange.step(now_ns=900)
    assert (told + replies(client))[-1] == (1, 2, 0, Reason.NO_MEMORY, 0)
    assert [record[:2] for record in worker.received() if record[0] == CANCEL] == [(CANCEL, item[B.KEY])]


# -- the histogram of first responses --------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(), (0.0, 1.0, 2.0)])
@pytest.mark.parametrize("ending", ["answered", "failed by the model", "failed by the death of its instance"])
@pytest.mark.parametrize("num_responses", [0, 1, 2])
def test_only_the_first_response_is_counted_when_it_is_sent(
    bounds: tuple[float, ...], ending: str, num_responses: int
) -> None:
    star, _, worker, item = running()
    worker.begin(item[B.BATCH])
    star.exchange.models[MODEL].row.first_response_bounds = bounds
    for number in range(num_responses):
        respond(worker, item, number + 1)
        star.exchange.step(now_ns=700 + number * 3_000_000)
    if ending == "failed by the death of its instance":
        star.exchange.remove_worker(WORKER, 9_000_000)
    else:
        end(worker, item, status=2 if ending == "failed by the model" else 0)
    star.exchange.step(now_ns=9_000_000)
    assert star.exchange.num_open == 0
    first = [1, 0, 0, 0] if num_responses else [0, 0, 0, 1]
    assert list(star.first_responses(MODEL))[:4] == (first if bounds else [0] * 4)


# -- another batcher --------------------------------------------------------------------------------------------------


def test_a_successor_fails_what_an_overlapping_worker_may_have_and_serves_on() -> None:
    star, client, worker, item = running()
    respond(worker, item, 1)
    star.exchange.step(now_ns=700)
    client.received()
    star.succeed()
    ask(client, 1)
    client.writer.push((HOLD, 1, 0, block(1), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0))
    client.writer.publish()
    star.exchange.resume(now_ns=800)
    assert replies(client) == [(1, 2, 0, Reason.TAKEN_OVER, 0)]
    assert [record[:2] for record in worker.received()] == [(CANCEL, item[B.KEY])]
    respond(worker, item, 2)
    client.send(RELEASE, 1, 0, block(1))
    star.exchange.step(now_ns=900)
    assert (replies(client), sorted(freed(worker))) == ([], [block(1), block(2)])
    respond(worker, item, 3)  # its model does not look whether anybody waits
    end(worker, item)
    star.exchange.step(now_ns=950)
    assert (replies(client), freed(worker)) == ([], [block(3)])
    ask(client, 2)
    star.exchange.step(now_ns=1_000)
    (next_item,) = worker.received()
    assert next_item[B.BATCH] == 2
    end(worker, next_item)
    star.exchange.step(now_ns=1_100)
    assert replies(client) == [(2, 0, 0, 0, 0)]


def test_what_the_dead_one_had_not_read_loses_nothing() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    ready(worker, item)
    respond(worker, item, 1)
    star.succeed()
    ask(client, 1)
    star.exchange.resume(now_ns=600)
    end(worker, item)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, 0, block(1), 0, 1), (1, 0, 0, 0, 0)]
