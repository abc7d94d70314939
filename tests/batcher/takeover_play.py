"""A client, a worker and batchers that die: what a test of takeovers has them do, one step after the other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from shoal.batcher.peers import Model
from shoal.shm.layout import DONE, FREE, HAVE, HOLD, NUMBER_BITS, RELEASE, REPLY, RESCHEDULE, B, P, pack_ref
from shoal.shm.ring import RingReader, RingWriter
from tests.batcher.star import CLIENT, HEADER, MODEL, WORKER, End, Star, ask

NUMBER_MASK = (1 << NUMBER_BITS) - 1
#: The first of the blocks in which a request is answered by itself.
ONE_BY_ONE = 1000


class DiedError(Exception):
    """The batcher is dead."""


@contextmanager
def dying(number: int) -> Iterator[None]:
    """The batcher dies right after its store of this number that others can see, if it comes to that."""
    left = [number]

    def watched(store: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            result = store(*args)
            left[0] -= 1
            if not left[0]:
                raise DiedError
            return result

        return call

    with ExitStack() as undo:
        for owner, name in ((RingWriter, "publish"), (RingWriter, "mark"), (RingReader, "acknowledge")):
            undo.enter_context(patch.object(owner, name, watched(getattr(owner, name))))
        try:
            yield
        except DiedError:
            return


def output_block(item: tuple[int, ...]) -> int:
    """Where the outputs of a request's batch lie."""
    return pack_ref(WORKER, item[B.BATCH], 1)


def answer(worker: End, item: tuple[int, ...], block: int = 0) -> None:
    """Answer a request; the outputs of its batch lie in one block, if this is not another one."""
    ref = block or output_block(item)
    worker.say(DONE, item[B.KEY], item[B.BATCH], 0, ref, HEADER, 1_000, 1_010, 1_110, 1_115)


class Play:
    """One client and one worker that keep their side of the protocol, and batchers that die."""

    def __init__(self, config: dict[str, object]) -> None:
        self.star = Star()
        model: Model = self.star.add_model(MODEL, config)
        self.client, self.worker = self.star.add_client(CLIENT), self.star.add_worker(WORKER, model)
        self.number = 0
        self.now_ns = 1_000
        self.open: set[int] = set()
        self.unreleased: dict[int, int] = {}
        self.answered: list[int] = []
        self.todo: list[tuple[int, ...]] = []
        self.executed: list[int] = []
        self.blocks: set[int] = set()  # of the worker's, taken

    def perform(self, step: str) -> None:
        """One step, named after its method; `die_3` is a death at the third thing that a step of the batcher shows."""
        name, _, number = step.partition("_")
        if name == "die":
            self.die(int(number))
        else:
            getattr(self, step)()

    def end(self) -> None:
        """Nothing more is asked, and everybody does what is left to do."""
        for _ in range(2 * self.number + 3):
            self.step()
            self.answer()
        self.tell()
        self.step()
        self.release()
        self.step()
        self.answer()  # takes back what was freed

    def die(self, number: int) -> None:
        """The batcher dies in the middle of a step."""
        self.now_ns += 10
        with dying(number):
            self.star.exchange.step(self.now_ns)
        self.succeed()

    def ask(self) -> None:
        if self.number < 12:
            self.number += 1
            self.open.add(self.number)
            ask(self.client, self.number)

    def step(self) -> None:
        self.now_ns += 10
        self.star.exchange.step(self.now_ns)
        self.collect()

    def collect(self) -> None:
        for reply in self.client.heard():
            assert reply[0] == REPLY
            if reply[P.NUMBER] in self.open:  # a reply that was told before is dropped
                self.open.remove(reply[P.NUMBER])
                self.answered.append(reply[P.NUMBER])
                self.unreleased[reply[P.NUMBER]] = reply[P.BLOCK]

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
        """The worker answers one request of its first batch, as a decoupled model does."""
        if (item := self.take_one()) is not None:
            self.executed.append(item[B.KEY])
            block = pack_ref(WORKER, ONE_BY_ONE + (item[B.KEY] & NUMBER_MASK), 1)
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
        assert block not in self.unreleased.values()
        self.blocks.discard(block)

    def serve(self) -> None:
        self.ask()
        self.step()
        self.answer()
        self.step()

    def release(self) -> None:
        for number in list(self.unreleased):
            del self.unreleased[number]
            self.client.say(RELEASE, number)

    def succeed(self) -> None:
        self.star.succeed()
        self.tell()
        self.say_again()

    def succeed_unheard(self) -> None:
        """The client goes on before it has heard of the new batcher."""
        self.star.succeed()
        self.ask()
        self.collect()
        self.release()
        self.tell()
        self.say_again()

    def succeed_untold(self) -> None:
        """The worker is executing, and tells later."""
        self.star.succeed()
        self.say_again()

    def tell(self) -> None:
        for block in self.blocks:
            self.worker.say(HAVE, 0, 0, 0, block)
        self.star.exchange.succession.expect_worker(WORKER)

    def say_again(self) -> None:
        self.collect()
        for number, block in self.unreleased.items():
            self.client.say(HOLD, number, 0, block)
        for number in sorted(self.open):
            ask(self.client, number)
        self.now_ns += 10
        self.star.exchange.resume(self.now_ns)
