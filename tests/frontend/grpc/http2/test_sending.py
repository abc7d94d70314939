"""frontend/grpc/http2/sending.py: what is framed when, whose turn it is, and where the marks lie."""

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import (
    DATA,
    HEADERS,
    RST_STREAM,
    STATUS_200,
    TRAILERS,
    WINDOW_UPDATE,
    calling,
    frame,
    frames_in,
    number,
    opened,
    setting,
    taken,
)

#: Windows that limit nothing in these tests.
WIDE = setting(4, 1 << 30)


def wide(*stream_ids: int, settings: bytes = WIDE) -> Http2Connection:
    connection = opened(settings=settings)
    connection.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 30)), 0.0)
    calling(connection, *stream_ids, ends=True)
    return connection


def test_small_responses_go_out_as_one_piece() -> None:
    connection = wide(1, 3)
    connection.respond(1, STATUS_200, [b"a", memoryview(b"b")], TRAILERS, token=1)
    connection.respond(3, STATUS_200, [], TRAILERS, token=3)
    (piece,), tokens = connection.output()
    assert tokens == [1, 3]
    assert isinstance(piece, bytes)
    assert frames_in(piece) == [
        (HEADERS, 4, 1, STATUS_200),
        (DATA, 0, 1, b"ab"),
        (HEADERS, 5, 1, TRAILERS),
        (HEADERS, 4, 3, STATUS_200),
        (DATA, 0, 3, b""),
        (HEADERS, 5, 3, TRAILERS),
    ]
    assert connection.output() == ([], [])


def test_large_memory_is_not_copied_and_its_token_comes_with_it() -> None:
    connection = wide(1, settings=WIDE + setting(5, 1 << 20))
    memory = bytearray(100_000)
    connection.respond(1, STATUS_200, [b"head", memoryview(memory)], TRAILERS, token="block")
    (before, large, after), tokens = connection.output()
    assert isinstance(large, memoryview)
    assert large.obj is memory
    assert tokens == ["block"]
    assert frames_in(bytes(before) + bytes(large) + bytes(after))[1].payload == b"head" + memory


def test_frames_as_large_as_the_client_takes() -> None:
    for most in (16_384, 40_000):
        connection = wide(1, settings=WIDE + setting(5, most))
        connection.respond(1, STATUS_200, [b"x" * 100_000], TRAILERS)
        sizes = [len(each.payload) for each in frames_in(taken(connection)[0]) if each.kind == DATA]
        assert sum(sizes) == 100_000
        assert max(sizes) == most


def test_whole_frames_of_one_memory_and_what_lies_around_it() -> None:
    connection = wide(1)
    memory = bytes(range(256)) * 200
    connection.respond(1, STATUS_200, [b"front", memoryview(memory), b"back"], TRAILERS, token=1)
    sent, tokens = taken(connection)
    first, *data, last = frames_in(sent)
    assert (first, last) == ((HEADERS, 4, 1, STATUS_200), (HEADERS, 5, 1, TRAILERS))
    assert [len(each.payload) for each in data] == [16_384, 16_384, 16_384, 51_209 - 3 * 16_384]
    assert b"".join(each.payload for each in data) == b"front" + memory + b"back"
    assert tokens == [1]


def test_memory_that_ends_with_a_frame() -> None:
    connection = wide(1)
    connection.respond(1, STATUS_200, [memoryview(b"x" * 32_768)], TRAILERS)
    sent, _ = taken(connection)
    assert [len(each.payload) for each in frames_in(sent)[1:-1]] == [16_384, 16_384]


def test_a_window_that_ends_amid_a_frame() -> None:
    connection = wide(1, settings=setting(4, 40_000))
    connection.respond(1, STATUS_200, [memoryview(b"x" * 50_000)], TRAILERS)
    sent, _ = taken(connection)
    assert [len(each.payload) for each in frames_in(sent)[1:]] == [16_384, 16_384, 40_000 - 32_768]
    connection.receive(frame(WINDOW_UPDATE, 0, 1, number(10_000)), 0.0)
    sent, _ = taken(connection)
    assert [len(each.payload) for each in frames_in(sent)] == [10_000, len(TRAILERS)]


def test_streams_take_turns() -> None:
    connection = wide(1, 3, 5)
    for stream_id in (1, 3):
        connection.respond(stream_id, STATUS_200, [b"x" * 1_000_000], TRAILERS)
    connection.respond(5, STATUS_200, [b"small"], TRAILERS)
    frames = frames_in(taken(connection)[0])
    order = [each.stream_id for each in frames if each.kind == DATA]
    assert order.index(5) == 8  # behind one turn of four frames of each other stream
    assert order.index(3) == 4
    ends = [each.stream_id for each in frames if each.kind == HEADERS and each.flags == 5]
    assert ends == [5, 1, 3]


def test_one_output_is_a_part_of_much() -> None:
    connection = wide(1)
    connection.respond(1, STATUS_200, [b"x" * 2_000_000], TRAILERS)
    nbytes = [sum(len(piece) for piece in pieces) for pieces, _ in iter(connection.output, ([], []))]
    assert len(nbytes) == 2
    assert max(nbytes) < 1_050_000


def test_no_stream_waits_for_ever_for_the_connections_window() -> None:
    connection = opened(settings=WIDE)
    calling(connection, 1, 3, 5, ends=True)
    for stream_id in (1, 3, 5):
        connection.respond(stream_id, STATUS_200, [b"x" * 100_000], TRAILERS)
    sent = {1: 0, 3: 0, 5: 0}
    for _ in range(20):
        for each in frames_in(taken(connection)[0]):
            if each.kind == DATA:
                sent[each.stream_id] += len(each.payload)
        connection.receive(frame(WINDOW_UPDATE, 0, 0, number(1000)), 0.0)
    assert min(sent.values()) > 0.9 * 6000
    connection.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 20)), 0.0)
    taken(connection)
    assert len(connection.streams.open) == 0


def test_a_stream_without_window_holds_up_no_other() -> None:
    connection = opened()
    calling(connection, 1, 3, ends=True)
    connection.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 20)), 0.0)
    connection.respond(1, STATUS_200, [b"x" * 100_000], TRAILERS)
    taken(connection)
    connection.respond(3, STATUS_200, [b"y"], TRAILERS)
    assert len(connection.streams.open) == 1
    assert connection.unsent_nbytes(1) == 100_000 - 65_535


def test_marks_amid_data() -> None:
    connection = wide(1)
    connection.send_headers(1, STATUS_200)
    for token in range(10):
        connection.send_data(1, [bytes((token,)) * 10_000], token)
    pieces, tokens = connection.output()
    assert b"".join([each.payload for each in frames_in(b"".join(pieces))[1:]]) == b"".join(
        [bytes((token,)) * 10_000 for token in range(10)]
    )
    assert tokens == list(range(10))
    assert taken(connection) == (b"", [])


def test_a_reset_drops_what_is_queued() -> None:
    connection = opened()
    calling(connection, 1, 3, ends=True)
    connection.send_headers(1, STATUS_200)
    connection.send_data(1, [b"x" * 70_000], "a")
    connection.send_data(1, [b"y"], "b")
    connection.send_trailers(1, TRAILERS)
    connection.reset(1, 8)
    sent, tokens = taken(connection)
    assert frames_in(sent) == [(HEADERS, 4, 1, STATUS_200), (RST_STREAM, 0, 1, number(8))]
    assert tokens == ["a", "b"]
    connection.respond(3, STATUS_200, [b"z" * 65_535], TRAILERS)  # the window is as it was
    assert len(taken(connection)[0]) > 65_535


def test_trailers_behind_marks_alone() -> None:
    connection = opened(settings=setting(4, 0))
    calling(connection, 1, ends=True)
    connection.send_headers(1, STATUS_200)
    connection.send_data(1, [], "a")
    connection.send_data(1, [b"", memoryview(b"")], "b")
    connection.send_trailers(1, TRAILERS)
    sent, tokens = taken(connection)
    assert [each.kind for each in frames_in(sent)] == [HEADERS, HEADERS]
    assert tokens == ["a", "b"]


def test_what_is_kept_is_copied_and_its_owner_told() -> None:
    """A slow reader: the window is shut, and a worker wants its memory back."""
    connection = opened(Limits())
    calling(connection, 1, 3)
    memory = bytearray(b"m" * 200_000)
    connection.send_headers(1, STATUS_200)
    connection.send_data(1, [memoryview(memory)], token="the owner")
    connection.send_trailers(1, TRAILERS)
    before, tokens = taken(connection)
    assert tokens == []
    left = connection.num_queued
    assert left == connection.unsent_nbytes(1) == 200_000 - 65_535
    ((late, _),) = connection.streams.lent_before(1.0)
    assert connection.streams.lent_before(0.0) == []
    assert connection.keep(late, left - 1) == []
    assert connection.keep(late, left) == ["the owner"]
    assert connection.keep(late, left) == []
    assert connection.streams.lent_before(1.0) == []
    assert (connection.num_queued, connection.lent_bytes) == (left, 0)
    memory[:] = b"?" * len(memory)
    connection.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 20)) + frame(WINDOW_UPDATE, 0, 1, number(1 << 20)), 0.0)
    assert connection.has_output
    after, tokens = taken(connection)
    assert tokens == []
    body = b"".join(each.payload for each in frames_in(before + after) if each.kind == DATA)
    assert body == b"m" * 200_000
    assert connection.num_queued == 0
    assert not connection.has_output
