"""The exchange when workers and models make way: they finish what they have, are reported once, and lose nothing."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.messages.from_batcher import ModelRetired, WorkerRetired
from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, DONE, B, P
from tests.batcher.star import CLIENT, MODEL, SINGLE, WORKER, End, Star, ask, one_of_each

BATCHING = {"name": "m", "max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": 0}}


def answer(worker: End, item: tuple[int, ...]) -> None:
    """Without a block: who holds what is told elsewhere."""
    worker.send(DONE, item[B.KEY], item[B.BATCH], 0, 0, 0, 1_000, 1_010, 1_110, 1_115)


def numbers(client: End) -> list[int]:
    """Of the requests that were answered well."""
    replies = client.received()
    assert {reply[P.REASON] for reply in replies} <= {Reason.NONE}
    return [reply[P.NUMBER] for reply in replies]


def test_an_idle_worker_is_reported_with_the_next_step_and_gets_nothing_more() -> None:
    star, client, worker = one_of_each(SINGLE)
    star.exchange.retire_worker(WORKER)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    assert star.reports() == [WorkerRetired(WORKER)]
    star.exchange.step(now_ns=600)
    assert (star.reports(), worker.received()) == ([], [])
    successor = star.add_worker(WORKER + 1, star.model(MODEL))
    star.exchange.step(now_ns=700)
    assert len(successor.received()) == 1


def test_a_busy_worker_is_reported_when_clients_have_its_last_answer() -> None:
    star, client, worker = one_of_each(BATCHING)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    items = worker.received()
    star.exchange.retire_worker(WORKER)
    star.exchange.retire_worker(WORKER)  # said twice, heard once
    ask(client, 4)
    for item in items:
        star.exchange.step(now_ns=600)
        assert star.reports() == []
        answer(worker, item)
    star.exchange.step(now_ns=700)
    assert star.reports() == [WorkerRetired(WORKER)]
    assert (numbers(client), worker.received()) == ([1, 2, 3], [])


def test_a_worker_that_dies_on_its_way_out_is_not_reported_and_its_requests_go_on() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    assert len(worker.received()) == 1
    star.exchange.retire_worker(WORKER)
    star.remove_worker(WORKER, now_ns=600)
    successor = star.add_worker(WORKER + 1, star.model(MODEL))
    star.exchange.step(now_ns=700)
    answer(successor, successor.received()[0])
    star.exchange.step(now_ns=800)
    assert (star.reports(), numbers(client)) == ([], [1])


def test_a_model_is_reported_when_nothing_of_it_is_queued_or_running() -> None:
    star, client, worker = one_of_each(SINGLE)
    star.add_worker(WORKER + 1, star.add_model(MODEL + 1, SINGLE))
    ask(client, 1, 2)
    star.exchange.retire_model(MODEL)
    for number in (1, 2):
        star.exchange.step(now_ns=500 * number)
        assert star.reports() == []
        (item,) = worker.received()
        answer(worker, item)
    star.exchange.step(now_ns=1_500)
    assert star.reports() == [ModelRetired(MODEL)]
    assert numbers(client) == [1, 2]
    ask(client, 3)  # from a client that looked the model up before it heard
    star.exchange.step(now_ns=1_600)
    answer(worker, worker.received()[0])
    star.exchange.step(now_ns=1_700)
    assert (star.reports(), numbers(client)) == ([], [3])


def test_a_model_whose_queue_is_refused_has_nothing_left() -> None:
    star = Star()
    star.add_model(MODEL, SINGLE)
    client = star.add_client(CLIENT)
    ask(client, 1)
    star.exchange.retire_model(MODEL)
    star.exchange.step(now_ns=500)
    assert star.reports() == []
    star.exchange.fail_model(MODEL, now_ns=600)
    star.exchange.step(now_ns=700)
    assert star.reports() == [ModelRetired(MODEL)]


def test_workers_and_models_that_are_gone_or_unknown_are_not_reported() -> None:
    star, _, _ = one_of_each(SINGLE)
    star.exchange.retire_worker(WORKER + 1)
    star.exchange.retire_model(MODEL + 1)
    star.exchange.retire_worker(WORKER)
    star.exchange.retire_model(MODEL)
    star.remove_worker(WORKER, now_ns=500)
    star.exchange.remove_model(MODEL, now_ns=500)
    star.exchange.step(now_ns=600)
    assert star.reports() == []


def test_a_successor_reports_once_what_the_dead_one_left_is_answered() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    star.succeed()
    star.exchange.retire_worker(WORKER)
    star.exchange.retire_model(MODEL)
    ask(client, 1)
    star.exchange.resume(now_ns=600)
    assert star.reports() == []
    answer(worker, item)
    star.exchange.step(now_ns=700)
    assert star.reports() == [WorkerRetired(WORKER), ModelRetired(MODEL)]
    assert numbers(client) == [1]


STEPS = st.lists(
    st.sampled_from(["ask", "ask", "answer", "step", "step", "spawn", "kill", "retire", "retire_model", "succeed"]),
    max_size=60,
)


@settings(max_examples=100)
@given(STEPS, st.sampled_from([SINGLE, BATCHING]))
def test_whenever_a_worker_or_model_retires_every_request_is_answered_once(
    steps: list[str], config: dict[str, Any]
) -> None:
    play = Play(config)
    for step in steps:
        getattr(play, step)()
    play.spawn()
    for _ in range(play.number + 2):
        play.step()
        while any(play.todo.values()):
            play.answer()
    play.step()
    assert sorted(play.answered) == list(range(1, play.number + 1))
    assert not play.retiring_workers
    assert not play.is_model_retiring


class Play:
    """The supervisor, a client and workers that keep their side; batchers and workers that die."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.star = Star()
        self.star.add_model(MODEL, config, may_run_again=True)
        self.client = self.star.add_client(CLIENT)
        self.owner, self.number, self.now_ns = WORKER, 0, 1_000
        self.ends: dict[int, End] = {}
        self.todo: dict[int, list[tuple[int, ...]]] = {}
        self.retiring_workers: set[int] = set()
        self.is_model_retiring = False
        self.open: set[int] = set()
        self.answered: list[int] = []
        self.spawn()

    def ask(self) -> None:
        self.number += 1
        self.open.add(self.number)
        ask(self.client, self.number)

    def step(self) -> None:
        self.now_ns += 10
        self.star.exchange.step(self.now_ns)
        self.look()

    def look(self) -> None:
        """What has come of a step, and whether the reports are true."""
        for reply in self.client.received():
            self.open.remove(reply[P.NUMBER])
            self.answered.append(reply[P.NUMBER])
        for owner, end in self.ends.items():
            items = [record for record in end.received() if record[0] == BATCH_ITEM]
            assert not items or owner not in self.retiring_workers
            self.todo[owner] += items
        for report in self.star.reports():
            if isinstance(report, WorkerRetired):
                who = report.owner
                self.retiring_workers.remove(who)
                assert not self.todo[who]
                del self.ends[who], self.todo[who]  # its process ends by itself
                self.star.remove_worker(who, self.now_ns)
            else:
                assert (report, self.is_model_retiring) == (ModelRetired(MODEL), True)
                assert not self.open
                assert not any(self.todo.values())
                self.is_model_retiring = False

    def answer(self) -> None:
        """The worker that was started last, of those that have something, executes a batch."""
        busy = [owner for owner, items in self.todo.items() if items]
        if busy:
            owner, batch = busy[-1], self.todo[busy[-1]][0][B.BATCH]
            self.ends[owner].begin(batch)
            for item in [item for item in self.todo[owner] if item[B.BATCH] == batch]:
                self.todo[owner].remove(item)
                answer(self.ends[owner], item)

    def spawn(self) -> None:
        self.owner += 1
        self.ends[self.owner] = self.star.add_worker(self.owner, self.star.model(MODEL))
        self.todo[self.owner] = []

    def kill(self) -> None:
        if self.ends:
            owner = next(iter(self.ends))
            del self.ends[owner], self.todo[owner]
            self.retiring_workers.discard(owner)
            self.star.remove_worker(owner, self.now_ns)

    def retire(self) -> None:
        owner = next((owner for owner in self.ends if owner not in self.retiring_workers), None)
        if owner is not None:
            self.look()
            self.retiring_workers.add(owner)
            self.star.exchange.retire_worker(owner)

    def retire_model(self) -> None:
        self.is_model_retiring = True
        self.star.exchange.retire_model(MODEL)

    def succeed(self) -> None:
        self.star.succeed()
        self.look()
        for owner in self.retiring_workers:
            self.star.exchange.retire_worker(owner)
        if self.is_model_retiring:
            self.star.exchange.retire_model(MODEL)
        for number in sorted(self.open):
            ask(self.client, number)
        self.now_ns += 10
        self.star.exchange.resume(self.now_ns)
        self.look()
