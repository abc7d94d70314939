"""A traced request and the calls that are made for it, in memory, beside a real exchange."""

from typing import Any

from shoal.shm.layout import CHILD_REQUEST, DONE, REQUEST, TRACE, B, Geometry, pack_ref
from tests.batcher.star import GEOMETRY, HEADER, INPUT_BLOCK, MODEL, SINGLE, WORKER, End, Star

FRONT_END, CALLER, OTHER, SECOND, THIRD = 21, 22, 6, 32, 33


class Calls(Star):
    """A front end asks the model, whose worker asks the other one."""

    def __init__(
        self,
        config: dict[str, Any] = SINGLE,
        *,
        asked_by_front_end: bool = True,
        max_queue: int = 100,
        link_geometry: Geometry = GEOMETRY,
    ) -> None:
        super().__init__()
        model, other = self.add_model(MODEL, config), self.add_model(OTHER, SINGLE, max_queue)
        self.front_end = self.add_client(
            FRONT_END, is_front_end=asked_by_front_end, is_guest=not asked_by_front_end, link_geometry=link_geometry
        )
        self.caller = self.add_client(CALLER)
        self.worker, self.second = self.add_worker(WORKER, model), self.add_worker(SECOND, other)

    def ask(self, number: int = 1, *, traced: bool = True) -> tuple[int, ...]:
        """A request of the front end's; what its worker is given."""
        self.send(number, traced=traced)
        (item,) = self.worker.received()
        return item

    def send(self, number: int, *, traced: bool = True) -> None:
        """A request of the front end's."""
        self.front_end.send(REQUEST, number, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, 100)
        if traced:
            self.front_end.send(TRACE, number)
        self.exchange.step(200)

    def call(self, parent: int, number: int = 1, start_ns: int = 300, model: int = OTHER) -> None:
        """The worker asks the other model."""
        self.caller.send(CHILD_REQUEST, *self.called(number, start_ns, model), parent)
        self.exchange.step(400)

    def called(self, number: int = 1, start_ns: int = 300, model: int = OTHER) -> tuple[int, ...]:
        """The words of a call, but for its kind and its parent."""
        return number, model, pack_ref(CALLER, 1, 1), HEADER, 1, 0, 0, 0, 0, 0, start_ns

    def answer(self, worker: End, item: tuple[int, ...], now_ns: int = 3_000) -> None:
        worker.send(
            DONE, item[B.KEY], item[B.BATCH], 0, pack_ref(worker.owner, 2, 1), HEADER, 1_000, 1_010, 1_110, 1_115
        )
        self.exchange.step(now_ns)

    def call_and_answer(self, parent: int, number: int = 1) -> None:
        self.call(parent, number)
        (called,) = self.second.received()
        self.answer(self.second, called)
        self.caller.received()

    @property
    def is_traced(self) -> bool:
        """Whether anything is kept of a trace."""
        return any(client.traced for client in self.exchange.clients.values())
