"""A port with real rings around it; the test plays the batcher at their other end, and a worker's slab."""

import select
from collections.abc import Callable

from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, WORKER, Geometry
from shoal.shm.port import Port
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab
from tests.submitted import Submitted

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
ZEROS = (0,) * 16


class Star:
    """A port (client 5), the batcher's ends of its two rings, and the slab of worker 9."""

    def __init__(
        self,
        make: MakePair,
        bell: Doorbell,
        *,
        max_in_flight: int = 2,
        num_records: int = 8,
        num_blocks: int = 4,
        num_small: int = 0,
    ) -> None:
        client, client_view = make(CLIENT, 5, Geometry(num_records, 4 * 4096, num_small))
        self.segment = client
        link, link_view = make(LINK, 1, Geometry(8, 0))
        worker, self.worker_view = make(WORKER, 9, Geometry(0, num_blocks * 4096))
        self.bell = bell
        self.port = Port(client, link_view, bell, max_in_flight)
        self.port.add_segment(9, self.worker_view)
        self.requests = RingReader(link, client_view)
        self.replies = RingWriter(link, client_view)
        self.worker_slab = Slab(worker)

    def seen(self) -> list[tuple[int, ...]]:
        """What the batcher finds in the client's ring now."""
        return list(self.requests.drain())

    def submit(self) -> tuple[int, Block]:
        block = self.port.allocate(100)
        request = Submitted(3, shape_key=99)
        return self.port.submit(request, request, block, 40 << 32 | 7, 1_000), block

    def reply(self, *words: int) -> None:
        self.replies.push((words + ZEROS)[:16])
        self.replies.publish()

    def is_rung(self) -> bool:
        return select.select([self.bell], [], [], 0)[0] == [self.bell]
