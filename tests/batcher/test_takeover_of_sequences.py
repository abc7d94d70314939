"""A batcher dies; its successor goes on with the sequences that instances have."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, DONE, READY, REQUEST, B
from tests.batcher.last_store import dying
from tests.batcher.star import CLIENT, HEADER, INPUT_BLOCK, MODEL, WORKER, End, Star, one_of_each, replies

BATCHING = {"control_input": [], "state": [], "max_sequence_idle_microseconds": 1000, "iterative_sequence": False}
START, END, IDLE_NS = 1, 2, 1_000_000
NAME, OTHER_NAME = 7, 8


def config(num_slots: int, **batching: Any) -> dict[str, Any]:
    return {"name": "m", "max_batch_size": num_slots, "sequence_batching": {**BATCHING, **batching}}


def ask(client: End, number: int, correlation: int, flags: int = 0, start_ns: int = 100) -> None:
    client.send(REQUEST, number, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, correlation, flags, start_ns)


def items(worker: End) -> list[tuple[int, int, int]]:
    """Of each request: its key without its client's id, the word with flags and slot, its correlation."""
    found = [record for record in worker.received() if record[0] == BATCH_ITEM]
    return [(item[B.KEY] & 0xFFFF, item[B.FLAGS], item[B.CORRELATION]) for item in found]


def answer(worker: End, number: int, batch: int, kind: int = DONE, client: int = CLIENT) -> None:
    worker.send(kind, (client << 40) + number, batch, 0, 0, 0, 600, 610, 620, 630)


def begun(num_slots: int = 1) -> tuple[Star, End, End]:
    """Request 1 of a sequence has been answered."""
    star, client, worker = one_of_each(config(num_slots))
    ask(client, 1, NAME, START)
    star.exchange.step(now_ns=500)
    assert items(worker) == [(1, START | 1 << 8, NAME)]
    answer(worker, 1, 1)
    star.exchange.step(now_ns=600)
    assert replies(client) == [(1, 0)]
    return star, client, worker


def test_a_sequence_between_two_requests_goes_on_where_it_was() -> None:
    star, client, worker = begun(num_slots=2)
    for number in (2, 3):
        star.succeed()
        star.exchange.resume(now_ns=700)
        ask(client, number, NAME)
        star.exchange.step(now_ns=800)
        assert items(worker) == [(number, 1 << 8, NAME)]
        answer(worker, number, number)
        star.exchange.step(now_ns=900)
        assert replies(client) == [(number, 0)]
    ask(client, 4, OTHER_NAME, START)
    star.exchange.step(now_ns=1_000)
    assert items(worker) == [(4, START | 2 << 8, OTHER_NAME)]


def test_what_runs_and_what_waits_go_on() -> None:
    star, client, worker = begun()
    ask(client, 2, NAME)
    star.exchange.step(now_ns=650)
    assert items(worker) == [(2, 1 << 8, NAME)]
    ask(client, 3, NAME, END)
    ask(client, 4, OTHER_NAME, START)
    star.exchange.step(now_ns=660)
    star.succeed()
    ask(client, 2, NAME)
    ask(client, 3, NAME, END)
    ask(client, 4, OTHER_NAME, START)
    star.exchange.resume(now_ns=700)
    assert items(worker) == []
    for number, batch, word, correlation in ((3, 3, END | 1 << 8, NAME), (4, 4, START | 1 << 8, OTHER_NAME)):
        answer(worker, number - 1, batch - 1)
        star.exchange.step(now_ns=800)
        assert items(worker) == [(number, word, correlation)]
    assert replies(client) == [(2, 0), (3, 0)]


def test_a_sequence_whose_last_request_runs_can_be_joined_no_more() -> None:
    star, client, worker = begun()
    ask(client, 2, NAME, END)
    star.exchange.step(now_ns=650)
    worker.received()
    star.succeed()
    ask(client, 2, NAME, END)
    star.exchange.resume(now_ns=700)
    ask(client, 3, NAME)
    star.exchange.step(now_ns=710)
    assert replies(client) == [(3, Reason.NOT_STARTED)]
    ask(client, 4, NAME, START)
    answer(worker, 2, 2)
    star.exchange.step(now_ns=800)
    assert items(worker) == [(4, START | 1 << 8, NAME)]
    assert replies(client) == [(2, 0)]


@pytest.mark.parametrize("dies", [False, True])
def test_requests_of_sequences_wait_for_the_front_ends_that_have_not_spoken(dies: bool) -> None:
    """Two requests of one sequence came by two clients; the later one is said again first."""
    star, client, worker = begun()
    late = star.add_client(CLIENT + 1, is_front_end=True)
    ask(client, 2, NAME)
    star.exchange.step(now_ns=650)
    assert items(worker) == [(2, 1 << 8, NAME)]
    ask(late, 3, NAME, start_ns=200)
    star.exchange.step(now_ns=660)
    ask(client, 4, NAME, start_ns=300)
    star.succeed(late=[CLIENT + 1])
    ask(client, 2, NAME)
    ask(client, 4, NAME, start_ns=300)
    star.exchange.resume(now_ns=700)
    answer(worker, 2, 2)
    star.exchange.step(now_ns=800)
    assert items(worker) == []
    if dies:
        star.exchange.remove_client(CLIENT + 1, now_ns=900)
    else:
        ask(late, 3, NAME, start_ns=200)
        star.exchange.succession.receive_late(CLIENT + 1, now_ns=900)
    star.exchange.step(now_ns=900)
    assert items(worker) == [(4 if dies else 3, 1 << 8, NAME)]


def test_a_sequence_that_ended_is_not_brought_back() -> None:
    star, client, worker = begun()
    ask(client, 2, NAME, END)
    star.exchange.step(now_ns=650)
    answer(worker, 2, 2)
    star.exchange.step(now_ns=660)
    star.succeed()
    star.exchange.resume(now_ns=700)
    ask(client, 3, NAME)
    star.exchange.step(now_ns=710)
    assert replies(client) == [(2, 0), (3, Reason.NOT_STARTED)]


def test_a_sequence_is_idle_from_the_takeover_on() -> None:
    star, client, _ = begun()
    star.succeed()
    star.exchange.resume(now_ns=700)
    star.exchange.step(now_ns=1_000)
    assert star.exchange.next_deadline_ns() == 0 + IDLE_NS  # the star adds workers at 0
    star.exchange.step(now_ns=IDLE_NS)
    star.succeed()
    star.exchange.resume(now_ns=IDLE_NS)
    ask(client, 2, NAME)
    star.exchange.step(now_ns=IDLE_NS + 1)
    assert replies(client) == [(2, Reason.NOT_STARTED)]


def test_a_sequence_that_was_cancelled_while_it_ran_stays_closed() -> None:
    star, client, worker = begun()
    ask(client, 2, NAME)
    star.exchange.step(now_ns=650)
    ask(client, 3, NAME)
    client.send(2, 3)
    star.exchange.step(now_ns=660)
    assert replies(client) == [(3, Reason.CANCELLED)]
    star.succeed()
    ask(client, 2, NAME)
    star.exchange.resume(now_ns=700)
    ask(client, 4, NAME)
    answer(worker, 2, 2)
    star.exchange.step(now_ns=800)
    assert sorted(replies(client)) == [(2, 0), (4, Reason.NOT_STARTED)]


def test_requests_of_a_sequence_are_queued_as_they_had_come_whichever_clients_they_came_by() -> None:
    star, client, worker = begun()
    second = star.add_client(CLIENT + 1)
    star.succeed()
    ask(client, 4, NAME, END, start_ns=300)
    ask(second, 3, NAME, start_ns=200)
    star.exchange.resume(now_ns=700)
    assert items(worker) == [(3, 1 << 8, NAME)]
    answer(worker, 3, 2, client=CLIENT + 1)
    star.exchange.step(now_ns=800)
    assert items(worker) == [(4, END | 1 << 8, NAME)]


def test_an_instance_dies_with_the_sequences_that_a_dead_batcher_gave_it() -> None:
    star, client, worker = begun()
    ask(client, 2, NAME)
    star.exchange.step(now_ns=650)
    star.succeed()
    ask(client, 2, NAME)
    star.exchange.resume(now_ns=700)
    worker.begin(2)
    star.remove_worker(WORKER, 800)
    ask(client, 3, NAME)
    star.exchange.step(now_ns=800)
    assert sorted(replies(client)) == [(2, Reason.INSTANCE_DIED), (3, Reason.SEQUENCE_LOST)]


def test_a_sequence_that_a_dead_instance_had_not_begun_moves_though_the_batcher_died_before() -> None:
    star, client, _ = one_of_each(config(1))
    ask(client, 1, NAME, START)
    star.exchange.step(now_ns=500)
    star.succeed()
    ask(client, 1, NAME, START)
    star.exchange.resume(now_ns=600)
    star.remove_worker(WORKER, 700)
    other = star.add_worker(WORKER + 1, star.model(MODEL))
    star.exchange.step(now_ns=800)
    assert items(other) == [(1, START | 1 << 8, NAME)]
    assert replies(client) == []


def test_of_a_decoupled_model_that_overlaps_executions_sequences_are_lost() -> None:
    star, client, worker = one_of_each({**config(1), "model_transaction_policy": {"decoupled": True}})
    ask(client, 1, NAME, START)
    star.exchange.step(now_ns=500)
    answer(worker, 1, 1, READY)
    star.exchange.step(now_ns=600)
    answer(worker, 1, 1)
    star.exchange.step(now_ns=610)
    star.succeed()
    star.exchange.resume(now_ns=700)
    ask(client, 2, NAME)
    ask(client, 3, OTHER_NAME, START)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(1, 0), (2, Reason.SEQUENCE_LOST)]
    assert items(worker)[-1] == (3, START | 1 << 8, OTHER_NAME)


@pytest.mark.parametrize("correlation", [0, NAME])
def test_an_iterative_request_may_have_begun(correlation: int) -> None:
    star, client, _ = one_of_each(config(1, iterative_sequence=True))
    ask(client, 1, correlation, START)
    ask(client, 2, correlation and correlation + 1, START)
    star.exchange.step(now_ns=500)
    star.succeed()
    ask(client, 1, correlation, START)
    ask(client, 2, correlation and correlation + 1, START)
    star.exchange.resume(now_ns=600)
    assert replies(client) == [(2, Reason.TAKEN_OVER)]


STEPS = st.lists(
    st.sampled_from(
        [*("go", "go_other", "end", "end_other"), "step", "step", "execute", "execute", "succeed"]
        + [f"die_{number}" for number in range(1, 9)]
    ),
    max_size=50,
)


class Play:
    """A client with two sequences, one after the other of each, and a worker that keeps to its side."""

    def __init__(self, num_slots: int) -> None:
        self.star, self.client, self.worker = one_of_each(config(num_slots))
        self.now_ns = 1_000
        self.number = 0
        self.live: dict[int, int] = {}  # correlation → which sequence of that id
        self.num_sequences = 0
        self.open: dict[int, tuple[int, int]] = {}
        self.asked: dict[int, list[int]] = {}  # sequence → its requests
        self.sequence_of: dict[int, int] = {}
        self.executed: list[tuple[int, int]] = []  # request, slot
        self.todo: list[tuple[int, ...]] = []

    def perform(self, step: str) -> None:
        name, _, argument = step.partition("_")
        if name in ("go", "end"):
            self.ask(OTHER_NAME if argument else NAME, END if name == "end" else 0)
        elif name == "die":
            self.now_ns += 10
            with dying(int(argument)):
                self.star.exchange.step(self.now_ns)
            self.succeed()
        else:
            getattr(self, name)()

    def ask(self, correlation: int, flags: int) -> None:
        if correlation not in self.live:
            self.num_sequences += 1
            self.live[correlation] = self.num_sequences
            flags |= START
        sequence = self.live[correlation]
        if flags & END:
            del self.live[correlation]
        self.number += 1
        self.open[self.number] = correlation, flags
        self.asked.setdefault(sequence, []).append(self.number)
        self.sequence_of[self.number] = sequence
        ask(self.client, self.number, correlation, flags, start_ns=self.now_ns)

    def step(self) -> None:
        self.now_ns += 10
        self.star.exchange.step(self.now_ns)
        self.collect()

    def collect(self) -> None:
        for number, reason in replies(self.client):
            assert reason == 0
            self.open.pop(number, None)

    def execute(self) -> None:
        """The worker executes a batch."""
        self.todo += [record for record in self.worker.received() if record[0] == BATCH_ITEM]
        batch = self.todo[0][B.BATCH] if self.todo else 0
        for item in [item for item in self.todo if item[B.BATCH] == batch]:
            self.todo.remove(item)
            number = item[B.KEY] & 0xFFFF
            self.executed.append((number, item[B.FLAGS] >> 8))
            answer(self.worker, number, batch)

    def succeed(self) -> None:
        self.star.succeed()
        self.collect()
        for number, (correlation, flags) in self.open.items():
            ask(self.client, number, correlation, flags)
        self.now_ns += 10
        self.star.exchange.resume(self.now_ns)


@settings(max_examples=80)
@given(STEPS, st.sampled_from([1, 2]))
def test_each_request_is_executed_once_in_its_turn_and_in_its_sequences_slot(steps: list[str], num_slots: int) -> None:
    play = Play(num_slots)
    for step in steps:
        play.perform(step)
    for correlation in tuple(play.live):
        play.ask(correlation, END)
    for _ in range(2 * play.number + 3):
        play.step()
        play.execute()
    assert not play.open
    assert sorted(number for number, _ in play.executed) == list(range(1, play.number + 1))
    for sequence, asked in play.asked.items():
        executed = [(number, slot) for number, slot in play.executed if play.sequence_of[number] == sequence]
        assert [number for number, _ in executed] == asked
        assert len({slot for _, slot in executed}) == 1
