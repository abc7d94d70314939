"""The exchange and requests that end instances: which deaths count, who is refused, what is reported."""

import signal
from dataclasses import dataclass, field

import pytest

from shoal.datatypes import BY_NAME
from shoal.messages.shared import PoisonFound
from shoal.reasons import SHARED_PROCESS, DeathDetail, Reason
from shoal.request import InferRequest, TensorRef, pack_request
from shoal.shm import layout
from shoal.shm.layout import B, P, pack_ref, pack_span
from shoal.shm.slab import Slab
from tests.batcher.star import BATCHING, CLIENT, MODEL, SINGLE, WORKER, End, Star, answer, cell

REFUSAL_NS = 60_000
POISON, INNOCENT = b"poison 1", b"innocent"


@dataclass
class Clinic:
    """A star whose batcher looks for poison, and a client that writes requests."""

    config: dict[str, object] = field(default_factory=lambda: dict(SINGLE))
    may_run_again: bool = False

    def __post_init__(self) -> None:
        self.star = Star(poison_refusal_ns=REFUSAL_NS)
        self.model = self.star.add_model(MODEL, self.config, may_run_again=self.may_run_again)
        self.clients: dict[int, tuple[End, Slab]] = {}
        self.num_workers = 0
        self.now_ns = 1000
        self.worker = self.start()
        self.add_client(CLIENT, is_front_end=True)

    def add_client(self, owner: int, *, is_front_end: bool = False, is_guest: bool = False) -> None:
        end = self.star.add_client(owner, is_front_end=is_front_end, is_guest=is_guest)
        self.clients[owner] = end, Slab(end.own)

    def start(self) -> End:
        self.num_workers += 1
        return self.star.add_worker(WORKER + self.num_workers, self.model)

    def ask(self, number: int, contents: bytes, owner: int = CLIENT, *, id_: str = "", sequence: int = 0) -> None:
        end, slab = self.clients[owner]
        tensor = TensorRef("X", BY_NAME["UINT8"].wire, (1, len(contents)), 0, len(contents))
        header = pack_request(InferRequest(id_, (tensor,), (), {}, (sequence, 1 if sequence else 0)))
        block = slab.allocate(len(contents) + len(header))
        assert block is not None
        block.memory[: len(contents)] = contents
        block.memory[len(contents) : len(contents) + len(header)] = header
        span = pack_span(len(contents), len(header))
        end.send(layout.REQUEST, number, MODEL, block.ref, span, 1, 0, 0, 0, 0, 0, self.now_ns)
        self.step()

    def step(self) -> None:
        self.now_ns += 100
        self.star.exchange.step(self.now_ns)

    def execute(self) -> list[int]:
        """The worker begins its next batch: the numbers of its requests."""
        self.items = self.worker.received()
        if self.items:
            self.worker.begin(self.items[0][B.BATCH])
        first = self.items[0][B.BATCH] if self.items else 0
        self.items = [item for item in self.items if item[B.BATCH] == first]
        return [item[B.KEY] & 0xFF for item in self.items]

    def die(self, code: int = 3, reason: Reason = Reason.INSTANCE_DIED) -> None:
        detail = DeathDetail(17, 0, 0, code & 0xFFFF).pack()
        self.now_ns += 100
        self.star.exchange.remove_worker(self.worker.owner, self.now_ns, reason, detail)
        self.worker = self.start()
        self.step()

    def answer(self) -> None:
        for item in self.items:
            answer(self.worker, item, block=pack_ref(self.worker.owner, 2, 1))
        self.step()

    def outcomes(self, owner: int = CLIENT) -> dict[int, Reason]:
        return {reply[P.NUMBER]: Reason(reply[P.REASON]) for reply in self.clients[owner][0].received()}


def test_a_request_that_killed_twice_is_refused_whatever_its_id_and_others_are_not() -> None:
    clinic = Clinic()
    for number in (1, 2):
        clinic.ask(number, POISON, id_=f"r{number}")
        assert clinic.execute() == [number]
        clinic.die()
    clinic.ask(3, POISON, id_="r3")
    clinic.ask(4, INNOCENT)
    assert clinic.outcomes() == {1: Reason.INSTANCE_DIED, 2: Reason.INSTANCE_DIED, 3: Reason.POISON}
    assert clinic.execute() == [4]
    figures = (cell(clinic.model, "poison_found"), cell(clinic.model, "poison_refused"))
    assert figures == (1, 1)
    (found,) = clinic.star.reports()
    assert isinstance(found, PoisonFound)
    assert (found.model_id, found.num_deaths, found.num_refusals) == (MODEL, 2, 1)


def test_the_log_has_the_digest_as_128_bits(caplog: pytest.LogCaptureFixture) -> None:
    clinic = Clinic()
    for number in (1, 2):
        clinic.ask(number, POISON)
        clinic.execute()
        clinic.die()
    (found,) = clinic.star.reports()
    assert isinstance(found, PoisonFound)
    assert f"digest {(found.digest_high << 64) + found.digest_low:032x})" in caplog.text


def test_the_reply_says_how_many_deaths_and_how_long() -> None:
    clinic = Clinic()
    for number in (1, 2):
        clinic.ask(number, POISON)
        clinic.execute()
        clinic.die()
    until_ns = clinic.now_ns - 100 + REFUSAL_NS
    clinic.clients[CLIENT][0].received()
    clinic.ask(3, POISON)
    (reply,) = clinic.clients[CLIENT][0].received()
    assert (reply[P.DETAIL] >> 42, reply[P.DETAIL] & 0xFFFF) == (2, (until_ns - clinic.now_ns) // 1000)


def test_the_others_of_a_batch_are_tried_alone_and_none_of_them_is_refused() -> None:
    clinic = Clinic(dict(BATCHING))
    clinic.ask(1, INNOCENT)  # occupies the instance
    clinic.execute()
    for number, contents in ((2, b"aaaa"), (3, POISON), (4, b"cccc")):
        clinic.ask(number, contents)
    clinic.answer()
    assert clinic.execute() == [2, 3, 4]
    clinic.die()
    assert clinic.outcomes() == {1: Reason.NONE, **dict.fromkeys((2, 3, 4), Reason.INSTANCE_DIED)}
    for number, contents in ((5, b"aaaa"), (6, POISON), (7, b"cccc"), (8, POISON)):
        clinic.ask(number, contents)
    assert clinic.execute() == [5]
    clinic.answer()
    assert clinic.execute() == [6]
    clinic.die()
    assert clinic.execute() == [7]
    clinic.answer()
    assert clinic.outcomes() == {
        5: Reason.NONE, 6: Reason.INSTANCE_DIED, 7: Reason.NONE, 8: Reason.POISON,
    }  # fmt: skip


def test_requests_that_may_run_again_are_tried_at_once_and_the_poison_fails_by_its_second_death() -> None:
    clinic = Clinic(dict(BATCHING), may_run_again=True)
    clinic.ask(1, INNOCENT)
    clinic.execute()
    for number, contents in ((2, b"aaaa"), (3, POISON), (4, POISON), (5, b"aaaa")):
        clinic.ask(number, contents)
    clinic.answer()
    assert clinic.execute() == [2, 3, 4, 5]
    clinic.die()
    executed = []
    while numbers := clinic.execute():
        executed.append(numbers)
        if 3 in numbers or 4 in numbers:
            clinic.die()
        else:
            clinic.answer()
    assert executed == [[2], [3], [5]]  # the fourth waits for the third, and is refused like it
    assert clinic.outcomes() == {
        1: Reason.NONE, 2: Reason.NONE, 3: Reason.INSTANCE_DIED, 4: Reason.POISON, 5: Reason.NONE,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "reason", "counts"),
    [
        (3, Reason.INSTANCE_DIED, True),
        (-signal.SIGSEGV, Reason.INSTANCE_DIED, True),
        (-signal.SIGKILL, Reason.INSTANCE_DIED, False),
        (-signal.SIGTERM, Reason.INSTANCE_DIED, False),
        (300, Reason.EXECUTION_LIMIT, True),
        (0, Reason.OUT_OF_MEMORY, True),
        (0, Reason.DAMAGED, False),
    ],
)
def test_deaths_that_come_from_outside_do_not_count(code: int, reason: Reason, counts: bool) -> None:
    clinic = Clinic()
    for number in (1, 2):
        clinic.ask(number, POISON)
        clinic.execute()
        clinic.die(code, reason)
    clinic.outcomes()
    clinic.ask(3, POISON)
    assert (clinic.outcomes() == {3: Reason.POISON}) == counts


def test_a_request_that_was_not_begun_is_no_suspect() -> None:
    clinic = Clinic()
    clinic.ask(1, POISON)
    for _ in range(3):
        assert clinic.worker.received()
        clinic.die()
    assert clinic.execute() == [1]


def test_a_model_without_suspects_has_its_own_scheduler_again() -> None:
    clinic = Clinic()
    before = clinic.model.scheduler
    clinic.ask(1, INNOCENT)
    clinic.execute()
    clinic.die()
    assert clinic.model.scheduler is not before
    clinic.ask(2, INNOCENT)
    clinic.execute()
    clinic.answer()
    assert clinic.model.scheduler is before
    assert clinic.model.trials is None


def test_what_a_foreign_client_dies_of_is_refused_to_foreign_clients_alone() -> None:
    clinic = Clinic()
    clinic.add_client(CLIENT + 1)
    for number in (1, 2):
        clinic.ask(number, POISON, CLIENT + 1)
        clinic.execute()
        clinic.die()
    clinic.ask(3, POISON, CLIENT + 1)
    clinic.ask(1, POISON)
    assert clinic.outcomes(CLIENT + 1)[3] is Reason.POISON
    assert clinic.execute() == [1]


def test_a_request_of_a_sequence_is_never_refused() -> None:
    clinic = Clinic()
    for number in range(1, 5):
        clinic.ask(number, POISON, sequence=7)
        assert clinic.execute() == [number]
        clinic.die()
    assert set(clinic.outcomes().values()) == {Reason.INSTANCE_DIED}


def test_a_client_that_leaves_during_a_trial_leaves_the_next_one_its_turn() -> None:
    clinic = Clinic()
    clinic.add_client(CLIENT + 1, is_front_end=True)
    clinic.ask(1, POISON)
    clinic.execute()
    clinic.die()
    clinic.ask(2, POISON)
    assert clinic.execute() == [2]
    clinic.ask(1, POISON, CLIENT + 1)
    assert not clinic.worker.received()
    clinic.star.exchange.remove_client(CLIENT, clinic.now_ns)
    clinic.answer()
    assert clinic.execute() == [1]


def test_a_successor_goes_on_with_a_refusal() -> None:
    clinic = Clinic()
    for number in (1, 2):
        clinic.ask(number, POISON)
        clinic.execute()
        clinic.die()
    (found,) = clinic.star.reports()
    assert isinstance(found, PoisonFound)
    clinic.star.succeed()
    successor = clinic.star.exchange
    successor.resume(clinic.now_ns)
    assert successor.poison is not None
    successor.poison.restore(clinic.star.model(MODEL), found)
    clinic.outcomes()
    clinic.ask(3, POISON)
    assert clinic.outcomes() == {3: Reason.POISON}


def test_a_request_beside_others_in_the_threads_of_a_process_is_not_laid_their_death() -> None:
    """Two instances of one process: what either was executing when it died may have been the cause, so none of the two
    was alone, though each was alone in its batch; the death is noted once."""
    clinic = Clinic()
    clinic.star.remove_worker(clinic.worker.owner, clinic.now_ns)
    for start in (1, 3):
        first, second = (clinic.start() for _ in range(2))
        for thread in (first, second):
            clinic.star.exchange.workers[thread.owner].instance = DeathDetail(17, 0, 0, 0).pack()
        clinic.ask(start, INNOCENT if start == 1 else b"a third one")
        clinic.ask(start + 1, POISON)
        for thread in (first, second):
            (item,) = thread.received()
            thread.begin(item[B.BATCH])
            thread.own.words[layout.BUSY_SINCE_WORD] = clinic.now_ns
        detail = DeathDetail(17, 0, 0, 3 | SHARED_PROCESS).pack()
        for thread in (first, second):
            clinic.star.exchange.remove_worker(thread.owner, clinic.now_ns, Reason.INSTANCE_DIED, detail)
        clinic.step()
    assert clinic.outcomes() == dict.fromkeys((1, 2, 3, 4), Reason.INSTANCE_DIED)
    assert not clinic.star.reports()
    assert clinic.model.trials is not None
    assert sorted(each.num_deaths for each in clinic.model.trials.suspects._suspects.values()) == [1, 1, 2]


def test_the_instance_over_its_limit_counts_whichever_of_its_process_is_reported_first() -> None:
    """The process was killed for it, which says nothing about what the other instances were executing."""
    clinic = Clinic()
    for round_ in (1, 2):
        first, second = clinic.worker, clinic.start()
        for thread in (first, second):
            clinic.star.exchange.workers[thread.owner].instance = DeathDetail(17 + round_, 0, 0, 0).pack()
        clinic.ask(2 * round_ - 1, INNOCENT)
        clinic.ask(2 * round_, POISON)
        for thread in (first, second):
            thread.begin(thread.received()[0][B.BATCH])
        killed = DeathDetail(17 + round_, 0, 0, -signal.SIGKILL & 0xFFFF | SHARED_PROCESS).pack()
        clinic.star.exchange.remove_worker(first.owner, clinic.now_ns, Reason.INSTANCE_DIED, killed)
        over = DeathDetail(17 + round_, 0, 0, 500).pack()
        clinic.star.exchange.remove_worker(second.owner, clinic.now_ns, Reason.EXECUTION_LIMIT, over)
        clinic.worker = clinic.start()
        clinic.step()
    assert clinic.model.trials is not None
    assert [each.num_deaths for each in clinic.model.trials.suspects._suspects.values()] == [2]
    clinic.ask(5, POISON)
    assert clinic.outcomes()[5] is Reason.POISON


def test_the_header_of_a_guest_opens_no_block_of_another_client() -> None:
    clinic, guest = Clinic(), CLIENT + 1
    clinic.add_client(guest, is_guest=True)
    theirs, own = (clinic.clients[owner][1].allocate(16) for owner in (CLIENT, guest))
    assert theirs is not None
    assert own is not None
    exchange = clinic.star.exchange
    opens = {owner: exchange.blocks.opener(exchange.clients[owner], own.memory) for owner in (CLIENT, guest)}
    assert opens[guest](0) is own.memory
    assert opens[guest](own.ref) is not None
    assert opens[guest](theirs.ref) is None
    assert opens[CLIENT](theirs.ref) is not None
