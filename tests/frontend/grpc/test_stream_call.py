"""frontend/grpc/stream_call.py: answers that wait for earlier ones of their stream, where a worker lacks memory."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.frontend.grpc.call import Opening
from shoal.frontend.grpc.connection import Token
from shoal.frontend.grpc.framing import prefix
from shoal.frontend.grpc.messages import service
from shoal.frontend.grpc.service import find
from shoal.frontend.grpc.stream_call import StreamCall
from shoal.frontend.grpc.wire import stream_error
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.upload_budget import UploadPace
from tests.frontend.grpc.connection_pair import OPENING, Pair
from tests.frontend.grpc.http2.peer import DATA, HEADERS, frames_in

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
#: The block that a result lies in.
PART = 77
NBYTES = 100_000


class Lane:
    """What a stream asks of its lane: requests are numbered, an answer is what a reply says."""

    now_s = 0.0

    def __init__(self) -> None:
        self.released: list[Token] = []
        self._num_asked = 0
        self.inference = SimpleNamespace(
            ask=self._ask, release=self._release, forget=lambda _number: None, asked=None
        )  # fmt: skip
        self.protocol = SimpleNamespace(
            response=lambda _asked, reply, **_: [b"head", reply.block],
            refused_request=lambda error, asked, *, final: stream_error(
                str(error), asked.id, asked.found.entry.name, "", final=final
            ),
            ends_with_error=lambda *_: False,
        )  # fmt: skip
        self.parking = SimpleNamespace(must_wait=lambda _received, _protocol: 0, leave=lambda *_: None)
        self.buffers = SimpleNamespace(pace=UploadPace(60.0, 1000))

    def _ask(self, *_: Any, is_stream: bool) -> tuple[int, Any]:
        assert is_stream
        self._num_asked += 1
        return self._num_asked, SimpleNamespace(found=SimpleNamespace(entry=SimpleNamespace(is_decoupled=False)))

    def _release(self, number: int, part: int, *, prompt: bool = True) -> None:
        self.released.append((number, part))

    def answer_by_s(self) -> float:
        return 1e9

    def no_answer(self) -> UnavailableError:
        return UnavailableError("no answer in time")

    def note_output(self, _connection: Any) -> None: ...


class Stream:
    """Three requests of a client, of which the first takes long."""

    def __init__(self, kept: KeptMemory) -> None:
        self.pair, self.lane = Pair(OPENING, kept), Lane()
        self.pair.call(1)
        lane: Any = self.lane
        opening = Opening(find(STREAM), {}, None, "identity", "identity", lane.protocol)
        self.call = StreamCall(lane, self.pair.connection, 1, opening)
        self.pair.connection.calls[1] = self.call
        self.call.take(3 * (prefix(1) + b"?"))

    def answer(self, number: int, block: memoryview) -> None:
        reply: Any = SimpleNamespace(block=block, part=PART, is_final=True, is_empty=False)
        self.call.replied(number, self.lane.inference.ask(is_stream=True)[1], reply)

    def recall(self, *numbers: int) -> None:
        self.pair.connection.recall(lambda token: token[0] in numbers)


@pytest.fixture
def kept() -> KeptMemory:
    return KeptMemory()


@pytest.fixture
def stream(kept: KeptMemory) -> Iterator[Stream]:
    stream = Stream(kept)
    yield stream
    stream.pair.connection.close()
    stream.pair.client.close()
    assert kept.nbytes == 0


def test_an_answer_that_waits_for_another_model_is_copied_and_leaves_in_its_order(
    stream: Stream, kept: KeptMemory
) -> None:
    second = bytearray(b"2" * NBYTES)
    stream.answer(2, memoryview(second))
    stream.recall(3)
    assert (stream.lane.released, kept.nbytes) == ([], 0)
    stream.recall(2)
    assert (stream.lane.released, kept.nbytes) == ([(2, PART)], 4 + NBYTES)
    second[:] = bytes(NBYTES)  # the worker's next result
    stream.answer(1, memoryview(b"1" * NBYTES))
    assert stream.pair.connection.flush(0.0)
    received = b""
    while received.count(b"2") < NBYTES:
        received += stream.pair.read()
        assert stream.pair.connection.flush(0.0)
    sent = b"".join(each.payload for each in frames_in(received) if each.kind == DATA)
    assert sent == b"".join(prefix(4 + NBYTES) + b"head" + letter * NBYTES for letter in (b"1", b"2"))
    assert kept.nbytes == 0


def test_what_is_compressed_is_a_copy_and_free_before_it_leaves(stream: Stream) -> None:
    stream.call.opening = stream.call.opening._replace(response_encoding="gzip")
    stream.answer(1, memoryview(bytes(NBYTES)))
    assert stream.lane.released == [(1, PART)]


def test_without_room_for_a_copy_it_stays_until_its_stream_ends(stream: Stream, kept: KeptMemory) -> None:
    for number in (2, 3):
        stream.answer(number, memoryview(bytes(NBYTES)))
    kept.most_bytes = 9 * NBYTES
    stream.recall(2, 3)
    assert stream.lane.released == [(2, PART)]
    stream.call.cancel()
    assert (stream.lane.released, kept.nbytes) == ([(2, PART), (3, PART)], 0)


def test_a_model_that_is_silent_for_too_long_is_told_of_and_the_stream_goes_on(stream: Stream) -> None:
    entry = SimpleNamespace(name="slow", version=1)
    stream.lane.inference.asked = lambda number: SimpleNamespace(id=str(number), found=SimpleNamespace(entry=entry))
    stream.call.expire(0.9e9)
    stream.answer(2, memoryview(b"2" * NBYTES))  # waits for the first
    stream.call.expire(1.1e9)
    assert stream.pair.connection.flush(0.0)
    received = b""
    while received.count(b"2") < NBYTES:
        received += stream.pair.read()
        assert stream.pair.connection.flush(0.0)
    sent = b"".join(each.payload for each in frames_in(received) if each.kind == DATA)
    (late_1, response, late_3) = split(sent)
    assert response == b"head" + b"2" * NBYTES
    for number, message in (("1", late_1), ("3", late_3)):
        answer = service.ModelStreamInferResponse.FromString(message)
        assert (answer.error_message, answer.infer_response.id) == ("no answer in time", number)
        assert answer.infer_response.model_name == "slow"
        assert answer.infer_response.parameters["triton_final_response"].bool_param


@pytest.mark.parametrize("is_final", [False, True])
def test_an_error_says_whether_it_is_the_last_answer(stream: Stream, is_final: bool) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UnavailableError("the model has failed")

    stream.lane.protocol.response = refuse
    asked: Any = SimpleNamespace(id="7", found=SimpleNamespace(entry=SimpleNamespace(name="m")))
    reply: Any = SimpleNamespace(block=None, part=PART, is_final=is_final, is_empty=False)
    stream.call.replied(1, asked, reply)
    assert stream.pair.connection.flush(0.0)
    sent = b"".join(each.payload for each in frames_in(stream.pair.read()) if each.kind == DATA)
    (message,) = split(sent)
    answer = service.ModelStreamInferResponse.FromString(message)
    expected = service.ModelInferResponse(model_name="m", id="7")
    expected.parameters["triton_final_response"].bool_param = is_final
    assert answer == service.ModelStreamInferResponse(error_message="the model has failed", infer_response=expected)


def test_a_message_of_which_the_rest_does_not_come_ends_its_stream(stream: Stream) -> None:
    stream.call.take(prefix(100) + b"begun")
    stream.call.expire(0.0)
    stream.call.expire(59.9)
    assert 1 in stream.pair.connection.calls
    stream.call.expire(60.1)
    assert 1 not in stream.pair.connection.calls
    assert stream.pair.connection.flush(0.0)
    (ended,) = [each for each in frames_in(stream.pair.read()) if each.kind == HEADERS]
    assert b"grpc-status\x0214" in ended.payload
    assert b"10 bytes in 60 s" in ended.payload


def split(sent: bytes) -> list[bytes]:
    """The messages of a stream."""
    messages = []
    while sent:
        end = 5 + int.from_bytes(sent[1:5], "big")
        messages.append(sent[5:end])
        sent = sent[end:]
    return messages
