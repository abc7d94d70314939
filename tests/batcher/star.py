"""A star in one process: real segments, rings and doorbells; the test plays clients and workers by hand."""

from typing import Any

from shoal.batcher.exchange import Exchange
from shoal.batcher.peers import Client, Model, Worker
from shoal.batcher.scheduling.scheduler import from_config
from shoal.shm import counters, layout, segment
from shoal.shm.counters import CELL, CounterTable
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import PROGRESS_WORD, Geometry
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView

GEOMETRY = Geometry(ring_capacity=64, slab_nbytes=16 * layout.UNIT)
WALL_OFFSET_NS = 1_000_000_000_000


def make_segment(kind: int, owner: int, geometry: Geometry = GEOMETRY) -> tuple[Segment, SegmentView]:
    """The owner's mapping and a peer's."""
    fd = segment.create(kind, owner, 1, geometry, sealed=True)
    view = SegmentView.attach(segment.read_only(fd))
    return Segment.attach(fd), view


class End:
    """A client's or a worker's side of its link, as the test plays it."""

    def __init__(self, kind: int, owner: int) -> None:
        self.owner = owner
        self.own, own_view = make_segment(kind, owner)
        link, link_view = make_segment(layout.LINK, owner)
        self.writer = RingWriter(self.own, link_view)
        self.reader = RingReader(self.own, link_view)
        self.bell = Doorbell.create()
        self.link, self.own_view = link, own_view

    def say(self, *words: int) -> None:
        """Push one record and publish it."""
        self.writer.push(layout.record(*words))
        self.writer.publish()

    def heard(self) -> list[tuple[int, ...]]:
        """All records that came."""
        return list(self.reader.drain())

    def begin(self, batch: int) -> None:
        """Say, as a worker does, that it begins to execute a batch."""
        self.own.words[PROGRESS_WORD] = batch


class Star:
    """An exchange with whatever the test adds."""

    def __init__(self) -> None:
        self.exchange = Exchange(WALL_OFFSET_NS)
        table, _ = make_segment(layout.COUNTERS, 1000, counters.GEOMETRY)
        self._table = CounterTable(table)

    def add_model(
        self, model_id: int, config: dict[str, Any], max_queue: int = 100, *, may_run_again: bool = False
    ) -> Model:
        """A model version without instances."""
        row = self._table.row(model_id)
        model = Model(model_id, from_config(config, max_queue), row, may_run_again=may_run_again)
        self.exchange.models[model_id] = model
        return model

    def add_client(self, owner: int) -> End:
        """A client."""
        end = End(layout.CLIENT, owner)
        self.exchange.clients[owner] = Client(owner, end.link, end.own_view, end.bell)
        return end

    def add_worker(self, owner: int, model: Model) -> End:
        """A ready worker."""
        end = End(layout.WORKER, owner)
        self.exchange.add_worker(Worker(owner, end.link, end.own_view, end.bell, model))
        return end


def cell(model: Model, name: str) -> int:
    """One figure of a model's statistics."""
    return model.row.cells[CELL[name]]
