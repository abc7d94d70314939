"""Block references raced by real processes: what opens is what was meant, whatever the owner does meanwhile."""

import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, Geometry
from shoal.shm.ring import RingReader
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import SlabView

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60  # of what takes seconds; a race that stands still takes for ever
NUM_BLOCKS = 150_000

pytestmark = pytest.mark.stress


def look(view: SlabView, ref: int, word: int, nbytes: int) -> str:
    """Open a block, copy it, open it again: only where the second look succeeds must the copy be whole."""
    opened = view.open(ref)
    if opened is None:
        return "stale"
    assert len(opened) == nbytes
    copied = bytes(opened)
    if view.open(ref) is None:
        return "freed meanwhile"
    assert copied == word.to_bytes(8, "little") * (nbytes // 8), f"block {ref:#x} is not what it was said to be"
    return "whole"


def race(num_blocks: int, seed: int) -> Counter[str]:
    """Read what an owner tells until its last record; how often each look ended how."""
    owner_fd = segment.create(CLIENT, 5, Geometry(64, 16 * 4096), sealed=True)
    link_fd = segment.create(LINK, 1, Geometry(0, 0), sealed=False)
    owner_view = SegmentView.attach(segment.read_only(owner_fd))
    link_view_fd = segment.read_only(link_fd)
    data, space = Doorbell.create(), Doorbell.create()
    fds = [owner_fd, link_view_fd, data.fd, space.fd]
    command = [sys.executable, "-m", "tests.stress.slab_owner", *map(str, fds), str(num_blocks), str(seed)]
    ends: Counter[str] = Counter()
    with subprocess.Popen(command, cwd=ROOT, pass_fds=fds) as owner:
        try:
            reader, view, expected = RingReader(Segment.attach(link_fd), owner_view), SlabView(owner_view), 1
            while expected <= num_blocks + 1:
                assert select.select([data], [], [], DEADLINE_S)[0], f"the owner says nothing after {expected - 1}"
                data.clear()
                for number, ref, word, nbytes, *_ in reader.drain():
                    assert number == expected % (num_blocks + 1)
                    expected += 1
                    if number:
                        ends[look(view, ref, word, nbytes)] += 1
                space.ring()
            assert owner.wait(DEADLINE_S) == 0
        finally:
            owner.kill()
    for fd in (owner_fd, link_view_fd):
        os.close(fd)
    data.close()
    space.close()
    return ends


def test_a_reference_opens_as_its_own_block_or_as_none(seed: int, num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    ends = race(NUM_BLOCKS, seed)
    assert ends.total() == NUM_BLOCKS
    assert ends["whole"] > 1000
    assert ends["stale"] > 1000
    assert num_descriptors() == before
