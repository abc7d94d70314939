"""Two clients, one of which may take its time to hear of a batcher, a worker, and batchers that die.

What a test of late clients has them do, one step after the other; as takeover_play.py, which has one client.
"""

from collections.abc import Collection

from shoal.reasons import Reason
from shoal.shm.layout import FREE, HAVE, HOLD, NUMBER_BITS, RELEASE, REPLY, RESCHEDULE, B, P, pack_ref
from tests.batcher.star import CLIENT, MODEL, WORKER, End, Star, ask
from tests.batcher.takeover_play import ONE_BY_ONE, answer, dying, output_block

LATE = CLIENT + 1


def star_of_two(config: dict[str, object], *, may_run_again: bool = False) -> tuple[Star, End, End, End]:
    """A star with a client, another one that will be late, and a worker."""
    star = Star()
    model = star.add_model(MODEL, config, may_run_again=may_run_again)
    return star, star.add_client(CLIENT), star.add_client(LATE), star.add_worker(WORKER, model)


class Play:
    """Two clients and one worker that keep their side of the protocol, and batchers that die."""

    def __init__(self, config: dict[str, object]) -> None:
        self.star, client, late, self.worker = star_of_two(config)
        self.clients = {CLIENT: client, LATE: late}
        self.now_ns = 1_000
        self.number = dict.fromkeys(self.clients, 0)
        self.open: dict[int, set[int]] = {owner: set() for owner in self.clients}
        self.unreleased: dict[int, dict[int, int]] = {owner: {} for owner in self.clients}
        self.answered: dict[int, list[int]] = {owner: [] for owner in self.clients}
        self.is_late = False
        self.has_said = False  # the late one, to the batcher of now, which does not know yet
        self.todo: list[tuple[int, ...]] = []
        self.executed: list[int] = []
        self.blocks: set[int] = set()  # of the worker's, taken

    def perform(self, step: str) -> None:
        """One step, named after its method; `die_3` is a death at the third thing that a step of the batcher shows."""
        name, _, number = step.partition("_")
        if name == "die":
            self.now_ns += 10
            with dying(int(number)):
                self.star.exchange.step(self.now_ns)
            self.succeed()
        else:
            getattr(self, step)()

    def end(self) -> None:
        """Nothing more is asked, and everybody does what is left to do."""
        self.hear()
        for _ in range(2 * sum(self.number.values()) + 3):
            self.step()
            self.answer()
        self.tell()
        self.step()
        self.release()
        self.step()
        self.answer()  # takes back what was freed

    def ask(self, owner: int = CLIENT) -> None:
        if self.number[owner] < 6:
            self.number[owner] += 1
            self.open[owner].add(self.number[owner])
            ask(self.clients[owner], self.number[owner])

    def ask_late(self) -> None:
        self.ask(LATE)

    def step(self) -> None:
        self.step_unread()
        self.collect(self.clients)

    def step_unread(self) -> None:
        """The clients collect no reply."""
        self.now_ns += 10
        self.star.exchange.step(self.now_ns)

    def collect(self, owners: Collection[int]) -> None:
        for owner in owners:
            for reply in self.clients[owner].heard():
                assert reply[0] == REPLY
                assert reply[P.REASON] == Reason.NONE
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
        for record in self.worker.heard():
            if record[0] == FREE:
                self.free(record[B.BLOCK])
            else:
                self.free(record[B.FREED])
                self.todo.append(record)

    def answer_one(self) -> None:
        """The worker answers one request of its first batch, in a block of its own."""
        if (item := self.take_one()) is not None:
            self.executed.append(item[B.KEY])
            owner, number = divmod(item[B.KEY], 1 << NUMBER_BITS)
            block = pack_ref(WORKER, ONE_BY_ONE * (owner - CLIENT + 1) + number, 1)
            self.blocks.add(block)
            answer(self.worker, item, block)

    def give_back(self) -> None:
        """The worker gives one request of its first batch back."""
        if (item := self.take_one()) is not None:
            self.worker.say(RESCHEDULE, item[B.KEY], item[B.BATCH])

    def take_one(self) -> tuple[int, ...] | None:
        self.take()
        if not self.todo:
            return None
        self.worker.begin(self.todo[0][B.BATCH])
        return self.todo.pop(0)

    def free(self, block: int) -> None:
        assert all(block not in unreleased.values() for unreleased in self.unreleased.values())
        self.blocks.discard(block)

    def release(self) -> None:
        for owner, unreleased in self.unreleased.items():
            for number in unreleased:
                self.clients[owner].say(RELEASE, number)
            unreleased.clear()

    def succeed(self) -> None:
        self.star.succeed(late=[LATE])
        self.is_late, self.has_said = True, False
        self.tell()
        self.resume()

    def succeed_untold(self) -> None:
        """The worker is executing, and tells later."""
        self.star.succeed(late=[LATE])
        self.is_late, self.has_said = True, False
        self.resume()

    def tell(self) -> None:
        for block in self.blocks:
            self.worker.say(HAVE, 0, 0, 0, block)
        self.star.exchange.succession.expect_worker(WORKER)

    def resume(self) -> None:
        self.say_again(CLIENT)
        self.now_ns += 10
        self.star.exchange.resume(self.now_ns)

    def hear(self) -> None:
        """The late client reads at last."""
        if self.is_late:
            self.say()
            self.is_late = False
            self.now_ns += 10
            self.star.exchange.succession.hear_late(LATE, self.now_ns)

    def say(self) -> None:
        """The late client says what is open and what it holds; the batcher reads it when it is told so."""
        if self.is_late and not self.has_said:
            self.has_said = True
            self.say_again(LATE)

    def say_stale(self) -> None:
        """The late client says so to a dead batcher, as it believes; it will hear of the living one."""
        if self.is_late and not self.has_said:
            self.say_again(LATE)

    def say_again(self, owner: int) -> None:
        self.collect([owner])
        is_first = 1
        for number, block in self.unreleased[owner].items():
            self.clients[owner].say(HOLD, number, is_first, block)
            is_first = 0
        for number in sorted(self.open[owner]):
            ask(self.clients[owner], number)
