"""frontend/grpc/road_call.py: how long the road waits for a client that does not read what it answers."""

import errno
import gzip
import random
import select
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.frontend.grpc.call import Opening
from shoal.frontend.grpc.framing import decompressed_start
from shoal.frontend.grpc.inbox import LargeMessage
from shoal.frontend.grpc.road_call import RoadCall
from shoal.frontend.grpc.service import find
from shoal.frontend.grpc.unary import TOO_MANY_HANDED_OVER, UnaryCall
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.upload_budget import UploadBudget
from tests.frontend.grpc.connection_pair import Pair
from tests.frontend.grpc.http2.peer import HEADERS, PREFACE, SETTINGS, frame, frames_in, number
from tests.scarcity import no_descriptors_left

INFER = "/inference.GRPCInferenceService/ModelInfer"
MIB = 1 << 20
#: Of the response, which the client's windows let go by 65,535 bytes at a time.
NBYTES = 8 * MIB


class Lane:
    """What such a call asks of its lane."""

    def __init__(self) -> None:
        self.upload_budget = UploadBudget(1 << 30)
        self.road: socket.socket | None = None
        self.head = b""
        self.protocol = None

    def hand_over(self, theirs: socket.socket, data: bytes) -> None:
        theirs.settimeout(10)
        self.road, self.head = theirs, data

    def listen(self, _listener: Any) -> None: ...

    def watch(self, _fd: int, _events: int) -> None: ...

    def forget(self, _listener: Any) -> None: ...

    def note_output(self, _connection: Any) -> None: ...


class ScarceLane(Lane):
    """A lane that has no memory for large messages, and may have so many calls more on the road."""

    def __init__(self, num_more: int) -> None:
        super().__init__()
        self._num_more = num_more
        self.buffers = SimpleNamespace(allocate=lambda *_: None)

    def may_hand_over(self, num_calls: int) -> bool:
        return num_calls < self._num_more

    def deadline_s(self, _opening: Opening) -> float:
        return 1e9


class Reader:
    """A client that lets go out what it wants of a large response, and the call."""

    def __init__(self) -> None:
        self.pair = Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory())
        self.pair.client.settimeout(10)
        self.pair.call(1)
        lane: Any = Lane()
        opening = Opening(find(INFER), {}, None, "identity", "identity", lane.protocol)
        self.call = RoadCall(lane, self.pair.connection, 1, opening, LargeMessage(0, b"", is_compressed=False), 1e9)
        self.pair.connection.calls[1] = self.call
        self.road = lane.road
        self.road.setblocking(False)
        self.unsent = memoryview(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % NBYTES + bytes(NBYTES))

    def go_on(self, now_s: float, credit: int = 0) -> None:
        """The client takes so much more; the road sends what it can; half a second passes."""
        if credit:
            self.pair.connection.http2.receive(frame(8, 0, 0, number(credit)) + frame(8, 0, 1, number(credit)), now_s)
        while self.is_served and self.call._events & select.EPOLLIN:
            try:
                self.unsent = self.unsent[self.road.send(self.unsent[:MIB]) :]
            except BlockingIOError:
                pass
            self.call.serve(select.EPOLLIN)
        self.pair.connection.flush(now_s)
        if self.is_served:
            self.call.expire(now_s)

    @property
    def is_served(self) -> bool:
        return 1 in self.pair.connection.calls


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.pair.connection.close()
    reader.pair.client.close()
    reader.road.close()


def test_a_slow_client_is_waited_for_while_there_is_room(reader: Reader) -> None:
    for second in range(100):
        reader.go_on(second, credit=20_000)
        if second % 10 == 0:
            reader.pair.read()
    assert reader.is_served


def test_a_client_that_reads_nothing_is_given_up_in_the_end(reader: Reader) -> None:
    for second in range(31):
        reader.go_on(second)
    assert reader.is_served
    reader.go_on(31.0)
    assert not reader.is_served
    assert any(b"does not read" in each.payload for each in frames_in(_all_of(reader)))


def test_without_room_it_is_given_up_after_two_seconds(reader: Reader) -> None:
    reader.go_on(0.0)
    reader.pair.kept.most_bytes = reader.pair.kept.nbytes
    reader.go_on(1.0)
    reader.go_on(2.5, credit=20_000)
    assert reader.is_served
    reader.go_on(3.0, credit=20_000)
    assert not reader.is_served


def _all_of(reader: Reader) -> bytes:
    reader.pair.connection.flush(31.0)
    reader.pair.connection.shut()
    received = b""
    while data := reader.pair.read():
        received += data
    return received


@pytest.mark.parametrize(
    ("encoding", "begun"),
    [
        ("gzip", gzip.compress(b"\x0a\x05slow\xc3" + bytes(NBYTES))),
        ("gzip", gzip.compress(b"\x0a\x05slow\xc3" + random.Random(1).randbytes(NBYTES))[:500]),
        ("deflate", zlib.compress(b"\x0a\x05slow\xc3" + random.Random(1).randbytes(NBYTES))[:500]),
        ("identity", b"\x0a\x05slow\xc3"),
        ("identity", b"\x0a\xff\x01slow\xc3" + 250 * b"x"),
    ],
    ids=["whole", "begun", "begun, of zlib", "not compressed", "long"],
)
def test_the_road_is_sent_the_name_of_the_model_of_a_compressed_message_too(encoding: str, begun: bytes) -> None:
    """And a long one: without it, calls to all models shared the threads of one."""
    pair, lane = Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory()), Lane()
    pair.call(1)
    any_lane: Any = lane
    opening = Opening(find(INFER), {}, None, encoding, "identity", lane.protocol)  # type: ignore[arg-type]
    message = LargeMessage(NBYTES, begun, is_compressed=encoding != "identity")
    pair.connection.calls[1] = RoadCall(any_lane, pair.connection, 1, opening, message, 1e9)
    assert b"\r\nModel: slow%%C3%b\r\n" % (250 * b"x" if len(begun) == 258 else b"") in lane.head
    pair.connection.close()
    pair.client.close()
    assert lane.road is not None
    lane.road.close()


def test_a_call_whose_socket_the_kernel_does_not_watch_leaves_none(num_descriptors: Callable[[], int]) -> None:
    pair, lane = Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory()), Lane()

    def listen(_listener: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    any_lane: Any = lane
    any_lane.listen = listen
    opening = Opening(find(INFER), {}, None, "identity", "identity", None)  # type: ignore[arg-type]
    before = num_descriptors()
    with pytest.raises(OSError, match="No space left") as raised:
        RoadCall(any_lane, pair.connection, 1, opening, LargeMessage(NBYTES, b"", is_compressed=False), 1e9)
    assert (num_descriptors(), raised.value.errno) == (before, errno.ENOSPC)
    pair.connection.close()
    pair.client.close()


def test_what_the_road_does_not_take_of_all_calls_is_bounded_and_the_largest_is_refused() -> None:
    """Each call had a window's worth of the lane's memory, however many there were."""
    lane: Any = Lane()
    lane.upload_budget = UploadBudget(3 * MIB)
    pairs, calls, roads = list[Pair](), list[RoadCall](), list[socket.socket]()
    opening = Opening(find(INFER), {}, None, "identity", "identity", None)  # type: ignore[arg-type]
    for _ in range(2):
        pairs.append(Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory()))
        pairs[-1].call(1)
        message = LargeMessage(NBYTES, b"", is_compressed=False)
        calls.append(RoadCall(lane, pairs[-1].connection, 1, opening, message, 1e9))
        pairs[-1].connection.calls[1] = calls[-1]
        roads.append(lane.road)
    calls[0].take(bytes(3 * MIB))
    calls[1].take(bytes(MIB // 2))
    calls[1].take(bytes(MIB // 2))
    assert [1 in pair.connection.calls for pair in pairs] == [False, True]
    pairs[0].connection.flush(0.0)
    refusal = b"Send the request again later, or raise --max-upload-mib"
    assert any(refusal in each.payload for each in frames_in(pairs[0].read()))
    assert len(calls[1]._unsent) == lane.upload_budget.nbytes > 0
    roads[1].recv(MIB)
    calls[1].serve(select.EPOLLOUT)
    assert len(calls[1]._unsent) == lane.upload_budget.nbytes
    calls[1].cancel()
    assert lane.upload_budget.nbytes == 0
    for pair, road in zip(pairs, roads, strict=True):
        pair.connection.close()
        pair.client.close()
        road.close()


def test_a_message_that_goes_to_the_road_whole_counts_at_once() -> None:
    """Only further bytes of a message had the bound looked at: whole messages took as much memory as they liked."""
    lane: Any = ScarceLane(1)
    lane.upload_budget = UploadBudget(MIB)
    opening = Opening(find(INFER), {}, None, "identity", "identity", None)  # type: ignore[arg-type]
    pairs, roads = list[Pair](), list[socket.socket]()
    for nbytes in (MIB, 2 * MIB):
        pairs.append(pair := Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory()))
        pair.call(1)
        call = pair.connection.calls[1] = UnaryCall(lane, pair.connection, 1, opening)
        call._hand_over(bytes(nbytes), is_compressed=False)
        roads.append(lane.road)
    assert [1 in pair.connection.calls for pair in pairs] == [True, False]
    assert 0 < lane.upload_budget.nbytes <= MIB
    for pair, road in zip(pairs, roads, strict=True):
        pair.connection.close()
        pair.client.close()
        road.close()


@pytest.mark.parametrize(
    "begun", [b"", b"\x1f\x8b", b"no stream", zlib.compress(b"")], ids=["none", "two", "no stream", "empty"]
)
@pytest.mark.parametrize("encoding", ["gzip", "identity", "snappy"])
def test_a_message_that_cannot_be_decompressed_has_no_beginning(encoding: str, begun: bytes) -> None:
    assert decompressed_start(encoding, begun, 100) == b""


@pytest.mark.parametrize(
    ("num_more", "sentence"), [(0, TOO_MANY_HANDED_OVER), (1, "no file descriptor is left, a process of the server's")]
)
def test_a_call_for_which_there_is_no_descriptor_is_refused_and_no_other_of_its_connection(
    num_more: int, sentence: str
) -> None:
    """The connection was closed with all its calls."""
    pair, lane = Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory()), ScarceLane(num_more)
    pair.call(1)
    any_lane: Any = lane
    call = UnaryCall(any_lane, pair.connection, 1, Opening(find(INFER), {}, None, "identity", "identity", None))  # type: ignore[arg-type]
    pair.connection.calls[1] = call
    with no_descriptors_left() if num_more else nullcontext():
        call.take(b"\0" + NBYTES.to_bytes(4, "big") + b"x")
    assert lane.road is None
    assert pair.connection.calls == {}
    assert pair.connection.flush(0.0)
    (end,) = frames_in(pair.read())
    assert (end.kind, end.stream_id) == (HEADERS, 1)
    assert b"grpc-status" in end.payload
    assert sentence.encode() in end.payload.replace(b"%2C", b",").replace(b"%27", b"'")
    pair.connection.close()
    pair.client.close()
