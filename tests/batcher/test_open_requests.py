"""The open requests by themselves: each way in which one ends, and that it ends once."""

import pytest

from shoal.batcher.holders import Holders
from shoal.batcher.late_clients import LateClients
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import ClientPeer, RunningBatch, ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.patience import Patience
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.splits import Splits
from shoal.batcher.statistics import BACKEND
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.layout import NUMBER_BITS, P
from tests.batcher.star import CLIENT, HEADER, INPUT_BLOCK, MODEL, SINGLE, WORKER, End, Star, cell

BLOCK = layout.pack_ref(WORKER, 2, 1)
COMPUTE = (1_000, 10, 100, 5)


class Table:
    """A table with one client and one model, whose requests 1, 2 … are queued."""

    def __init__(self, num_requests: int, *, may_run_again: bool = False) -> None:
        self.model = Star().add_model(MODEL, SINGLE, may_run_again=may_run_again)
        self.end = End(layout.CLIENT, CLIENT)
        self.client = ClientPeer(CLIENT, self.end.link, self.end.own_view, self.end.bell)
        self.holders, self.written, self.counted = Holders(), set[ClientPeer](), set[ScheduledModel]()
        self.requests = OpenRequests(
            self.holders, self.written, self.counted, LateClients(self.holders), Splits({}, {}, self.counted)
        )
        for number in range(1, num_requests + 1):
            queued = QueuedRequest(key(number), 1, 0, 500)
            self.requests.by_key[key(number)] = (self.client, self.model, number, INPUT_BLOCK, HEADER, 100, 500, queued)
            self.model.scheduler.add(queued, 500)

    def received(self) -> list[tuple[int, int]]:
        """(number, reason) of the replies that came."""
        for peer in self.written:
            peer.flush()
        return [(reply[P.NUMBER], reply[P.REASON]) for reply in self.end.received()]


def key(number: int) -> int:
    return CLIENT << NUMBER_BITS | number


def test_whatever_happens_later_the_first_end_is_the_only_one() -> None:
    table = Table(2)
    table.requests.answer(key(1), 0, BLOCK, HEADER, COMPUTE, 2_000)
    table.requests.fail(key(2), Reason.DAMAGED, 2_000, BACKEND)
    for number in (1, 2):
        table.requests.answer(key(number), 0, BLOCK, HEADER, COMPUTE, 2_000)
        table.requests.fail(key(number), Reason.DAMAGED, 2_000, BACKEND)
        table.requests.cancel(key(number), 2_000)
    assert table.received() == [(1, Reason.NONE), (2, Reason.DAMAGED)]
    assert (table.model.row.num_succeeded, cell(table.model, "failed_backend")) == (1, 1)
    assert table.holders.num_held == 1


def test_what_waits_can_be_cancelled_and_what_runs_goes_on() -> None:
    table = Table(2)
    table.model.scheduler.add_instance(WORKER)
    table.model.scheduler.take(500)
    table.requests.cancel(key(1), 2_000)
    table.requests.cancel(key(2), 2_000)
    assert table.received() == [(2, Reason.CANCELLED)]
    assert list(table.requests.by_key) == [key(1)]


def test_answers_of_which_nothing_is_published_yet_count_for_those_who_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    table, counted = Table(3), list[int]()
    table.client.is_front_end = True
    monkeypatch.setattr(
        Patience, "gave_up", lambda _patience, _waited_ns, num_answered, _now_ns: counted.append(num_answered)
    )
    table.requests.answer(key(1), 0, BLOCK, HEADER, COMPUTE, 2_000)
    table.requests.cancel(key(2), 2_000)
    table.model.row.publish()
    table.requests.cancel(key(3), 2_000)
    assert counted == [1, 1]


def test_a_dead_client_hears_nothing_and_nothing_of_it_waits() -> None:
    table = Table(2)
    table.requests.forget(table.client)
    table.requests.answer(key(1), 0, BLOCK, HEADER, COMPUTE, 2_000)
    assert (table.received(), len(table.requests.by_key), table.holders.num_held) == ([], 0, 0)
    assert (table.model.scheduler.pending, table.counted) == (0, {table.model})


def test_what_a_dead_worker_had_not_begun_is_queued_again_and_the_rest_gets_one_more_chance() -> None:
    table = Table(2, may_run_again=True)
    end = End(layout.WORKER, WORKER)
    for reasons in ([], [(1, Reason.INSTANCE_DIED)]):
        table.model.scheduler.drain()
        worker = WorkerPeer(WORKER, end.link, end.own_view, end.bell, table.model)
        worker.missing = {key(1): RunningBatch(1, 1, 1), key(2): RunningBatch(2, 1, 1)}
        end.begin(1)
        table.requests.take_back(worker, Reason.INSTANCE_DIED, 0, 2_000)
        assert table.received() == reasons
    assert [queued.key for queued in table.model.scheduler.drain()] == [key(2)]


def test_a_request_that_is_turned_away_counts_nowhere() -> None:
    table = Table(0)
    table.requests.turn_away(table.client, 7, Reason.NOT_READY)
    assert (table.received(), table.counted) == ([(7, Reason.NOT_READY)], set())
