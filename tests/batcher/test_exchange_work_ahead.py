"""Work ahead in the exchange: whether a request goes into the ring of a worker that executes, or wakes an idle one."""

import pytest

from shoal.shm.layout import BATCH_ITEM, DONE, B, pack_ref
from tests.batcher.star import HEADER, MODEL, SINGLE, WORKER, End, Star, ask, one_of_each

US, MS, S = 1_000, 1_000_000, 1_000_000_000


def given(worker: End) -> list[tuple[int, ...]]:
    """The requests that have come into a worker's ring since the last time."""
    return [record for record in worker.received() if record[0] == BATCH_ITEM]


def practised() -> tuple[Star, End, list[End]]:
    """A model of two instances, whose executions took 20 µs each so far."""
    star, client, first = one_of_each(SINGLE)
    workers = [first, star.add_worker(WORKER + 1, star.model(MODEL))]
    for number in range(1, 101):
        ask(client, number)
        star.exchange.step(number * MS)
        for worker in workers:
            for item in given(worker):
                ref, times = pack_ref(worker.owner, 2, 1), (0, 0, 20 * US, 20 * US)
                worker.send(DONE, item[B.KEY], item[B.BATCH], 0, ref, HEADER, *times)
        star.exchange.step(number * MS)
    client.received()
    return star, client, workers


@pytest.mark.parametrize(("later_ns", "num_behind"), [(MS // 2, 2), (2 * MS, 0)])
def test_a_request_is_put_behind_an_execution_only_in_its_first_millisecond(later_ns: int, num_behind: int) -> None:
    star, client, workers = practised()
    ask(client, 101)
    star.exchange.step(S)
    (slow,) = [worker for worker in workers if given(worker)]
    (fast,) = [worker for worker in workers if worker is not slow]
    ask(client, 102, 103)
    star.exchange.step(S + later_ns)
    assert [len(given(slow)), len(given(fast))] == [num_behind, 2 - num_behind]
