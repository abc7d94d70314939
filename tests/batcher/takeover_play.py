"""Clients, a worker and batchers that die: what a test of takeovers has them do, one step after the other."""

from collections.abc import Sequence

from shoal.reasons import Reason
from shoal.shm.counters import CELL
from shoal.shm.layout import (
    DONE,
    FREE,
    GENERATION_BITS,
    HAVE,
    HOLD,
    NUMBER_BITS,
    RELEASE,
    REPLY,
    RESCHEDULE,
    UNIT_BITS,
    B,
    P,
    pack_ref,
)
from tests.batcher.last_store import dying
from tests.batcher.star import CLIENT, HEADER, MODEL, WORKER, End, Star, ask, cell

#: The requests that all clients together may send.
MOST_REQUESTS = 12
#: The first of the blocks in which the first client's requests are answered one by one; further clients' follow.
ONE_BY_ONE = 1000


def output_block(item: tuple[int, ...]) -> int:
    """Where the outputs of a request's batch lie."""
    return pack_ref(WORKER, item[B.BATCH], 1)


def answer(worker: End, item: tuple[int, ...], block: int = 0) -> None:
    """Answer a request; the outputs of its batch lie in one block, if this is not another one."""
    ref = block or output_block(item)
    worker.send(DONE, item[B.KEY], item[B.BATCH], 0, ref, HEADER, 1_000, 1_010, 1_110, 1_115)


class Play:
    """Clients and one worker that keep their side of the protocol, and batchers that die.

    `late` are clients beside CLIENT that send nothing again to a successor by themselves (late_play.py).

    A schedule's words are names of methods, and `NAME:VALUE,…` for what must have happened by then. Requests are called
    by their client's numbers, `late1` if the client is not the first one. NAME is `answered` (replies that clients have
    collected), `given` (requests that the worker has been sent) or `freed` (batches whose block the worker has been
    told is of no more use), each since the schedule's last such word; `open` (how many requests the batcher has), or
    the name of one of the model's figures.
    """

    def __init__(self, config: dict[str, object], late: Sequence[int] = ()) -> None:
        self.star = Star()
        model = self.star.add_model(MODEL, config)
        self.late = late
        self.clients = {owner: self.star.add_client(owner) for owner in (CLIENT, *late)}
        self.worker = self.star.add_worker(WORKER, model)
        self.now_ns = 1_000
        self.number = dict.fromkeys(self.clients, 0)
        self.open: dict[int, set[int]] = {owner: set() for owner in self.clients}
        self.unreleased: dict[int, dict[int, int]] = {owner: {} for owner in self.clients}
        self.answered: dict[int, list[int]] = {owner: [] for owner in self.clients}
        self.batch = 0  # the last that the worker was sent
        self.todo: list[tuple[int, ...]] = []
        self.executed: list[int] = []
        self.blocks: set[int] = set()  # of the worker's, taken
        self.news: dict[str, list[str]] = {"answered": [], "given": [], "freed": []}

    def perform(self, *steps: str) -> None:
        """Words of a schedule; `die_3` is a death at the third thing that a step of the batcher shows."""
        for index, step in enumerate(steps):
            name, _, number = step.partition("_")
            event, is_expected, values = step.partition(":")
            if is_expected:
                happened = ",".join(self.happened(event))
                assert happened == values, f"{event}:{happened} after {steps[:index]}"
            elif name == "die":
                self.die(int(number))
            else:
                getattr(self, step)()

    def happened(self, event: str) -> list[str]:
        """What a schedule's word expects a value of."""
        if event == "open":
            return [str(self.star.exchange.num_open)]
        if event in CELL:
            return [str(cell(self.star.model(MODEL), event))]
        self.take()
        news, self.news[event] = self.news[event], []
        return news

    @staticmethod
    def label(owner: int, number: int) -> str:
        """A request's name in a schedule."""
        return str(number) if owner == CLIENT else f"late{number}"

    def end(self) -> None:
        """Nothing more is asked, and everybody does what is left to do."""
        for _ in range(2 * sum(self.number.values()) + 3):
            self.step()
            self.answer()
        self.send_message()
        self.step()
        self.release()
        self.step()
        self.answer()  # takes back what was freed

    def check(self) -> None:
        """Every request has been answered and executed once, and every block is free."""
        for owner, number in self.number.items():
            assert sorted(self.answered[owner]) == list(range(1, number + 1))
        assert sorted(self.executed) == sorted(set(self.executed))
        assert not self.blocks
        assert (len(self.star.exchange.holders), self.star.exchange.num_open) == (0, 0)
        assert cell(self.star.model(MODEL), "pending_count") == 0

    def die(self, number: int) -> None:
        """The batcher dies in the middle of a step."""
        self.now_ns += 10
        with dying(number):
            self.star.exchange.step(self.now_ns)
        self.succeed()

    def ask(self, owner: int = CLIENT) -> None:
        if self.number[owner] < MOST_REQUESTS // len(self.clients):
            self.number[owner] += 1
            self.open[owner].add(self.number[owner])
            ask(self.clients[owner], self.number[owner])

    def step(self) -> None:
        self.step_unread()
        for owner in self.clients:
            self.collect(owner)

    def step_unread(self) -> None:
        """The clients collect no reply."""
        self.now_ns += 10
        self.star.exchange.step(self.now_ns)

    def collect(self, owner: int = CLIENT) -> None:
        for reply in self.clients[owner].received():
            assert reply[0] == REPLY
            assert reply[P.REASON] == Reason.NONE
            self.news["answered"].append(self.label(owner, reply[P.NUMBER]))
            if reply[P.NUMBER] in self.open[owner]:  # a reply that was told before is dropped
                self.open[owner].remove(reply[P.NUMBER])
                self.answered[owner].append(reply[P.NUMBER])
                self.unreleased[owner][reply[P.NUMBER]] = reply[P.BLOCK]

    def answer(self) -> None:
        """The worker takes what came and executes its first batch."""
        self.take()
        if not self.todo:
            return
        batch = self.todo[0][B.BATCH]
        self.worker.begin(batch)
        for item in [item for item in self.todo if item[B.BATCH] == batch]:
            self.todo.remove(item)
            self.executed.append(item[B.KEY])
            self.blocks.add(output_block(item))
            answer(self.worker, item)

    def take(self) -> None:
        for record in self.worker.received():
            if record[0] == FREE:
                self.free(record[B.BLOCK])
                continue
            if record[B.FREED]:
                self.free(record[B.FREED])
            owner, number = divmod(record[B.KEY], 1 << NUMBER_BITS)
            self.news["given"].append(self.label(owner, number))
            assert record[B.BATCH] in (self.batch, self.batch + 1)
            self.batch = record[B.BATCH]
            self.todo.append(record)

    def repeat(self) -> None:
        """The client sends its last request once more, though it may have been answered."""
        ask(self.clients[CLIENT], self.number[CLIENT])

    def answer_one(self) -> None:
        """The worker answers one request of its first batch in a block of its own, as a decoupled model does."""
        if (item := self.take_one()) is not None:
            self.executed.append(item[B.KEY])
            owner, number = divmod(item[B.KEY], 1 << NUMBER_BITS)
            block = pack_ref(WORKER, ONE_BY_ONE * (owner - CLIENT + 1) + number, 1)
            self.blocks.add(block)
            answer(self.worker, item, block)

    def give_back(self) -> None:
        """The worker gives one request of its first batch back."""
        if (item := self.take_one()) is not None:
            self.worker.send(RESCHEDULE, item[B.KEY], item[B.BATCH])

    def take_one(self) -> tuple[int, ...] | None:
        self.take()
        if not self.todo:
            return None
        self.worker.begin(self.todo[0][B.BATCH])
        return self.todo.pop(0)

    def free(self, block: int) -> None:
        assert all(block not in unreleased.values() for unreleased in self.unreleased.values())
        self.blocks.discard(block)
        self.news["freed"].append(str(block >> GENERATION_BITS & (1 << UNIT_BITS) - 1))

    def serve(self) -> None:
        self.ask()
        self.step()
        self.answer()
        self.step()

    def release(self) -> None:
        for owner, unreleased in self.unreleased.items():
            for number in unreleased:
                self.clients[owner].send(RELEASE, number)
            unreleased.clear()

    def succeed(self) -> None:
        self.replace()
        self.send_message()
        self.resume()

    def succeed_unread(self) -> None:
        """The client goes on before it has heard of the new batcher."""
        self.replace()
        self.ask()
        self.collect()
        self.release()
        self.send_message()
        self.resume()

    def succeed_uninformed(self) -> None:
        """The worker is executing, and tells later."""
        self.replace()
        self.resume()

    def replace(self) -> None:
        """A new batcher has mapped what the dead one left, and serves nobody yet."""
        self.star.succeed(self.late)

    def send_message(self) -> None:
        for block in self.blocks:
            self.worker.send(HAVE, 0, 0, 0, block)
        self.star.exchange.succession.expect_worker(WORKER)

    def resume(self) -> None:
        self.send_again(CLIENT)
        self.now_ns += 10
        self.star.exchange.resume(self.now_ns)

    def send_again(self, owner: int = CLIENT) -> None:
        """A client sends again what it holds and what is open, as `Port.resubmit` does."""
        self.collect(owner)
        is_first = 1
        for number, block in self.unreleased[owner].items():
            self.clients[owner].send(HOLD, number, is_first, block)
            is_first = 0
        for number in sorted(self.open[owner]):
            ask(self.clients[owner], number)


BATCHING = {"name": "m", "max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": 0}}
