"""frontend/grpc/connection.py: what leaves a lane's connection over a real socket, plain or with TLS, and when whose
memory is free."""

import gzip
from collections.abc import Callable, Iterator

import pytest

from shoal.frontend.access_log import GrpcCalls
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.framing import trailers
from tests.certificates import Certificates
from tests.frontend.grpc.connection_pair import Pair
from tests.frontend.grpc.http2.peer import (
    DATA,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    frame,
    frames_in,
    number,
    setting,
)

#: The end of a call that has succeeded.
_OK = trailers(0)
MEMORY = bytes(range(256)) * 3000
RESOURCE_EXHAUSTED = 8


@pytest.fixture(params=["plain", "tls"])
def pair(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Pair]:
    pair = Pair(certificates=certificates if request.param == "tls" else None)
    yield pair
    pair.connection.close()
    pair.client.close()


def test_memory_is_free_when_the_client_has_taken_all_of_it(pair: Pair) -> None:
    for stream_id in (1, 3):
        pair.call(stream_id)
        pair.connection.respond(stream_id, [b"front", memoryview(MEMORY)], (stream_id, 0))
    received = b""
    while not received.endswith(_OK) or received.count(_OK) < 2:
        assert pair.connection.flush(1.0)
        received += pair.read()
    assert sorted(pair.released) == [(1, 0), (3, 0)]
    for stream_id in (1, 3):
        data = [each.payload for each in frames_in(received) if each.kind == DATA and each.stream_id == stream_id]
        assert b"".join(data)[5:] == b"front" + MEMORY


def test_what_leaves_at_once_is_free_at_once(pair: Pair) -> None:
    pair.call(1)
    pair.connection.respond(1, [memoryview(MEMORY)[:20_000]], (7, 0))
    assert pair.released == []
    assert pair.connection.flush(1.0)
    assert (pair.released, list(pair.connection.unsent)) == ([(7, 0)], [])


def test_a_client_that_is_gone_is_told(pair: Pair) -> None:
    pair.call(1)
    pair.connection.respond(1, [memoryview(MEMORY)], (7, 0))
    pair.client.close()
    while pair.connection.flush(1.0):
        assert pair.connection.unsent
    pair.connection.close()
    assert pair.released == [(7, 0)]


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_what_is_small_is_copied_and_free_before_it_leaves(pair: Pair, encoding: str) -> None:
    memory = bytearray(MEMORY[:1000])
    pair.call(1)
    assert not pair.connection.respond(1, [b"front", memoryview(memory), b"", b"behind"], (7, 0), encoding)
    memory[:] = bytes(1000)
    assert pair.connection.flush(1.0)
    sent = frames_in(pair.read())
    assert [each.kind for each in sent] == [HEADERS, DATA, HEADERS]
    message = sent[1].payload[5:]
    assert (message if encoding == "identity" else gzip.decompress(message)) == b"front" + MEMORY[:1000] + b"behind"
    assert pair.released == []  # whoever asked gives it back


def test_what_is_compressed_is_a_copy_and_free_before_it_leaves(pair: Pair) -> None:
    memory = bytearray(MEMORY)
    pair.call(1)
    assert not pair.connection.respond(1, [b"front", memoryview(memory)], (7, 0), "gzip")
    memory[:] = bytes(len(memory))
    received = b""
    while not received.endswith(_OK):
        assert pair.connection.flush(1.0)
        received += pair.read()
    message = b"".join(each.payload for each in frames_in(received) if each.kind == DATA)[5:]
    assert gzip.decompress(message) == b"front" + MEMORY
    assert pair.released == []  # whoever asked gives it back


def test_a_response_that_is_cut_at_once_is_logged_with_its_status(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    shut(pair, 1)
    pair.kept.most_bytes = 0
    pair.connection.access = access = GrpcCalls("10.0.0.1")
    access.begin(1, {":path": "/x"}, 0.0)
    with caplog.at_level("INFO", "shoal"):
        assert not pair.connection.respond(1, [memoryview(MEMORY)], None)
    assert [record.__dict__["status"] for record in caplog.records] == [RESOURCE_EXHAUSTED]


def test_what_is_compressed_holds_its_block_where_there_is_no_room_for_it(pair: Pair) -> None:
    shut(pair, 1)
    pair.kept.most_bytes = 0
    assert pair.connection.respond(1, [memoryview(MEMORY)], (7, 0), "gzip")


# --- a client that does not read ---


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When responses are given."""
    now_s = [0.0]
    monkeypatch.setattr("shoal.frontend.grpc.connection.time.monotonic", lambda: now_s[0])
    return now_s


def shut(pair: Pair, *stream_ids: int) -> None:
    """Calls, the windows of which let nothing out."""
    pair.connection.http2.receive(frame(SETTINGS, 0, 0, setting(4, 0)), 0.0)
    for stream_id in stream_ids:
        pair.call(stream_id)


def test_what_lies_for_a_second_is_copied_within_the_share_of_its_connection(pair: Pair, clock: list[float]) -> None:
    clock[0] = 10.0
    shut(pair, 1, 3, 5)
    memory = bytearray(MEMORY[:50_000])
    for stream_id in (1, 3, 5):  # an eighth of 1 MiB is the share of the first 58,254 bytes at most, and shrinks so
        pair.connection.respond(stream_id, [memoryview(memory)], (stream_id, 0))
    assert pair.connection.flush(10.0)
    assert pair.connection.relieve(10.5) == []
    assert (pair.released, pair.kept.nbytes) == ([], 0)
    assert pair.connection.relieve(11.5) == []
    assert (pair.released, pair.kept.nbytes) == ([(1, 0), (3, 0)], 100_010)
    memory[:] = bytes(50_000)
    assert pair.connection.relieve(12.0) == []
    assert pair.connection.relieve(12.5) == [5]  # two seconds after it was seen to have no room
    pair.connection.cut(5)
    assert pair.released == [(1, 0), (3, 0), (5, 0)]
    pair.call(7)  # and who comes now is not waited for again
    assert not pair.connection.respond(7, [memoryview(MEMORY)], (7, 0))
    pair.connection.http2.receive(frame(SETTINGS, 0, 0, setting(4, 1 << 30)), 0.0)
    received = b""
    while received.count(_OK) < 2:
        assert pair.connection.flush(13.0)
        received += pair.read()
    frames = frames_in(received)
    for stream_id in (1, 3):
        data = [each.payload for each in frames if each.kind == DATA and each.stream_id == stream_id]
        assert b"".join(data)[5:] == MEMORY[:50_000]
    ends = {each.stream_id: each.payload for each in frames if each.kind == HEADERS and each.flags & 1}
    for stream_id in (5, 7):
        assert b"does not read its responses" in ends[stream_id]
    assert (pair.kept.nbytes, pair.connection.is_late, pair.connection.is_slow) == (0, False, False)


@pytest.mark.usefixtures("clock")
def test_a_stream_that_is_read_fast_enough_is_waited_for(pair: Pair) -> None:
    shut(pair, 1)
    memory = memoryview(bytearray(30 << 20))
    pair.connection.respond(1, [memory], (1, 0))
    for second in range(1, 10):
        pair.connection.http2.receive(frame(8, 0, 1, (1 << 20).to_bytes(4, "big")), 0.0)
        left = pair.connection.http2.unsent_nbytes(1)
        while pair.connection.http2.unsent_nbytes(1) > left - (1 << 20) or pair.connection.unsent:
            assert pair.connection.flush(float(second))
            pair.client.recv(1 << 22)
        assert pair.connection.relieve(float(second)) == []
    assert pair.released == []


@pytest.mark.usefixtures("clock")
def test_what_was_copied_may_lie_in_the_socket_s_queue_still(pair: Pair) -> None:
    """The beginning of a response is on its way when its memory is given back."""
    memory = bytearray(MEMORY[:100_000])
    pair.kept.most_bytes = 1 << 30
    pair.connection.http2.receive(frame(SETTINGS, 0, 0, setting(4, 1 << 24)), 0.0)
    for stream_id in range(1, 201, 2):  # more than the socket takes
        pair.call(stream_id)
        pair.connection.respond(stream_id, [memoryview(memory)], (stream_id, 0))
    assert pair.connection.flush(1.0)
    assert pair.connection.unsent
    assert pair.connection.relieve(3.0) == []
    assert sorted(pair.released) == [(stream_id, 0) for stream_id in range(1, 201, 2)]
    memory[:] = bytes(100_000)
    received = bytearray()
    while received.count(_OK) < 100:
        assert pair.connection.flush(3.0)
        received += pair.read()
    data: dict[int, bytes] = {}
    for each in frames_in(bytes(received)):
        if each.kind == DATA:
            data[each.stream_id] = data.get(each.stream_id, b"") + each.payload
    assert all(each[5:] == MEMORY[:100_000] for each in data.values())
    assert pair.kept.nbytes == 0


# --- a client whose socket takes nothing ---


def fill(pair: Pair, memory: bytearray) -> int:
    """Calls, whose responses are on their way, until the socket takes no more. Returns the last one."""
    stream_id = -1
    while not pair.connection.unsent:
        stream_id += 2
        pair.call(stream_id)
        pair.connection.respond(stream_id, [memoryview(memory)], (stream_id, 0))
        assert pair.connection.flush(0.0)
    assert pair.connection.http2.num_queued == 0
    return stream_id


def read_all(pair: Pair, last: int) -> bytes:
    """What the client receives up to the end of the last response."""
    received = bytearray()
    while received.count(_OK) < (last + 1) // 2:
        received += pair.read()
        assert pair.connection.flush(0.0)
    return bytes(received)


@pytest.mark.usefixtures("clock")
def test_what_is_on_its_way_is_copied_and_counts_until_the_socket_has_taken_it(pair: Pair) -> None:
    memory = bytearray(MEMORY)
    last = fill(pair, memory)
    assert pair.connection.recall(lambda token: token == (last, 0)) == []
    assert pair.released[-1] == (last, 0)
    memory[:] = bytes(len(memory))
    assert 0 < pair.kept.nbytes <= len(MEMORY) + 1000
    data = [each.payload for each in frames_in(read_all(pair, last)) if each.kind == DATA and each.stream_id == last]
    assert b"".join(data)[5:] == MEMORY
    assert pair.kept.nbytes == 0


@pytest.mark.parametrize(
    "give_back", [lambda connection: connection.relieve(1.5), lambda connection: connection.recall(lambda _: True)]
)
@pytest.mark.usefixtures("clock")
def test_a_stream_that_its_client_resets_holds_nothing_though_its_socket_takes_nothing(
    pair: Pair, give_back: Callable[[GrpcConnection], object]
) -> None:
    stream_id = fill(pair, bytearray(MEMORY)) + 2
    pair.call(stream_id)
    pair.connection.respond(stream_id, [memoryview(bytearray(MEMORY))], (stream_id, 0))
    pair.connection.http2.receive(frame(RST_STREAM, 0, stream_id, number(8)), 0.0)
    assert pair.connection.flush(0.0)
    assert (stream_id, 0) not in pair.released
    give_back(pair.connection)
    assert (stream_id, 0) in pair.released


def test_a_client_that_asks_on_without_reading_is_disconnected_once_the_lane_keeps_all_it_may(pair: Pair) -> None:
    """No window holds up a whole response, which is a copy."""
    stream_id = fill(pair, bytearray(MEMORY))
    response, num_responses = MEMORY[:10_000], 0
    while pair.connection.flush(0.0):
        assert num_responses < 200
        num_responses += 1
        stream_id += 2
        pair.call(stream_id)
        pair.connection.respond(stream_id, [response], None)
    assert len(response) * num_responses > pair.kept.most_bytes
    pair.connection.close()
    assert pair.kept.nbytes == 0


def test_whole_responses_behind_unsent_output_come_in_order_and_count_until_they_are_sent(pair: Pair) -> None:
    last = fill(pair, bytearray(MEMORY))
    for _ in range(10):
        last += 2
        pair.call(last)
        pair.connection.respond(last, [MEMORY[:10_000]], None)
        assert pair.connection.flush(0.0)
    assert 100_000 < pair.kept.nbytes < 102_000
    ends = [each.stream_id for each in frames_in(read_all(pair, last)) if each.kind == HEADERS and each.flags & 1]
    assert ends[-10:] == list(range(last - 18, last + 2, 2))
    assert pair.kept.nbytes == 0


def test_what_is_a_copy_takes_no_room_again(pair: Pair) -> None:
    """Of a stream's two messages there is room for one: it leaves in part, and there is room for the other."""
    shut(pair, 1)
    http2 = pair.connection.http2
    http2.send_data(1, [memoryview(bytearray(80_000))], (1, 0))
    assert pair.connection.recall(lambda _: True) == []
    http2.send_data(1, [memoryview(bytearray(50_000))], (1, 1))
    assert len(pair.connection.recall(lambda _: True)) == 1
    http2.receive(frame(8, 0, 1, number(10_000)), 0.0)
    assert pair.connection.flush(0.0)
    assert len(frames_in(pair.read())) > 0
    assert pair.connection.recall(lambda _: True) == []
    assert pair.released == [(1, 0), (1, 1)]
    assert pair.kept.nbytes == 120_000
