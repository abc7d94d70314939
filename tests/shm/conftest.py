"""Real segments for the tests of the medium; the test's own process plays every owner and every peer."""

from collections.abc import Callable

import pytest

from shoal.shm import segment
from shoal.shm.layout import Geometry
from shoal.shm.segment import Segment, SegmentView


@pytest.fixture
def segment_pair() -> Callable[[int, int, Geometry], tuple[Segment, SegmentView]]:
    """(kind, owner id, geometry) → the owner's mapping of a new segment and a peer's."""

    def make(kind: int, owner: int, geometry: Geometry) -> tuple[Segment, SegmentView]:
        fd = segment.create(kind, owner, 1, geometry, sealed=False)
        view_fd = segment.read_only(fd)
        return Segment.attach(fd), SegmentView.attach(view_fd)

    return make
