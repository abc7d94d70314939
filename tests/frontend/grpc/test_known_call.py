"""known_call.py: what is learnt from a call recognises the next call like it, and no call that differs elsewhere."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.grpc.call import Opening, Service, open_call
from shoal.frontend.grpc.framing import HEADERS, prefix, trailers
from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, Event, RequestStarted, StreamReset
from shoal.frontend.grpc.http2.frames import BrokenError
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.known_call import KnownCall, learn
from shoal.frontend.grpc.messages import service
from shoal.frontend.grpc.service import METHODS
from shoal.frontend.grpc.submission import GrpcSubmission, SubmittedMessage
from tests.frontend.grpc.http2.peer import DATA, PREFACE, SETTINGS, frame
from tests.frontend.grpc.http2.peer import HEADERS as HEADERS_FRAME
from tests.frontend.lane_star import Star

PATH = "/inference.GRPCInferenceService/ModelInfer"
FIELDS = ((":method", "POST"), (":scheme", "http"), (":path", PATH), ("content-type", "application/grpc"))
BLOCK = b"".join(
    bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode() for name, value in FIELDS
)


@pytest.fixture(scope="module")
def star() -> Star:
    return Star()


def message(id_: str, *tensors: bytes, model: str = "batched") -> bytes:
    request = service.ModelInferRequest(model_name=model, id=id_)
    for name, data in zip("AB", tensors, strict=False):
        request.inputs.add(name=name, datatype="INT32", shape=[1, len(data) // 4])
        request.raw_input_contents.append(data)
    return bytes(request.SerializeToString())


def call(stream_id: int, body: bytes) -> bytes:
    return frame(HEADERS_FRAME, 4, stream_id, BLOCK) + frame(DATA, 1, stream_id, prefix(len(body)) + body)


def first(star: Star, data: bytes) -> tuple[Http2Connection, Sequence[Event], Opening, SubmittedMessage]:
    """A connection that has received `data`, and what the lane then knows of the first call."""
    connection = _opened()
    events = connection.receive(data, 0.0)
    started, body = events[:2]
    assert isinstance(started, RequestStarted)
    assert isinstance(body, DataReceived)
    submission = GrpcSubmission(star.state, star.port)
    opening = open_call(star.state, Service(METHODS, submission), started.headers, "127.0.0.1")
    assert isinstance(opening, Opening)
    number, asked = submission.submit(bytes(body.data[5:]), {}, is_stream=False)
    star.seen()
    star.refuse(number)
    return connection, events, opening, asked


def _opened() -> Http2Connection:
    connection = Http2Connection(Limits(), 0.0)
    connection.receive(PREFACE + frame(SETTINGS, 0, 0), 0.0)
    return connection


def learnt(star: Star, data: bytes) -> tuple[Http2Connection, KnownCall]:
    connection, events, opening, asked = first(star, data)
    assert asked.template is not None
    known = learn(data, events, opening, asked.template)
    assert known is not None
    return connection, known


@pytest.mark.parametrize("id_", ["", "7", "an id of some length"])
def test_the_next_call_differs_in_stream_id_and_tensors(star: Star, id_: str) -> None:
    other = id_[::-1]
    connection, known = learnt(star, call(1, message(id_, bytes(8), bytes(range(8)))))
    following = call(3, message(other, b"abcdefgh", b"ABCDEFGH"))
    assert known.read(following, 0) == (3, BLOCK, other.encode(), (b"abcdefgh", b"ABCDEFGH"))
    stream = connection.open_whole(3, BLOCK, known.layout.size - 9)
    assert stream
    assert known.opening_with(stream.headers) is known.opening
    if id_:
        assert known.read(following.replace(other.encode(), b"\xff" * len(id_)), 0) is None
    connection.respond(3, HEADERS, [b"x"], trailers(0))
    assert len(connection.streams.open) == 1  # the first one


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


def with_block(stream_id: int, block: bytes) -> bytes:
    body = message("", bytes(8), bytes(8))
    return frame(HEADERS_FRAME, 4, stream_id, block) + frame(DATA, 1, stream_id, prefix(len(body)) + body)


@pytest.mark.parametrize(
    ("first_own", "then_own", "timeout_s"),
    [
        ({"traceparent": "first"}, {"traceparent": "another one"}, None),
        ({"traceparent": "first"}, {}, None),
        ({"tracestate": "a", "x-request-id": "b"}, {"x-request-id": "c"}, None),
        ({"grpc-timeout": "1S"}, {"grpc-timeout": "20S"}, 20.0),
        ({"grpc-timeout": "1S"}, {}, None),
    ],
)
def test_the_next_call_may_have_headers_of_its_own(
    star: Star, first_own: dict[str, str], then_own: dict[str, str], timeout_s: float | None
) -> None:
    first_block, block = (
        BLOCK + b"".join([literal(*map(str.encode, each)) for each in own.items()]) for own in (first_own, then_own)
    )
    connection, known = learnt(star, with_block(1, first_block))
    assert known.opening.metadata == {**dict(FIELDS), **first_own}
    assert known.read(with_block(3, block), 0) == (3, block, b"", (bytes(8), bytes(8)))
    stream = connection.open_whole(3, block, known.layout.size - 9)
    assert stream
    opening = known.opening_with(stream.headers)
    assert opening == known.opening._replace(metadata={**dict(FIELDS), **then_own}, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "fields",
    [
        (*FIELDS, ("authorization", "other")),
        FIELDS,  # without the key
        (*FIELDS, ("authorization", "key"), ("grpc-encoding", "gzip")),
        (*FIELDS[:2], (":path", PATH + "s"), *FIELDS[3:], ("authorization", "key")),
        (*FIELDS, ("authorization", "key"), ("grpc-timeout", "soon")),
        (*FIELDS, ("authorization", "key"), ("traceparent", "x")),  # the first one had none
    ],
)
def test_a_call_with_other_headers_has_an_opening_of_its_own(star: Star, fields: tuple[tuple[str, str], ...]) -> None:
    _, known = learnt(star, with_block(1, BLOCK + literal(b"authorization", b"key")))
    assert known.opening_with(dict(known.opening.metadata)) == known.opening
    assert known.opening_with(dict(fields)) is None


def test_a_stream_whose_opening_differs_goes_on_as_any_other(star: Star) -> None:
    connection, known = learnt(star, call(1, message("", bytes(8), bytes(8))))
    block = BLOCK + literal(b"content-length", b"7")
    data = with_block(3, block)
    spare = connection._receiving.data_frames.spare
    stream = connection.open_whole(3, block, known.layout.size - 9)
    assert stream
    connection.go_on(stream, known.layout.size - 9)
    assert connection._receiving.data_frames.spare == spare
    assert connection.receive(data[9 + len(block) :], 0.0) == [StreamReset(3, 1)]  # it has more than 7 bytes


def test_a_block_that_breaks_a_rule(star: Star) -> None:
    connection, known = learnt(star, call(1, message("", bytes(8), bytes(8))))
    assert connection.open_whole(3, BLOCK + literal(b"K", b""), known.layout.size - 9) is None  # of the stream
    assert (connection.streams.last_id, list(connection.streams.open)) == (3, [1])
    with pytest.raises(BrokenError):  # of the connection
        connection.open_whole(5, b"\x80", known.layout.size - 9)


def test_what_is_learnt_from_many_at_once_is_the_first_one(star: Star) -> None:
    calls = [call(stream_id, message("", bytes(8), bytes(8))) for stream_id in (1, 3, 5)]
    _, known = learnt(star, b"".join(calls))
    together = b"".join(calls)
    read = [known.read(together, position) for position in range(0, len(together), len(calls[0]))]
    assert read == [(stream_id, BLOCK, b"", (bytes(8), bytes(8))) for stream_id in (1, 3, 5)]


@given(st.data())
def test_any_other_byte_makes_another_call(star: Star, data: st.DataObject) -> None:
    like = call(3, message("id", bytes(8), bytes(8)))
    _, known = learnt(star, call(1, message("id", bytes(8), bytes(8))))
    id_start, first = like.index(b"\x1a\x02id") + 2, like.index(b"\x3a\x08" + bytes(8)) + 2
    free = {*range(5, 9), *range(id_start, id_start + 2), *range(first, first + 8), *range(first + 10, first + 18)}
    block = range(9, 9 + len(BLOCK))  # which is decoded
    position = data.draw(st.sampled_from([each for each in range(len(like)) if each not in {*free, *block}]))
    changed = bytearray(like)
    changed[position] ^= data.draw(st.integers(1, 255))
    assert known.read(bytes(changed), 0) is None


def test_the_connection_decides_whether_a_known_call_opens_a_stream(star: Star) -> None:
    connection, known = learnt(star, call(1, message("", bytes(8), bytes(8))))
    num_data = known.layout.size - 9
    for stream_id in (0, 1, 2, 1 << 31):  # none, an earlier one, a server's, no number at all
        assert connection.open_whole(stream_id, BLOCK, num_data) is False
    assert connection.open_whole(3, BLOCK, connection._receiving.data_frames.spare + 1) is False
    connection.receive(call(3, message("", bytes(8), bytes(8)))[:20], 0.0)  # within a frame
    assert connection.open_whole(5, BLOCK, num_data) is False
    going = _opened()
    going.go_away()
    assert going.open_whole(1, BLOCK, num_data) is False
    full = _opened()
    full.bound(0, 1 << 20)
    assert full.open_whole(1, BLOCK, num_data) is None


def test_unusual_calls_are_not_learnt(star: Star) -> None:
    whole = call(1, message("", bytes(8), bytes(8)))
    _, events, opening, asked = first(star, whole)
    assert asked.template is not None
    padded = bytearray(whole)
    padded[4] |= 8
    assert learn(bytes(padded), events, opening, asked.template) is None
    assert learn(call(1, message("", bytes(4), bytes(8))), events, opening, asked.template) is None
    assert learn(whole, list(reversed(events)), opening, asked.template) is None
    for position in range(1, len(whole)):  # where the bytes before came with an earlier read
        assert learn(whole[position:], events, opening, asked.template) is None


def test_an_id_of_any_length_is_written_into_the_block(star: Star) -> None:
    submission = GrpcSubmission(star.state, star.port)
    for length in (*range(40), 127, 128, 255, 256, 1024):
        id_ = "x" * length
        number, asked = submission.submit(message(id_, b"abcdefgh", b"ABCDEFGH"), {}, is_stream=False)
        seen = star.seen()
        assert (seen.id, [each[3] for each in seen.inputs]) == (id_, [b"abcdefgh", b"ABCDEFGH"])
        assert asked.template is not None
        assert len(asked.template.in_block.entries) <= 32
        star.refuse(number)
