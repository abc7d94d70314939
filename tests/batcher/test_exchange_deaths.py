"""The exchange when a worker or a client dies: who is answered, what runs again, what is freed."""

import gc

from shoal.batcher.peers import WorkerPeer
from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, FREE, RELEASE, REPLY, B, P, pack_ref
from tests.batcher.star import (
    BATCHING,
    CLIENT,
    MODEL,
    OUTPUT_BLOCK,
    SINGLE,
    WORKER,
    Star,
    answer,
    ask,
    cell,
    one_of_each,
)


def test_dead_worker_fails_what_it_was_executing_once_and_the_rest_goes_on() -> None:
    star, client, worker = one_of_each(SINGLE)
    model = star.model(MODEL)
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    worker.begin(item[B.BATCH])
    star.exchange.remove_worker(WORKER, now_ns=700)
    star.exchange.step(now_ns=800)
    assert [(reply[P.NUMBER], reply[P.REASON]) for reply in client.received()] == [(1, Reason.INSTANCE_DIED)]
    assert (cell(model, "failed_backend"), cell(model, "pending_count")) == (1, 1)
    successor = star.add_worker(WORKER + 1, model)
    star.exchange.step(now_ns=900)
    answer(successor, successor.received()[0], block=pack_ref(WORKER + 1, 2, 1))
    star.exchange.step(now_ns=1_000)
    assert [(reply[P.NUMBER], reply[P.STATUS]) for reply in client.received()] == [(2, 0)]


def test_nothing_refers_to_a_dead_worker_any_more() -> None:
    star, client, worker = one_of_each(BATCHING)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0])
    star.exchange.step(now_ns=600)
    assert len(star.exchange.workers[WORKER].missing) == 2
    gc.collect()
    gc.disable()
    try:
        before = num_workers()
        star.exchange.remove_worker(WORKER, now_ns=700)
        star.exchange.step(now_ns=800)
        assert num_workers() == before - 1
    finally:
        gc.enable()


def num_workers() -> int:
    return sum(isinstance(each, WorkerPeer) for each in gc.get_objects())


def test_what_a_dead_worker_had_not_begun_goes_to_another_in_order() -> None:
    star, client, worker = one_of_each(BATCHING)
    model = star.model(MODEL)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    assert len(worker.received()) == 3
    ask(client, 4)
    star.exchange.step(now_ns=600)
    star.exchange.remove_worker(WORKER, now_ns=700)
    star.exchange.step(now_ns=800)
    assert cell(model, "pending_count") == 4
    successor = star.add_worker(WORKER + 1, model)
    served = []
    for now_ns in range(900, 1_300, 100):
        star.exchange.step(now_ns)
        for item in successor.received():
            answer(successor, item, block=pack_ref(WORKER + 1, 2, 1))
        star.exchange.step(now_ns + 50)
        served += [(reply[P.NUMBER], reply[P.STATUS]) for reply in client.received()]
    assert served == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert (cell(model, "fail_count"), cell(model, "pending_count")) == (0, 0)


def test_requests_that_may_run_again_do_so_alone_and_the_one_that_kills_twice_fails() -> None:
    star, client, worker = one_of_each(BATCHING, may_run_again=True)
    model = star.model(MODEL)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    worker.begin(worker.received()[0][B.BATCH])
    star.exchange.remove_worker(WORKER, now_ns=600)
    successors = [star.add_worker(WORKER + 1, model)]
    outcomes: dict[int, int] = {}
    for now_ns in range(700, 1_200, 100):
        star.exchange.step(now_ns)
        worker = successors[-1]
        for item in worker.received():
            assert item[B.COUNT] == 1
            worker.begin(item[B.BATCH])
            if item[B.KEY] & 0xFF == 2:  # the poisonous one
                star.exchange.remove_worker(worker.owner, now_ns + 10)
                successors.append(star.add_worker(worker.owner + 1, model))
            else:
                answer(worker, item, block=pack_ref(worker.owner, 2, 1))
        star.exchange.step(now_ns + 50)
        outcomes |= {reply[P.NUMBER]: reply[P.REASON] for reply in client.received()}
    assert outcomes == {1: Reason.NONE, 2: Reason.INSTANCE_DIED, 3: Reason.NONE}
    assert len(successors) == 2
    assert (cell(model, "success_count"), cell(model, "failed_backend"), cell(model, "pending_count")) == (2, 1, 0)


def test_the_reply_says_how_the_instance_died_and_a_limit_is_not_tried_twice() -> None:
    star, client, worker = one_of_each(BATCHING, may_run_again=True)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    worker.begin(worker.received()[0][B.BATCH])
    star.exchange.remove_worker(WORKER, 600, Reason.EXECUTION_LIMIT, 4242 << 32 | 9)
    star.exchange.step(now_ns=700)
    (reply,) = client.received()
    assert reply[:7] == (REPLY, 1, 2, 0, 0, Reason.EXECUTION_LIMIT, 4242 << 32 | 9)


def test_model_whose_instances_are_given_up_refuses_until_one_is_ready() -> None:
    star = Star()
    model = star.add_model(MODEL, SINGLE)
    client = star.add_client(CLIENT)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    star.exchange.fail_model(MODEL, now_ns=600)
    ask(client, 2)
    star.exchange.step(now_ns=700)
    assert [(reply[P.NUMBER], reply[P.REASON]) for reply in client.received()] == [
        (1, Reason.MODEL_FAILED),
        (2, Reason.MODEL_FAILED),
    ]
    assert (cell(model, "pending_count"), cell(model, "failed_rejected")) == (0, 1)
    worker = star.add_worker(WORKER, model)
    ask(client, 3)
    star.exchange.step(now_ns=800)
    assert len(worker.received()) == 1


def test_what_a_dead_worker_had_published_is_delivered() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0])
    star.exchange.remove_worker(WORKER, now_ns=700)
    star.exchange.step(now_ns=800)
    assert [(reply[P.NUMBER], reply[P.STATUS], reply[P.REASON]) for reply in client.received()] == [(1, 0, 0)]


def test_dead_client_leaves_nothing_behind() -> None:
    star, client, worker = one_of_each(SINGLE)
    model = star.model(MODEL)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    answer(worker, item)
    star.exchange.step(now_ns=600)  # 1 is answered and not released, 2 runs, 3 waits
    star.exchange.remove_client(CLIENT)
    star.exchange.step(now_ns=700)
    free, running, cancel = sorted(worker.received(), key=lambda record: record[0], reverse=True)
    assert (free[:4], running[0]) == ((FREE, 0, 0, OUTPUT_BLOCK), BATCH_ITEM)
    assert cancel[:2] == (2, running[1])
    answer(worker, running)
    star.exchange.step(now_ns=800)
    assert [record[:4] for record in worker.received()] == [(FREE, 0, 0, OUTPUT_BLOCK)]
    assert (cell(model, "pending_count"), len(star.exchange.holders)) == (0, 0)


def test_a_dead_workers_last_answer_in_its_own_segment_is_delivered_and_not_freed() -> None:
    star, client, worker = one_of_each(SINGLE)
    star.exchange.blocks.add_result(99, WORKER)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0], block=pack_ref(99, 0, 1))
    star.exchange.remove_worker(WORKER, now_ns=700)
    star.exchange.step(now_ns=800)
    assert [reply[P.BLOCK] for reply in client.received()] == [pack_ref(99, 0, 1)]
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=900)
    assert worker.received() == []
    assert len(star.exchange.holders) == 0
