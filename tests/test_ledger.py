"""What the kernel says of a process: descriptors come and go, mappings of segments and of nothing else count."""

import errno
import mmap
import os
import socket
import struct

import pytest

from shoal import memo
from shoal.ledger import connections, ledger_message, mapped_bytes
from shoal.memo import Memo
from shoal.messages.shared import LedgerCounted
from shoal.open_files import num_open
from shoal.shm import segment
from shoal.shm.layout import LINK, Geometry
from shoal.shm.segment import SegmentView

pytestmark = pytest.mark.usefixtures("no_garbage")


def test_descriptors_are_those_that_are_open() -> None:
    before = num_open()
    ends = os.pipe()
    assert num_open() == before + 2
    for fd in ends:
        os.close(fd)
    assert num_open() == before


def test_connections_are_counted_until_they_are_closed_and_nothing_else_is() -> None:
    before = connections(), num_open()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX),
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        assert connections() == before[0] + 2
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets when it is closed
        client.close()
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        assert connections() == before[0] + 1
    assert (connections(), num_open()) == before


def test_counting_connections_leaves_them_as_they_are() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        socket.setdefaulttimeout(5)
        try:
            connections()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(accepted.fileno())


def test_segments_count_for_as_long_as_they_are_mapped() -> None:
    before = mapped_bytes()
    views: list[SegmentView] = []
    for sealed in (False, True):  # a file of /dev/shm, a memfd
        fd = segment.create(LINK, 1, Geometry(0, 5 * 4096), sealed=sealed)
        assert mapped_bytes() == before + len(views) * 7 * 4096
        views.append(SegmentView.attach(fd))
        assert mapped_bytes() == before + len(views) * 7 * 4096  # a header, a table and five units
    with mmap.mmap(-1, 4096):
        assert mapped_bytes() == before + 2 * 7 * 4096
    views.clear()
    assert mapped_bytes() == before


def test_a_process_tells_its_counts_beside_the_kernels_and_its_memos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "_figures", {})
    monkeypatch.setattr(memo, "_functions", {})
    Memo[str, int]("ledger", 1).keep("a", 1)
    message = ledger_message(requests_open=3)
    counts = {"descriptors": num_open(), "mapped_bytes": mapped_bytes(), "requests_open": 3}
    assert message == LedgerCounted({**counts, "memo_ledger_kept": 1, "memo_ledger_dropped": 0})
