"""The exchange while a model's requests are divided between two versions: who answers, and what a canary's failure
costs."""

from random import Random
from typing import Any

import pytest

from shoal.batcher.scheduling.split import WHOLE
from shoal.errors import InternalError
from shoal.messages.from_batcher import SplitFigures
from shoal.messages.to_batcher import SplitChanged
from shoal.reasons import OTHER_VERSION, Reason
from shoal.shm import layout
from shoal.shm.layout import BATCH_ITEM, DONE, REPLY, RESPONSE, B, P, pack_ref
from tests.batcher.star import BATCHING, CLIENT, HEADER, INPUT_BLOCK, SINGLE, End, Star, cell

SPLIT, STABLE, CANARY = 50, 5, 6
STABLE_WORKER, CANARY_WORKER = 31, 41


class Divided:
    """A star with two versions of a model, a worker of each, a client, and a split of all requests to the canary."""

    def __init__(self, config: dict[str, Any] = SINGLE, share: int = WHOLE, *, retries: bool = True) -> None:
        self.star = Star()
        self.stable, self.canary = self.star.add_model(STABLE, config), self.star.add_model(CANARY, config)
        self.canary.version = 3
        self.client = self.star.add_client(CLIENT)
        self.stable_worker = self.star.add_worker(STABLE_WORKER, self.stable)
        self.canary_worker = self.star.add_worker(CANARY_WORKER, self.canary)
        self.now_ns, self.retries = 0, retries
        self.divide(share)

    def divide(self, share: int, step: int = 1, canary: int = CANARY) -> None:
        """Divide the requests anew."""
        message = SplitChanged(SPLIT, STABLE, canary, share, self.retries, step)
        self.star.exchange.change_split(message, self.now_ns)

    def ask(self, *numbers: int, model: int = SPLIT, correlation: int = 0, flags: int = 0) -> None:
        """Requests that name no version."""
        for number in numbers:
            self.client.send(
                layout.REQUEST, number, model, INPUT_BLOCK, HEADER, 1, 0, 0, 0, correlation, flags, self.now_ns
            )
        self.step()

    def step(self) -> None:
        """Let a microsecond pass."""
        self.now_ns += 1_000
        self.star.exchange.step(self.now_ns)

    def answer(self, worker: End, status: int = 0) -> list[int]:
        """Answer all that a worker has been given; returns the requests' numbers."""
        items = [record for record in worker.received() if record[0] == BATCH_ITEM]
        for unit, item in enumerate(items, start=1):
            worker.begin(item[B.BATCH])
            self.send(worker, item, DONE, status, unit)
        self.step()
        return [item[B.KEY] & 0xFFFF for item in items]

    def send(self, worker: End, item: tuple[int, ...], kind: int, status: int = 0, unit: int = 1) -> None:
        """A response, in a block of the worker's."""
        block = pack_ref(worker.owner, unit, 1)
        worker.send(kind, item[B.KEY], item[B.BATCH], status, block, HEADER, *[self.now_ns] * 4)

    def replies(self) -> list[tuple[int, int, int, int]]:
        """(number, status, reason, detail) of each reply."""
        records = [record for record in self.client.received() if record[0] == REPLY]
        return [(each[P.NUMBER], each[P.STATUS], each[P.REASON], each[P.DETAIL]) for each in records]

    def figures(self) -> SplitFigures:
        """What the supervisor would be sent."""
        found = self.star.exchange.splits.figures(SPLIT, self.now_ns)
        assert found is not None
        return found


def test_what_a_canary_without_an_instance_is_not_given_is_shown_at_once() -> None:
    divided = Divided()
    divided.star.exchange.remove_worker(CANARY_WORKER, divided.now_ns, Reason.INSTANCE_DIED)
    divided.ask(1)
    assert divided.star.figures(CANARY)["fallen_back"] == 1
    assert divided.figures().canary[:2] == [1, 1]


def test_requests_in_the_queue_of_a_canary_that_is_rolled_back_are_shown_as_fallen_back() -> None:
    divided = Divided()
    divided.ask(1, 2, 3)
    divided.divide(0, canary=0)
    divided.step()
    assert divided.star.figures(CANARY)["fallen_back"] == 2, "one is in execution"


def test_a_request_without_a_version_is_answered_by_the_canary_which_the_reply_names() -> None:
    divided = Divided()
    divided.ask(1)
    assert divided.answer(divided.canary_worker) == [1]
    assert divided.replies() == [(1, 0, OTHER_VERSION, 3)]
    assert (cell(divided.canary, "success_count"), cell(divided.stable, "success_count")) == (1, 0)
    assert divided.figures().canary[:2] == [1, 0]


def test_the_reply_to_a_traced_request_names_its_version_and_has_its_times() -> None:
    divided = Divided()
    divided.ask(1)
    divided.client.send(layout.TRACE, 1)
    divided.step()
    divided.answer(divided.canary_worker)
    (reply,) = [record for record in divided.client.received() if record[0] == REPLY]
    assert (reply[P.NUMBER], reply[P.REASON], reply[P.DETAIL]) == (1, OTHER_VERSION, 3)
    assert reply[P.QUEUE_START_NS] > 0


def test_a_request_that_names_its_version_is_not_divided() -> None:
    divided = Divided()
    divided.ask(1, model=STABLE)
    assert divided.answer(divided.stable_worker) == [1]
    assert divided.replies() == [(1, 0, 0, 0)]


def test_the_share_is_kept() -> None:
    divided = Divided(BATCHING, share=2_500)
    answered, num_replies = list[int](), 0
    for first in range(1, 401, 4):
        divided.ask(*range(first, first + 4))
        answered += divided.answer(divided.canary_worker)
        divided.answer(divided.stable_worker)
        num_replies += len(divided.replies())
    assert 98 <= len(answered) <= 102
    assert num_replies == 400
    assert divided.figures().stable[0] == 400 - len(answered)


def test_an_error_of_the_canary_reaches_no_client() -> None:
    divided = Divided()
    divided.ask(1)
    divided.answer(divided.canary_worker, InternalError.wire)
    assert divided.replies() == []
    divided.step()
    assert divided.answer(divided.stable_worker) == [1]
    assert divided.replies() == [(1, 0, 0, 0)]
    assert divided.figures().canary[:2] == [1, 1]
    assert cell(divided.canary, "fallen_back") == cell(divided.canary, "failed_backend") == 1
    assert divided.figures().stable[0] == 0, "its latency would count the canary's time"
    assert not divided.star.exchange.num_open


def test_what_both_versions_fail_says_nothing_against_the_canary() -> None:
    divided = Divided()
    divided.ask(1)
    divided.answer(divided.canary_worker, InternalError.wire)
    divided.step()
    divided.answer(divided.stable_worker, InternalError.wire)
    assert divided.replies() == [(1, InternalError.wire, 0, 0)]
    assert divided.figures().canary[:2] == [1, 0]


def test_without_retries_the_client_gets_the_error_of_the_canary() -> None:
    divided = Divided(retries=False)
    divided.ask(1)
    divided.answer(divided.canary_worker, InternalError.wire)
    assert divided.replies() == [(1, InternalError.wire, OTHER_VERSION, 3)]
    assert divided.figures().canary[:2] == [1, 1]


def test_a_dying_canary_fails_no_request_and_gets_none_without_an_instance() -> None:
    divided = Divided()
    divided.ask(1, 2)
    (item,) = divided.canary_worker.received()
    divided.canary_worker.begin(item[B.BATCH])
    divided.star.exchange.remove_worker(CANARY_WORKER, divided.now_ns, Reason.INSTANCE_DIED)
    divided.ask(3)
    answered = list[int]()
    for _ in range(6):
        answered += divided.answer(divided.stable_worker)
    assert sorted(answered) == [1, 2, 3]
    assert sorted(divided.replies()) == [(1, 0, 0, 0), (2, 0, 0, 0), (3, 0, 0, 0)]
    assert divided.figures().canary[:2] == [3, 3]
    assert divided.star.figures(CANARY)["fallen_back"] == 3


def test_requests_that_wait_for_a_canary_which_is_rolled_back_are_the_stable_versions() -> None:
    divided = Divided()
    divided.ask(1, 2, 3)
    divided.divide(0, canary=0)
    divided.step()
    answered = divided.answer(divided.canary_worker)
    for _ in range(4):
        answered += divided.answer(divided.stable_worker)
    assert sorted(answered) == [1, 2, 3]
    assert sorted(each[0] for each in divided.replies()) == [1, 2, 3]


def test_after_the_end_a_reply_names_its_version_and_then_requests_cost_nothing_more() -> None:
    divided = Divided()
    divided.ask(1)
    divided.star.exchange.change_split(SplitChanged(SPLIT, CANARY, 0, 0, True, 2), divided.now_ns)
    divided.ask(2)
    assert divided.canary.split_id == SPLIT
    assert divided.answer(divided.canary_worker) == [1]
    assert divided.answer(divided.canary_worker, InternalError.wire) == [2]
    assert divided.replies() == [(1, 0, OTHER_VERSION, 3), (2, InternalError.wire, OTHER_VERSION, 3)]
    assert (divided.canary.split_id, divided.stable.split_id) == (0, 0)
    assert not divided.canary.finished.notes_all


def test_a_canary_that_is_unloaded_fails_no_request() -> None:
    divided = Divided()
    divided.ask(1, 2)
    divided.star.exchange.remove_model(CANARY, divided.now_ns)
    divided.ask(3)
    answered = list[int]()
    for _ in range(4):
        answered += divided.answer(divided.stable_worker)
    assert sorted(answered) == [2, 3], "the first is at its worker, which answers"


def test_a_cancelled_request_is_not_executed_again() -> None:
    divided = Divided()
    divided.ask(1)
    divided.client.send(layout.CANCEL, 1)
    divided.step()
    divided.answer(divided.canary_worker, InternalError.wire)
    divided.step()
    assert divided.answer(divided.stable_worker) == []
    assert [each[:2] for each in divided.replies()] == [(1, InternalError.wire)]
    assert divided.figures().canary[:2] == [0, 0]


def test_a_stream_is_the_stable_versions_only_if_none_of_it_was_sent() -> None:
    divided = Divided()
    divided.ask(1)
    (item,) = divided.canary_worker.received()
    divided.send(divided.canary_worker, item, RESPONSE, InternalError.wire)
    divided.step()
    assert divided.replies() == []
    divided.canary_worker.send(DONE, item[B.KEY], item[B.BATCH], 0, 0, 0, *[divided.now_ns] * 4)
    divided.step()
    divided.step()
    assert divided.answer(divided.stable_worker) == [1]
    assert divided.replies() == [(1, 0, 0, 0)]
    divided.ask(2)
    (item,) = [record for record in divided.canary_worker.received() if record[0] == BATCH_ITEM]
    divided.send(divided.canary_worker, item, RESPONSE, 0, 2)
    divided.send(divided.canary_worker, item, DONE, InternalError.wire, 3)
    divided.step()
    assert divided.replies() == [(2, 0, OTHER_VERSION, 3), (2, InternalError.wire, OTHER_VERSION, 3)]
    assert divided.answer(divided.stable_worker) == []


def test_requests_with_one_sticky_key_or_correlation_id_have_one_version() -> None:
    divided = Divided(BATCHING, share=5_000)
    number = 0
    for sticky in range(1, 33):
        for word in ({"flags": sticky * 0x3D0F << 32}, {"correlation": sticky * 0x3D0F}):
            by_canary = 0
            for _ in range(3):
                number += 1
                divided.ask(number, **word)
                by_canary += len(divided.answer(divided.canary_worker))
                divided.answer(divided.stable_worker)
            assert by_canary in (0, 3)
    assert 0 < divided.figures().canary[0] < number


SLOTS = {
    "control_input": [], "state": [], "max_sequence_idle_microseconds": 1_000_000, "iterative_sequence": False,
}  # fmt: skip
SEQUENCES: dict[str, Any] = {"name": "m", "max_batch_size": 8, "sequence_batching": SLOTS}


def test_a_sequence_stays_at_the_version_at_which_it_began() -> None:
    divided = Divided(SEQUENCES, share=0)
    divided.ask(1, correlation=7, flags=1)
    assert divided.answer(divided.stable_worker) == [1]
    divided.divide(WHOLE)
    divided.ask(2, correlation=7)
    assert divided.answer(divided.stable_worker) == [2]
    divided.ask(3, correlation=8, flags=1)
    assert divided.answer(divided.canary_worker) == [3]
    divided.divide(0)
    divided.ask(4, correlation=8, flags=2)
    assert divided.answer(divided.canary_worker) == [4]
    divided.ask(5, correlation=7, flags=2)
    assert divided.answer(divided.stable_worker) == [5]
    assert [each[1:3] for each in divided.replies()] == [(0, 0), (0, 0), (0, OTHER_VERSION), (0, OTHER_VERSION), (0, 0)]


def test_a_batchers_successor_divides_as_the_dead_one_did() -> None:
    divided = Divided()
    divided.ask(1, 2)
    (item,) = divided.canary_worker.received()
    divided.star.succeed()
    divided.divide(WHOLE)
    for number in (1, 2):
        divided.client.send(layout.REQUEST, number, SPLIT, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, 100)
    divided.star.exchange.resume(divided.now_ns)
    divided.send(divided.canary_worker, item, DONE)
    divided.step()
    assert divided.answer(divided.canary_worker) == [2]
    assert [each[0] for each in divided.replies()] == [1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_every_request_has_exactly_one_answer_and_none_fails_that_the_stable_version_answers(seed: int) -> None:
    rng = Random(seed)
    divided = Divided(BATCHING, share=rng.choice((100, 5_000, WHOLE)))
    asked, workers, next_worker = 0, {CANARY_WORKER: divided.canary_worker}, CANARY_WORKER
    replied: list[tuple[int, int, int, int]] = []
    waiting: dict[int, list[tuple[int, ...]]] = {CANARY_WORKER: [], STABLE_WORKER: []}
    for _ in range(200):
        what = rng.random()
        if what < 0.4:
            count = rng.randint(1, 3)
            divided.ask(*range(asked + 1, asked + count + 1))
            asked += count
        elif what < 0.45:
            canary = CANARY if rng.random() < 0.8 else 0
            divided.divide(rng.choice((0, 100, 5_000, WHOLE)), step=rng.randint(1, 3), canary=canary)
        elif what < 0.5:
            for owner in tuple(workers):
                del workers[owner], waiting[owner]
                divided.star.exchange.remove_worker(owner, divided.now_ns)
        elif what < 0.6 and not workers:
            next_worker += 1
            workers[next_worker] = divided.star.add_worker(next_worker, divided.canary)
            waiting[next_worker] = []
        else:
            everywhere = {STABLE_WORKER: divided.stable_worker, **workers}
            owner = rng.choice(list(everywhere))
            end = everywhere[owner]
            waiting[owner] += [each for each in end.received() if each[0] == BATCH_ITEM]
            for item in waiting[owner][: rng.randint(1, 4)]:
                end.begin(item[B.BATCH])
                status = InternalError.wire if owner != STABLE_WORKER and rng.random() < 0.5 else 0
                end.send(DONE, item[B.KEY], item[B.BATCH], status, 0, 0, *[divided.now_ns] * 4)
                waiting[owner].remove(item)
        divided.step()
        replied += divided.replies()
    divided.divide(0)
    for _ in range(asked * 2):
        for owner, end in {STABLE_WORKER: divided.stable_worker, **workers}.items():
            waiting[owner] += [each for each in end.received() if each[0] == BATCH_ITEM]
            for item in waiting[owner]:
                end.send(DONE, item[B.KEY], item[B.BATCH], 0, 0, 0, *[divided.now_ns] * 4)
            waiting[owner].clear()
        divided.step()
        replied += divided.replies()
        if not divided.star.exchange.num_open:
            break
    assert sorted(number for number, *_ in replied) == list(range(1, asked + 1))
    assert {status for _, status, *_ in replied} <= {0}
    splits = divided.star.exchange.splits
    assert not splits.routed
    assert not splits.fallen_back
    divided.divide(0, canary=0)
    assert divided.stable.split_id == divided.canary.split_id == 0
