"""A batcher in a process of its own, and the test in the place of everyone else."""

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.batcher.batcher import Batcher
from shoal.control import Channel
from shoal.messages.message import Message
from shoal.messages.shared import Acknowledged
from shoal.messages.to_batcher import BatcherActivated, ClientJoined, ModelAdded, WorkerJoined, WorkerReady
from shoal.shm import counters, layout, segment
from shoal.shm.counters import CounterTableView
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, COUNTERS, DONE, LINK, REQUEST, WORKER, B
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from tests.batcher.star import GEOMETRY
from tests.messages import receive

MODEL, FRONT_END, FIRST, SECOND = 5, 21, 31, 32
CONFIG = {"backend": "identity", "input": [], "output": [], "instance_group": [], "name": "m", "max_batch_size": 0}


class Supervisor:
    """The supervisor's end, and what it hears."""

    def __init__(self, channel: Channel, bell: Doorbell, counters: CounterTableView) -> None:
        self.channel = channel
        self.bell = bell
        self.counters = counters

    def send_message(self, message: Message) -> None:
        """Say something, and wait until it is in force. What the batcher says before it acknowledges fails the test."""
        self.channel.send(message, 7)
        assert self.receive() == Acknowledged(7)

    def receive(self) -> Any:
        """The next message; TimeoutError where none comes within 10 s."""
        return receive(self.channel)[0]

    def add(self, kind: int, owner: int) -> "End":
        """Introduce a client or a worker."""
        own = segment.create(kind, owner, GEOMETRY, sealed=True)
        link = segment.create(LINK, owner, GEOMETRY, sealed=False)
        views = segment.read_only(own), segment.read_only(link)
        bell, batcher_bell = Doorbell.create(), Doorbell.create()
        if kind == CLIENT:
            self.send_message(ClientJoined(owner, views[0], link, bell.fd, batcher_bell.fd))
        else:
            self.send_message(WorkerJoined(owner, MODEL, None, views[0], link, bell.fd, batcher_bell.fd))
        os.close(views[0])
        os.close(link)
        return End(Segment.attach(own), SegmentView.attach(views[1]), bell, batcher_bell)

    def add_worker(self, owner: int) -> "End":
        """Introduce a worker to which batches may go."""
        worker = self.add(WORKER, owner)
        self.send_message(WorkerReady(owner))
        return worker


class End:
    """A client's or a worker's own side of its link."""

    def __init__(self, own: Segment, link: SegmentView, bell: Doorbell, batcher_bell: Doorbell) -> None:
        self.writer, self.reader = RingWriter(own, link), RingReader(own, link)
        self.bell, self._batcher_bell = bell, batcher_bell

    def send(self, *words: int) -> None:
        self.writer.push(layout.record(*words))
        self.writer.publish()
        self._batcher_bell.ring()

    def receive(self) -> tuple[int, ...]:
        """The next record, once the bell rings."""
        assert select.select([self.bell], [], [], 10)[0]
        self.bell.clear()
        (record,) = self.reader.drain()
        return record


@contextmanager
def batching(*, is_successor: bool = False) -> Iterator[Supervisor]:
    """A batcher that knows a model; it ends by itself when its supervisor hangs up."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    bell = Doorbell.create()
    table = segment.create(COUNTERS, 1, counters.GEOMETRY, sealed=False)
    view = CounterTableView(SegmentView.attach(os.dup(table)))
    settings = BatcherActivated(
        log={}, max_queue_size=100, max_in_flight=100, deadline_ns=0, counts_first_responses=False, cache_bytes=0,
        redis=None, is_successor=is_successor, rate_limits=None, latency_target_ms=0, spin_ns=0, poison_refusal_ns=0,
        bell=os.dup(bell.fd), counters=table,
    )  # fmt: skip
    batcher = Batcher(Channel(theirs), settings)

    def run() -> None:
        with pytest.raises(EOFError):
            batcher.run()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        supervisor = Supervisor(Channel(ours), bell, view)
        supervisor.send_message(
            ModelAdded(model_id=MODEL, row=0, version=1, config=CONFIG, groups=[], may_run_again=True, revision="")
        )
        yield supervisor
    finally:
        ours.close()
        thread.join(10)
        theirs.close()


def ask(client: End, number: int) -> None:
    client.send(REQUEST, number, MODEL, layout.pack_ref(FRONT_END, 3, 1), 64 << 32 | 40, 1)


def answer(worker: End, item: tuple[int, ...]) -> None:
    worker.send(DONE, item[B.KEY], item[B.BATCH])
