"""A star in one process: real segments, rings and doorbells; the test plays clients and workers by hand."""

from collections.abc import Collection, Sequence
from typing import Any

from shoal.batcher.ensemble import Ensemble
from shoal.batcher.exchange import Exchange
from shoal.batcher.peers import NO_SIGNATURE, ClientPeer, ScheduledModel, WorkerPeer
from shoal.batcher.response_order import keeps_order
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from shoal.messages.message import Message
from shoal.model_config.rate_limiter import Demand, Resource
from shoal.model_config.signature import Signature
from shoal.shm import counters, layout, segment
from shoal.shm.counters import CELL, CounterTable, CounterTableView, Row
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import DONE, PROGRESS_WORD, B, Geometry, P, pack_ref
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from tests.batcher.last_store import watched

GEOMETRY = Geometry(ring_capacity=64, slab_nbytes=16 * layout.UNIT)
WALL_OFFSET_NS = 1_000_000_000_000
MODEL, CLIENT, WORKER = 5, 21, 31
BATCHER = 91
INPUT_BLOCK, HEADER = layout.pack_ref(CLIENT, 3, 1), 64 << 32 | 40
SINGLE = {"name": "m", "max_batch_size": 0}


def make_segment(kind: int, owner: int, geometry: Geometry = GEOMETRY) -> tuple[Segment, SegmentView]:
    """The owner's mapping and a peer's."""
    fd = segment.create(kind, owner, geometry, sealed=True)
    view = SegmentView.attach(segment.read_only(fd))
    return Segment.attach(fd), view


class End:
    """A client's or a worker's side of its link, as the test plays it."""

    def __init__(
        self, kind: int, owner: int, geometry: Geometry = GEOMETRY, link_geometry: Geometry = GEOMETRY
    ) -> None:
        self.owner = owner
        self.own, own_view = make_segment(kind, owner, geometry)
        link, link_view = make_segment(layout.LINK, owner, link_geometry)
        link.words = watched(link.words)
        self.writer = RingWriter(self.own, link_view)
        self.reader = RingReader(self.own, link_view)
        self.bell = Doorbell.create()
        self.link, self.own_view, self.link_view = link, own_view, link_view

    def send(self, *words: int) -> None:
        """Push one record and publish it."""
        self.writer.push(layout.record(*words))
        self.writer.publish()

    def received(self) -> list[tuple[int, ...]]:
        """All records that came."""
        return list(self.reader.drain())

    def begin(self, batch: int) -> None:
        """Say, as a worker does, that it begins to execute a batch."""
        self.own.words[PROGRESS_WORD] = batch


class Star:
    """An exchange with whatever the test adds; `is_limited`: as under --rate-limit=execution_count."""

    def __init__(self, *, is_limited: bool = False, poison_refusal_ns: int = 0) -> None:
        self._limiter = RateLimiter() if is_limited else None
        self._poison_refusal_ns = poison_refusal_ns
        self.exchange = Exchange(WALL_OFFSET_NS, 1000, self._limiter, 0, poison_refusal_ns)
        table, table_view = make_segment(layout.COUNTERS, 1000, counters.GEOMETRY)
        self._table = CounterTable(table)
        self._table_view = CounterTableView(table_view)
        self.batcher_owner = BATCHER
        # What a successor is told of, too.
        self._models: dict[int, tuple[dict[str, Any], bool]] = {}
        self._clients: list[End] = []
        self._guests: set[int] = set()
        self._front_ends = set[int]()
        self._workers: list[tuple[End, int]] = []

    def add_model(
        self, model_id: int, config: dict[str, Any], max_queue: int = 100, *, may_run_again: bool = False
    ) -> ScheduledModel:
        """A model version without instances."""
        model = self._model(model_id, config, self._table.row(model_id), max_queue, may_run_again=may_run_again)
        self.exchange.models[model_id] = model
        self._models[model_id] = config, may_run_again
        return model

    def _model(
        self, model_id: int, config: dict[str, Any], row: Row, max_queue: int, *, may_run_again: bool
    ) -> ScheduledModel:
        scheduler = from_config(config, max_queue)
        if self._limiter is not None:
            scheduler = RateLimitedScheduler(scheduler, self._limiter)
        return ScheduledModel(
            model_id,
            scheduler,
            row,
            may_run_again=may_run_again,
            keeps_order=keeps_order(config),
            signature=Signature.from_config(config) if "input" in config else NO_SIGNATURE,
            version=1,
        )

    def add_ensemble(
        self,
        model_id: int,
        config: dict[str, Any],
        models: Sequence[int],
        decoupled: Sequence[int] = (),
        *,
        may_run_again: bool = False,
    ) -> Ensemble:
        """An ensemble of models that are there; the first one brings memory of the batcher's own."""
        if self.exchange.blocks.own is None:
            own, self.batcher_view = make_segment(layout.BATCHER, self.batcher_owner, Geometry(0, 16 * layout.UNIT))
            self.exchange.ensembles.connect(own)
        row = self._table.row(model_id)
        ensemble = Ensemble(
            model_id, config, row, version=1, models=models, may_run_again=may_run_again, decoupled=decoupled
        )
        self.exchange.add_ensemble(ensemble)
        return ensemble

    def add_client(
        self,
        owner: int,
        *,
        is_guest: bool = False,
        is_front_end: bool = False,
        geometry: Geometry = GEOMETRY,
        link_geometry: Geometry = GEOMETRY,
    ) -> End:
        """A client."""
        end = End(layout.CLIENT, owner, geometry, link_geometry)
        self.exchange.clients[owner] = ClientPeer(
            owner, end.link, end.own_view, end.bell, is_guest=is_guest, is_front_end=is_front_end
        )
        if is_guest:
            self._guests.add(owner)
        if is_front_end:
            self._front_ends.add(owner)
        self._clients.append(end)
        return end

    def drop_client(self, owner: int) -> None:
        """A client that is gone; no successor hears of it."""
        self._clients = [end for end in self._clients if end.owner != owner]

    def add_worker(self, owner: int, model: ScheduledModel, geometry: Geometry = GEOMETRY) -> End:
        """A ready worker."""
        end = End(layout.WORKER, owner, geometry)
        if self._limiter is not None:
            self._limiter.add(owner, Demand(resources=((Resource("SLOT", 0), 1),)))
        self.exchange.add_worker(WorkerPeer(owner, end.link, end.own_view, end.bell, model))
        self._workers.append((end, model.id))
        return end

    def remove_worker(self, owner: int, now_ns: int, *, is_repeated: bool = False) -> None:
        """A worker dies; no successor hears of it. `is_repeated`: a dead batcher was told so, too."""
        self._workers = [(end, model_id) for end, model_id in self._workers if end.owner != owner]
        if is_repeated:
            self.exchange.succession.expect_repeated_death(owner)
        self.exchange.remove_worker(owner, now_ns)

    def reports(self) -> list[Message]:
        """What the supervisor is told, once."""
        reports = list(self.exchange.reports)
        self.exchange.reports.clear()
        return reports

    def figures(self, model_id: int) -> dict[str, int]:
        """What readers of the counters see of a model."""
        return self._table_view.read(model_id).cells

    def first_responses(self, model_id: int) -> Sequence[int]:
        """What readers of the counters see of a model's first responses."""
        return self._table_view.read(model_id).first_response

    def succeed(self, late: Collection[int] = ()) -> None:
        """The batcher is dead. Another one is told of everybody; it serves after `exchange.resume`, those clients that
        are late after `succession.receive_late`."""
        self.exchange = Exchange(WALL_OFFSET_NS, 1000, None, 0, self._poison_refusal_ns)
        self.batcher_owner += 1
        for model_id, (config, may_run_again) in self._models.items():
            row = self._table.row(model_id, is_restored=True)
            model = self._model(model_id, config, row, 100, may_run_again=may_run_again)
            self.exchange.models[model_id] = model
        for end in self._clients:
            client = ClientPeer(
                end.owner,
                end.link,
                end.own_view,
                end.bell,
                is_guest=end.owner in self._guests,
                is_front_end=end.owner in self._front_ends,
            )
            client.reader.skip()
            if end.owner in late:
                self.exchange.succession.add_late(client)
            else:
                self.exchange.clients[end.owner] = client
        for end, model_id in self._workers:
            worker = WorkerPeer(end.owner, end.link, end.own_view, end.bell, self.exchange.models[model_id])
            worker.take_over()
            self.exchange.add_worker(worker)

    def model(self, model_id: int) -> ScheduledModel:
        """A model as the batcher of now has it."""
        return self.exchange.models[model_id]

    def batch_statistics(self, model_id: int) -> list[tuple[int, ...]]:
        """What readers of the counters see of a model's batches."""
        return [tuple(batch) for batch in self._table_view.read(model_id).batches]


def cell(model: ScheduledModel, name: str) -> int:
    """One figure of a model's statistics."""
    return model.row.cells[CELL[name]]


def one_of_each(config: dict[str, Any], *, may_run_again: bool = False) -> tuple[Star, End, End]:
    """A star with one model, one client and one worker."""
    star = Star()
    model = star.add_model(MODEL, config, may_run_again=may_run_again)
    return star, star.add_client(CLIENT), star.add_worker(WORKER, model)


def ask(client: End, *numbers: int, start_ns: int = 100) -> None:
    """Requests of one row each."""
    for number in numbers:
        client.send(layout.REQUEST, number, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, start_ns)


BATCHING = {
    "name": "m",
    "max_batch_size": 4,
    "dynamic_batching": {
        "preferred_batch_size": [4],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
    },
}


OUTPUT_BLOCK = pack_ref(WORKER, 2, 1)


def answer(worker: End, item: tuple[int, ...], status: int = 0, block: int = OUTPUT_BLOCK) -> None:
    worker.send(DONE, item[B.KEY], item[B.BATCH], status, block, HEADER, 1_000, 1_010, 1_110, 1_115)


def replies(client: End) -> list[tuple[int, int]]:
    """(number, reason) of the replies that have come to a client."""
    return [(reply[P.NUMBER], reply[P.REASON]) for reply in client.received()]
