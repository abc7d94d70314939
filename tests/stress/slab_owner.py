"""A slab's owner in a process of its own, run by test_slab.py: `python -m tests.stress.slab_owner FD… BLOCKS SEED`.

Allocates blocks of changing sizes, fills each with a word of its own, tells of it through the ring and frees it a
little later, without asking: whoever opens the reference late must find out by himself.
"""

import random
import select
import sys

from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import record
from shoal.shm.ring import RingFullError, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab
from tests.stress.ring_end import SCATTER

DEADLINE_S = 20


def tell(writer: RingWriter, words: tuple[int, ...], data: Doorbell, space: Doorbell) -> None:
    """One record, visible and rung for; waits where the ring is full."""
    while True:
        try:
            writer.push(words)
            break
        except RingFullError:
            if not select.select([space], [], [], DEADLINE_S)[0]:
                sys.exit(f"nobody read for {DEADLINE_S} s")
            space.clear()
    writer.publish()
    data.ring()


def main() -> None:
    own_fd, peer_fd, data_fd, space_fd, num_blocks, seed = map(int, sys.argv[1:])
    random.seed(seed)
    own, data, space = Segment.attach(own_fd), Doorbell(data_fd), Doorbell(space_fd)
    slab, writer = Slab(own), RingWriter(own, SegmentView.attach(peer_fd))
    live: list[Block] = []
    for number in range(1, num_blocks + 1):
        while (block := slab.allocate(random.randint(1, 4 * 4096))) is None:
            slab.free(live.pop(0).ref)
        word = number * SCATTER & 0xFFFFFFFFFFFFFFFF
        block.memory[:] = word.to_bytes(8, "little") * (len(block.memory) // 8)
        live.append(block)
        tell(writer, record(number, block.ref, word, len(block.memory)), data, space)
        while len(live) > random.randint(0, 12):
            slab.free(live.pop(random.randrange(len(live))).ref)
    tell(writer, record(0), data, space)
    for block in live:
        slab.free(block.ref)
    whole = [slab.allocate(slab.largest_nbytes), slab.allocate(1)]
    sys.exit("blocks are lost" if whole[0] is None or whole[1] is not None else 0)


if __name__ == "__main__":
    main()
