"""What the kernel says of a process: descriptors come and go, mappings of segments and of nothing else count."""

import gc
import mmap
import os

from shoal.ledger import descriptors, ledger_message, mapped_bytes
from shoal.shm import segment
from shoal.shm.layout import LINK, Geometry
from shoal.shm.segment import SegmentView


def test_descriptors_are_those_that_are_open() -> None:
    before = descriptors()
    ends = os.pipe()
    assert descriptors() == before + 2
    for fd in ends:
        os.close(fd)
    assert descriptors() == before


def test_segments_count_for_as_long_as_somebody_looks_at_them() -> None:
    gc.collect()
    before = mapped_bytes()
    views: list[SegmentView] = []
    for sealed in (False, True):  # a file of /dev/shm, a memfd
        fd = segment.create(LINK, 1, 1, Geometry(0, 5 * 4096), sealed=sealed)
        assert mapped_bytes() == before + len(views) * 7 * 4096
        views.append(SegmentView.attach(fd))
        assert mapped_bytes() == before + len(views) * 7 * 4096  # a header, a table and five units
    with mmap.mmap(-1, 4096):
        assert mapped_bytes() == before + 2 * 7 * 4096
    views.clear()
    assert mapped_bytes() == before


def test_a_process_tells_its_counts_beside_the_kernels() -> None:
    message = ledger_message(requests_open=3)
    assert message == {
        "op": "ledger",
        "counts": {"descriptors": descriptors(), "mapped_bytes": mapped_bytes(), "requests_open": 3},
    }
