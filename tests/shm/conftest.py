"""Real segments for the tests of the medium; the test's own process plays every owner and every peer."""

from collections.abc import Callable, Iterator

import pytest

from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import Geometry
from shoal.shm.segment import Segment, SegmentView
from tests.shm.port_star import MakePair, Star


@pytest.fixture
def segment_pair() -> Callable[[int, int, Geometry], tuple[Segment, SegmentView]]:
    """(kind, owner id, geometry) → the owner's mapping of a new segment and a peer's."""

    def make(kind: int, owner: int, geometry: Geometry) -> tuple[Segment, SegmentView]:
        fd = segment.create(kind, owner, geometry, sealed=False)
        view_fd = segment.read_only(fd)
        return Segment.attach(fd), SegmentView.attach(view_fd)

    return make


@pytest.fixture
def star(segment_pair: MakePair) -> Iterator[Star]:
    bell = Doorbell.create()
    yield Star(segment_pair, bell)
    bell.close()


@pytest.fixture
def narrow(segment_pair: MakePair) -> Iterator[Star]:
    """One request in flight, the ring for that, and more memory in the worker than may be held."""
    bell = Doorbell.create()
    yield Star(segment_pair, bell, max_in_flight=1, num_records=13, num_blocks=16)
    bell.close()
