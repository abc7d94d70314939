"""Requests with the flag ALONE in the exchange: one to a batch, whoever asks, ensembles' steps too, not sequences."""

import pytest

from shoal.deterministic import ALONE
from shoal.reasons import Reason
from shoal.sequences import START
from shoal.shm import layout
from shoal.shm.layout import BATCH_ITEM, REQUEST, B
from tests.batcher.ensemble_star import CHAIN, EnsembleStar, config
from tests.batcher.star import CLIENT, HEADER, INPUT_BLOCK, MODEL, WORKER, End, Star, answer, one_of_each, replies

#: A model with `dynamic_batching` for steps, and its worker.
BATCHES, THIRD = 8, 33
BATCHED = {"name": "m", "max_batch_size": 4, "dynamic_batching": {}}
BATCHING = {"control_input": [], "state": [], "max_sequence_idle_microseconds": 1000, "iterative_sequence": False}
SEQUENCES = {"name": "m", "max_batch_size": 1, "sequence_batching": BATCHING}


def ask(client: End, number: int, flags: int = 0, correlation: int = 0, block: int = INPUT_BLOCK) -> None:
    client.send(REQUEST, number, MODEL, block, HEADER, 1, 0, 0, 0, correlation, flags, 100)


@pytest.mark.parametrize("is_guest", [False, True])
def test_only_requests_without_the_flag_share_a_batch(is_guest: bool) -> None:
    star = Star()
    model = star.add_model(MODEL, BATCHED)
    model.max_rows, model.is_fixed = 4, True
    client = star.add_client(CLIENT, is_guest=is_guest)
    block = layout.pack_ref(CLIENT, 3, 1)
    for number, flags in enumerate((0, 0, ALONE, ALONE, 0), 1):
        ask(client, number, flags, block=block)
    worker = star.add_worker(WORKER, model)
    batches = []
    for _ in range(4):
        star.exchange.step(now_ns=1000)
        items = [record for record in worker.received() if record[0] == BATCH_ITEM]
        batches.append([item[B.KEY] - (CLIENT << layout.NUMBER_BITS) for item in items])
        for item in items:
            answer(worker, item, block=0)
    star.exchange.step(now_ns=2000)
    assert batches == [[1, 2], [3], [4], [5]]


def test_a_request_of_a_sequence_is_refused_and_leaves_the_sequence_as_it_was() -> None:
    star, client, worker = one_of_each(SEQUENCES)
    ask(client, 1, START | ALONE, correlation=7)
    star.exchange.step(now_ns=500)
    assert replies(client) == [(1, Reason.NOT_ALONE)]
    ask(client, 2, START, correlation=7)
    star.exchange.step(now_ns=500)
    assert [item[B.FLAGS] & 3 for item in worker.received()] == [START]


@pytest.mark.parametrize(("flags", "counts"), [(0, [2, 2]), (ALONE, [1])])
def test_an_ensemble_that_is_asked_so_asks_its_steps_so(flags: int, counts: list[int]) -> None:
    star = EnsembleStar(CHAIN, (BATCHES, BATCHES))
    model = star.add_model(BATCHES, config("double", "X", "Y", dynamic_batching={}))
    for number in (1, 2):
        words = list(star.request(number))
        words[9] = flags
        star.client.send(REQUEST, *words)
    star.step()
    worker = star.add_worker(THIRD, model)
    star.step()
    assert [item[B.COUNT] for item in star.items(worker)] == counts
