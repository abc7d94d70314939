"""Requests of guests as a worker meets them: one that does not fit fails alone, and reaches no other memory."""

import pytest

from shoal.errors import InternalError
from shoal.model_config.signature import Signature
from shoal.shm import layout, segment
from shoal.shm.layout import Geometry
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab
from shoal.workers.requests import RequestReader
from shoal.workers.segments import Segments
from tests.request_headers import request_header
from tests.workers.worker_harness import Batcher, loop_of, model_config, rows, strings, tensor_config

GUEST, ITS_PAYLOAD, STRANGER = 31, 32, 33
FIXED = model_config([tensor_config("INPUT0", "TYPE_FP32", [4])], [tensor_config("OUTPUT0", "TYPE_FP32", [4])])
STRINGS = model_config([tensor_config("INPUT0", "TYPE_STRING", [1])], [tensor_config("OUTPUT0", "TYPE_STRING", [1])])


@pytest.mark.parametrize(
    "header",
    [
        request_header("", [["INPUT0", 11, [1, 2], 0, 8]], [], {}),
        request_header("", [["INPUT0", 11, [1, 4, 1], 0, 16]], [], {}),
        request_header("", [["INPUT0", 11, [1, 4.0], 0, 16]], [], {}),
        request_header("", [], [], {}),
        request_header("", [["INPUT0", 11, [1, 4], 0, 16]], [], {"key": [1]}),
        request_header("", [["INPUT0", 11, [1, 4], 0, 16]], [], {b"key": 1}),
        request_header("", [["INPUT0", 11, [1, 4], 0, 16, "ref"]], [], {}),
        request_header("", [["INPUT0", 11, [1, 4], 0, 16, -1]], [], {}),
        b"\x91" * 2000,
        b"\xc7\xff\xff",
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_the_configuration_is_refused(header: bytes) -> None:
    with pytest.raises(InternalError):
        RequestReader(Signature.from_config(FIXED)).open(0, memoryview(bytes(64)), header)


def test_unannounced_rows_fail_their_request_only(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    lie = batcher.request([("INPUT0", "FP32", rows(*range(7)))])
    batcher._rows[lie[0]] = 1
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]), lie, batcher.request([("INPUT0", "FP32", rows(2))]))
    loop.step()
    first, bad, last = batcher.done()
    assert (bad.status, bad.sentence) == (2, "a request of 1 rows has tensors of 7")
    assert [each.outputs["OUTPUT0"][0, 0] for each in (first, last)] == [1, 2]


def test_strings_that_are_cut_short_fail_their_request_only(batcher: Batcher) -> None:
    loop = loop_of(batcher, STRINGS)
    good = batcher.request([("INPUT0", "BYTES", ((1, 1), strings(b"a")))])
    bad = batcher.request([("INPUT0", "BYTES", ((1, 1), strings(b"abc")[:-1]))])
    batcher.send(bad, good)
    loop.step()
    failed, answered = batcher.done()
    assert failed.status == 2
    assert "cannot be read" in failed.sentence
    assert answered.status == 0


def made(owner: int) -> tuple[Slab, int]:
    fd = segment.create(layout.CLIENT, owner, Geometry(0, 16 * layout.UNIT), sealed=True)
    read_only = segment.read_only(fd)
    return Slab(Segment.attach(fd)), read_only


def test_a_guest_lends_what_is_its_own() -> None:
    segments = Segments()
    refs = {}
    for owner, guest in ((GUEST, GUEST), (ITS_PAYLOAD, GUEST), (STRANGER, STRANGER), (5, 0)):
        slab, fd = made(owner)
        if guest:
            segments.add_guests(owner, guest, fd)
        else:
            segments.add(owner, SegmentView.attach(fd))
        block = slab.allocate(100)
        assert block is not None
        refs[owner] = block.ref
    assert segments.open_lent(refs[ITS_PAYLOAD], refs[GUEST]) is not None
    assert segments.open_lent(refs[STRANGER], refs[GUEST]) is None
    assert segments.open_lent(refs[5], refs[GUEST]) is None
    assert segments.open_lent(refs[STRANGER], refs[5]) is not None  # a model passes on what it was sent
    segments.remove(ITS_PAYLOAD)
    assert segments.open_lent(refs[ITS_PAYLOAD], refs[GUEST]) is None


def test_a_segment_whose_head_is_damaged_cannot_be_read_and_ends_no_worker() -> None:
    slab, fd = made(GUEST)
    block = slab.allocate(100)
    assert block is not None
    slab._memory.obj[:64] = bytes(64)  # type: ignore[index]
    segments = Segments()
    segments.add_guests(GUEST, GUEST, fd)
    assert segments.open(block.ref) is None
