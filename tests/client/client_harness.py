"""A client of shared memory, and the test in the supervisor's and the batcher's place."""

import socket
import time
from typing import Any

from shoal.control import Channel
from shoal.datatypes import FP32
from shoal.request import InferResponse, TensorRef, pack_response
from shoal.shm import layout
from shoal.shm.doorbell import Doorbell
from shoal.shm.port import Port
from shoal.shm.shares import RECORDS_PER_REQUEST
from shoal.shm.slab import Slab
from shoal.star.client import StarClient
from shoal.star.models import ModelEntry, ModelTable
from shoal.star.outgoing import Input, OutgoingRequest, RawRequest, check
from shoal.star.place import Place
from tests.batcher.star import CLIENT, WORKER, Star

MODEL_ID = 7  # of make_entry
WAIT_S = 10.0
CONFIG = {"name": "m", "max_batch_size": 0}
#: The ring that a client of eight requests to one model has.
GEOMETRY = layout.Geometry(8 * RECORDS_PER_REQUEST, 16 * layout.UNIT)


class ClientHarness:
    """The client, a worker of the model, and the batcher between them."""

    def __init__(self, entry: ModelEntry) -> None:
        self.star = Star()
        self.model = self.star.add_model(MODEL_ID, CONFIG)
        self.end = self.star.add_client(CLIENT, geometry=GEOMETRY)
        self.worker = self.star.add_worker(WORKER, self.model)
        self.slab = Slab(self.worker.own)
        self.batcher_bell = Doorbell.create()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.detach()  # a client whose supervisor hangs up ends its process: it stays open
        self.port = Port(self.end.own, self.end.link_view, self.batcher_bell, 8)
        self.port.add_segment(WORKER, self.worker.own_view)
        self.client = StarClient(Place(self.port, self.end.bell, Channel(theirs), ModelTable(), WAIT_S, WAIT_S))
        self.client.start()
        self.entry = entry

    def crowd(self, num_free: int) -> None:
        """Fill the client's ring with what the batcher passes over, unseen by it."""
        while self.end.own.header.ring_capacity - self.port_unread() > num_free:
            self.port.trace(0)

    def port_unread(self) -> int:
        """Records in the client's ring that the batcher has not read."""
        return self.port._writer.num_unread

    def ask(self, array: Any, **lent: int) -> OutgoingRequest:
        return check(self.entry, RawRequest("", [Input("A", FP32, array.shape, array.data.cast("B"), **lent)], (), {}))

    def step(self) -> None:
        """The batcher looks at what there is."""
        self.star.exchange.step(time.monotonic_ns())

    def is_all_returned(self) -> bool:
        """Whether all answers are given back: the listening thread may still be releasing the last."""
        end = time.monotonic() + WAIT_S
        while self.star.exchange.holders.num_held and time.monotonic() < end:
            self.step()
        return not self.star.exchange.holders.num_held

    def batch(self) -> tuple[int, ...]:
        """The one request that the worker is given."""
        self.step()
        (item,) = self.worker.received()
        assert item[0] == layout.BATCH_ITEM
        return item

    def write(self, array: Any) -> tuple[int, int]:
        """A response in a block of the worker's: the block and where its header is."""
        header = pack_response(InferResponse((TensorRef("OUTA", FP32.wire, array.shape, 0, array.nbytes),), {}))
        block = self.slab.allocate(array.nbytes + len(header))
        assert block is not None
        block.memory[: array.nbytes] = array.data.cast("B")
        block.memory[array.nbytes : array.nbytes + len(header)] = header
        return block.ref, array.nbytes << 32 | len(header)

    def answer(self, item: tuple[int, ...], array: Any, kind: int = layout.DONE) -> int:
        ref, span = self.write(array)
        self.worker.send(kind, item[layout.B.KEY], item[layout.B.BATCH], 0, ref, span)
        self.step()
        return ref
