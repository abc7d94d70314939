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
from shoal.control import Channel, Message
from shoal.shm import counters, layout, segment
from shoal.shm.counters import CounterTable
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import COUNTERS, DONE, LINK, REQUEST, WORKER, B
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from tests.batcher.star import GEOMETRY

MODEL, FRONT_END, FIRST, SECOND = 5, 21, 31, 32
CONFIG = {"input": [], "output": [], "instance_group": [], "name": "m", "max_batch_size": 0}


class Supervisor:
    """The supervisor's end, and what it hears."""

    def __init__(self, channel: Channel, bell: Doorbell) -> None:
        self.channel = channel
        self.bell = bell

    def tell(self, message: dict[str, Any], *fds: int) -> None:
        """Say something, and wait until it is in force. What the batcher says before it acknowledges fails the test."""
        self.channel.send({**message, "seq": 7}, fds)
        assert self.hear() == {"op": "ack", "seq": 7}

    def hear(self) -> Message:
        """The next message; TimeoutError where none comes within 10 s."""
        return self.channel.receive()[0]

    def add(self, kind: int, owner: int, **message: Any) -> "End":
        """Introduce a client or a worker."""
        own = segment.create(kind, owner, 1, GEOMETRY, sealed=True)
        link = segment.create(LINK, owner, 1, GEOMETRY, sealed=False)
        views = segment.read_only(own), segment.read_only(link)
        bell, batcher_bell = Doorbell.create(), Doorbell.create()
        self.tell({**message, "owner": owner}, views[0], link, bell.fd, batcher_bell.fd)
        os.close(views[0])
        os.close(link)
        return End(Segment.attach(own), SegmentView.attach(views[1]), bell, batcher_bell)

    def add_worker(self, owner: int) -> "End":
        """Introduce a worker to which batches may go."""
        worker = self.add(WORKER, owner, op="worker", model=MODEL)
        self.tell({"op": "worker_ready", "owner": owner})
        return worker


class End:
    """A client's or a worker's own side of its link."""

    def __init__(self, own: Segment, link: SegmentView, bell: Doorbell, batcher_bell: Doorbell) -> None:
        self.writer, self.reader = RingWriter(own, link), RingReader(own, link)
        self.bell, self._batcher_bell = bell, batcher_bell

    def say(self, *words: int) -> None:
        self.writer.push(layout.record(*words))
        self.writer.publish()
        self._batcher_bell.ring()

    def hear(self) -> tuple[int, ...]:
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
    table = segment.create(COUNTERS, 1, 1, counters.GEOMETRY, sealed=False)
    figures = CounterTable(Segment.attach(table))
    batcher = Batcher(
        Channel(theirs), bell, figures, 100, 100, counts_first_responses=False, cache_bytes=0, is_successor=is_successor
    )

    def run() -> None:
        with pytest.raises(EOFError):
            batcher.run()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        supervisor = Supervisor(Channel(ours), bell)
        supervisor.tell(
            {
                "op": "model",
                "model": MODEL,
                "row": 0,
                "version": 1,
                "config": CONFIG,
                "groups": [],
                "may_run_again": True,
            }
        )
        yield supervisor
    finally:
        ours.close()
        thread.join(10)
        theirs.close()


def ask(client: End, number: int) -> None:
    client.say(REQUEST, number, MODEL, layout.pack_ref(FRONT_END, 3, 1), 64 << 32 | 40, 1)


def answer(worker: End, item: tuple[int, ...]) -> None:
    worker.say(DONE, item[B.KEY], item[B.BATCH])
