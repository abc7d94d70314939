"""Calls known by their bytes: what is learnt from one takes the next like it, and nothing else, whatever is changed."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.grpc.call import Opening, Service, open_call
from shoal.frontend.grpc.framing import HEADERS, prefix, trailers
from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, Event, RequestStarted
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
    """A connection on which that has come, as the lane sees it the first time."""
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
    known = learn(data, events, connection.known_block, opening, asked.template)
    assert known is not None
    return connection, known


@pytest.mark.parametrize("id_", ["", "7", "an id of some length"])
def test_the_next_call_differs_in_stream_id_and_tensors(star: Star, id_: str) -> None:
    other = id_[::-1]
    connection, known = learnt(star, call(1, message(id_, bytes(8), bytes(range(8)))))
    following = call(3, message(other, b"abcdefgh", b"ABCDEFGH"))
    assert known.read(following, 0) == (3, other.encode(), (b"abcdefgh", b"ABCDEFGH"), ())
    assert connection.open_whole(3, known.block, known.num_data)
    connection.respond(3, HEADERS, [b"x"], trailers(0))
    assert len(connection.streams.open) == 1  # the first one


def traced(stream_id: int, trace: bytes) -> bytes:
    field = b"\0\x0btraceparent%c%b" % (len(trace), trace)
    body = message("", bytes(8), bytes(8))
    return frame(HEADERS_FRAME, 4, stream_id, BLOCK + field) + frame(DATA, 1, stream_id, prefix(len(body)) + body)


def test_the_next_call_may_have_a_trace_of_its_own(star: Star) -> None:
    connection, known = learnt(star, traced(1, b"first"))
    assert known.opening.metadata["traceparent"] == "first"
    read = known.read(traced(3, b"other"), 0)
    assert read == (3, b"", (bytes(8), bytes(8)), (b"other",))
    opening = known.opening_with(read[3])
    assert opening == known.opening._replace(metadata={**known.opening.metadata, "traceparent": "other"})
    assert connection.open_whole(3, known.block, known.num_data)
    assert known.opening_with((b"o\rher",)) is None
    assert known.read(traced(5, b"longer"), 0) is None


def test_what_is_learnt_from_many_at_once_is_the_first_one(star: Star) -> None:
    calls = [call(stream_id, message("", bytes(8), bytes(8))) for stream_id in (1, 3, 5)]
    _, known = learnt(star, b"".join(calls))
    assert known.nbytes == len(calls[0])
    together = b"".join(calls)
    read = [known.read(together, position) for position in range(0, len(together), known.nbytes)]
    assert read == [(stream_id, b"", (bytes(8), bytes(8)), ()) for stream_id in (1, 3, 5)]


@given(st.data())
def test_any_other_byte_makes_another_call(star: Star, data: st.DataObject) -> None:
    like = call(3, message("id", bytes(8), bytes(8)))
    _, known = learnt(star, call(1, message("id", bytes(8), bytes(8))))
    id_start, first = like.index(b"\x1a\x02id") + 2, like.index(b"\x3a\x08" + bytes(8)) + 2
    free = {*range(5, 9), *range(id_start, id_start + 2), *range(first, first + 8), *range(first + 10, first + 18)}
    position = data.draw(st.sampled_from([each for each in range(len(like)) if each not in free]))
    changed = bytearray(like)
    changed[position] ^= data.draw(st.integers(1, 255))
    assert known.read(bytes(changed), 0) is None


def test_the_connection_has_a_word_in_it(star: Star) -> None:
    connection, known = learnt(star, call(1, message("", bytes(8), bytes(8))))
    for stream_id in (0, 1, 2, 1 << 31):  # none, an earlier one, a server's, no number at all
        assert not connection.open_whole(stream_id, known.block, known.num_data)
    assert not connection.open_whole(3, known.block._replace(headers={}), known.num_data)
    connection.receive(call(3, message("", bytes(8), bytes(8)))[:20], 0.0)  # within a frame
    assert not connection.open_whole(5, known.block, known.num_data)
    going = _opened()
    going.go_away()
    assert not going.open_whole(1, known.block, known.num_data)


def test_unusual_calls_are_not_learnt(star: Star) -> None:
    whole = call(1, message("", bytes(8), bytes(8)))
    connection, events, opening, asked = first(star, whole)
    assert asked.template is not None
    padded = bytearray(whole)
    padded[4] |= 8
    assert learn(bytes(padded), events, connection.known_block, opening, asked.template) is None
    assert (
        learn(call(1, message("", bytes(4), bytes(8))), events, connection.known_block, opening, asked.template) is None
    )
    assert learn(whole, list(reversed(events)), connection.known_block, opening, asked.template) is None


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
