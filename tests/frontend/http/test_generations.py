"""frontend/http/generations.py: `generate` and `generate_stream`, with the batcher and the worker simulated."""

import json
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.frontend.http.connection import READING, STREAMING, HttpConnection
from shoal.frontend.http.generations import Generations
from shoal.frontend.http.http_head import parse_head
from shoal.frontend.http.outgoing import OutgoingResponses
from shoal.frontend.kept_memory import HOLD_S, SEND_S
from shoal.request import InferResponse, TensorRef
from tests.frontend.lane_star import Star

TIMEOUT_S = 300.0
CHUNKED = b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
FP32, BYTES = 11, 13
WORKER = {9}


class Lane:
    """The generations of a lane with one client, whose socket has little room; `now_s` is the test's clock."""

    def __init__(self, star: Star) -> None:
        self.star = star
        self.now_s = 0.0
        self.closed = self.resumed = 0
        self.poller = select.epoll()
        self.outgoing = OutgoingResponses(star.port, self.poller, self._close)
        self.generations = Generations(
            star.state, star.port, self.poller, self.outgoing, self._resume, self._close, TIMEOUT_S
        )
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.connection = HttpConnection(ours, 0.0, 0.0)
        self.poller.register(ours, select.EPOLLIN)

    def _close(self, connection: HttpConnection) -> None:
        self.closed += 1
        if connection.stage is STREAMING:
            self.generations.forget(connection)
        self.outgoing.release(connection)
        self.poller.unregister(connection.fd)
        connection.socket.close()

    def _resume(self, _connection: HttpConnection) -> None:
        self.resumed += 1

    def end(self) -> None:
        self.client.close()
        self.connection.socket.close()
        self.poller.close()

    def ask(self, verb: str = "generate_stream", model: str = "stream", body: bytes = b'{"A":1}') -> int:
        head = parse_head(b"POST /v2/models/%b/%b HTTP/1.1\r\nHost: x\r\n\r\n" % (model.encode(), verb.encode()))
        assert head is not None
        self.generations.begin(self.connection, head, memoryview(body), self.now_s)
        self.star.seen()
        return self.connection.number

    def ask_openai(self, **members: Any) -> int:
        """Ask for a text."""
        head = parse_head(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head is not None
        body = json.dumps({"model": "story", "prompt": "Once", **members}).encode()
        self.generations.begin(self.connection, head, memoryview(body), self.now_s)
        self.star.seen()
        return self.connection.number

    def say(self, number: int, text: bytes, *, more: bool = True) -> None:
        """One response of the model, a text as the tensor OUT_A."""
        data = len(text).to_bytes(4, "little") + text
        response = InferResponse((TensorRef("OUT_A", BYTES, (1,), 0, len(data)),), {})
        self.take(self.star.reply(number, response, data, more=more))

    def answer(self, number: int, *values: float, more: bool = True) -> None:
        """One response of the model, its values as the tensor OUT_A."""
        data = memoryview(bytearray(4 * len(values))).cast("f")
        for index, value in enumerate(values):
            data[index] = value
        response = InferResponse((TensorRef("OUT_A", FP32, (len(values),), 0, 4 * len(values)),), {})
        nbytes = 4 * len(values) + 4096
        self.take(self.star.reply(number, response, bytes(data.cast("B")), nbytes, more=more))

    def take(self, reply: Any) -> None:
        self.generations.replied(self.connection, reply, self.now_s)

    def received(self) -> bytes:
        """What the client reads by now; the lane sends on as the client's socket has room."""
        data = b""
        while True:
            try:
                piece = self.client.recv(1 << 20)
                data += piece
                if not piece:  # the lane has closed the connection
                    return data
            except BlockingIOError:
                if not self.connection.unsent or self.closed:
                    return data
            if self.connection.unsent and self.connection.stage is STREAMING:
                self.generations.send_rest(self.connection, self.now_s)
            elif self.connection.unsent:
                self.outgoing.send_rest(self.connection, self.now_s)


@pytest.fixture
def lane(star: Star) -> Iterator[Lane]:
    made = Lane(star)
    yield made
    made.end()


def event(**members: Any) -> bytes:
    """One chunk with one event."""
    text = json.dumps(members, separators=(",", ":"), sort_keys=True).encode()
    text = b"data: " + text + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def answered(value: float) -> bytes:
    return event(OUT_A=value, model_name="stream", model_version="1")


def test_each_response_is_an_event_in_a_chunk_of_its_own(lane: Lane) -> None:
    number = lane.ask()
    lane.answer(number, 1.5)
    assert lane.received() == b"HTTP/1.1 200 OK\r\n" + CHUNKED + answered(1.5)
    lane.answer(number, 2.5)
    assert lane.received() == answered(2.5)
    assert lane.star.port.num_held == 0
    lane.take(lane.star.end(number))
    assert lane.received() == END
    assert (lane.connection.stage, lane.resumed, lane.closed) == (READING, 1, 0)
    assert lane.outgoing.kept.nbytes == 0


def test_a_connection_that_is_not_kept_says_so_and_ends_with_its_stream(lane: Lane) -> None:
    number = lane.ask()
    lane.connection.keep_alive = False
    lane.answer(number, 1.5, more=False)
    assert (
        lane.received()
        == b"HTTP/1.1 200 OK\r\n" + CHUNKED.replace(b"Transfer", b"Connection: close\r\nTransfer") + answered(1.5) + END
    )
    assert lane.closed == 1


def test_an_error_before_all_events_is_the_status_and_one_in_the_middle_an_event(lane: Lane) -> None:
    first = lane.ask()
    lane.take(lane.star.fail(first, 3, b"there is none"))
    assert lane.received() == b"HTTP/1.1 404 Not Found\r\n" + CHUNKED + event(error="there is none") + END
    assert lane.star.num_cancels() == 0
    second = lane.ask()
    lane.answer(second, 1.5)
    lane.take(lane.star.fail(second, 3, b"there is none"))
    assert lane.received().endswith(answered(1.5) + event(error="there is none") + END)


def test_a_refused_request_leaves_nothing_behind(lane: Lane) -> None:
    with pytest.raises(ShoalError, match="unknown model"):
        lane.ask(model="nobody")
    assert (lane.connection.stage, lane.star.num_waiting(), lane.star.port.slab.counts) == (READING, 0, (0, 0))


def test_generate_is_answered_once_the_model_has_ended(lane: Lane) -> None:
    number = lane.ask("generate")
    lane.answer(number, 1.5)
    assert lane.received() == b""
    lane.take(lane.star.end(number))
    body = b'{"OUT_A":1.5,"model_name":"stream","model_version":"1"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert lane.received() == head + body


@pytest.mark.parametrize("num_responses", [0, 2])
def test_generate_takes_no_other_number_of_responses(lane: Lane, num_responses: int) -> None:
    number = lane.ask("generate")
    for _ in range(num_responses):
        lane.answer(number, 1.5)
    if not num_responses:
        lane.take(lane.star.end(number))
    assert b"expects model to produce exactly 1 response" in lane.received()
    # The model that goes on after the second response is cancelled.
    assert lane.star.num_cancels() == (1 if num_responses else 0)


def test_a_client_that_reads_nothing_keeps_its_share_and_then_the_model_waits(lane: Lane) -> None:
    lane.outgoing.kept.most_bytes = 8 * 50_000  # a share of 50 kB
    number = lane.ask()
    values = [1.5] * 2000  # 8 kB of text
    for _ in range(12):
        lane.answer(number, *values)
    num_held = lane.star.port.num_held
    assert 0 < num_held < 12
    assert lane.outgoing.kept.nbytes <= 50_000
    lane.take(lane.star.end(number))
    data = lane.received()
    assert data.count(b"data: ") == 12
    assert data.endswith(END)
    assert (lane.star.port.num_held, lane.outgoing.kept.nbytes, lane.closed, lane.resumed) == (0, 0, 0, 0)
    assert lane.connection.stage is READING


def test_such_a_client_is_given_up_for_a_worker_that_lacks_memory(lane: Lane) -> None:
    lane.outgoing.kept.most_bytes = 8 * 10_000
    number = lane.ask()
    for _ in range(4):
        lane.answer(number, *[1.5] * 2000)
    assert lane.star.port.num_held
    lane.generations.recall({8}, HOLD_S, is_urgent=True)  # another worker's
    lane.generations.recall(WORKER, HOLD_S, is_urgent=False)
    lane.generations.recall(WORKER, HOLD_S / 2, is_urgent=True)
    assert lane.closed == 0
    lane.generations.recall(WORKER, HOLD_S, is_urgent=True)
    assert (lane.closed, lane.star.port.num_held, lane.outgoing.kept.nbytes) == (1, 0, 0)
    assert lane.star.num_cancels() == 1


def test_a_client_that_takes_nothing_for_long_is_closed(lane: Lane) -> None:
    number = lane.ask()
    lane.answer(number, *[1.5] * 20_000)
    assert lane.connection.unsent
    assert lane.connection.deadline_s == SEND_S
    lane.generations.expire(lane.connection, SEND_S)
    assert (lane.closed, lane.outgoing.kept.nbytes, lane.star.num_cancels()) == (1, 0, 1)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_model_that_does_not_answer_in_time(lane: Lane, has_begun: bool) -> None:
    number = lane.ask()
    lane.now_s = 5.0
    if has_begun:
        lane.answer(number, 1.5)
        assert lane.connection.deadline_s == 5.0 + TIMEOUT_S
        lane.received()
    lane.generations.expire(lane.connection, lane.now_s + TIMEOUT_S)
    sentence = "Request timeout expired: no answer within 300 s (--request-timeout-secs)"
    data = lane.received()
    if has_begun:
        assert data == event(error=sentence) + END
    else:
        assert data.startswith(b"HTTP/1.1 503 ")
        assert data.endswith(b'{"error":"%b"}' % sentence.encode())
    assert lane.star.num_cancels() == 1
    assert lane.generations.connection_of(number) is None


def test_a_client_that_may_have_gone_is_asked_only_before_its_stream_begins(lane: Lane) -> None:
    number = lane.ask()
    assert lane.generations.doubt(lane.connection)
    lane.answer(number, 1.5)
    assert not lane.generations.doubt(lane.connection)


def texts_in(received: bytes) -> list[str]:
    """The pieces of a text in the chunks of OpenAI's stream."""
    events = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: {")]
    return [choice["text"] for event in events for choice in json.loads(event)["choices"]]


def test_a_stop_sequence_ends_a_stream_and_cancels_what_the_model_would_still_say(lane: Lane) -> None:
    number = lane.ask_openai(stream=True, stop=["END"])
    lane.say(number, b"the E")
    received = lane.received()
    assert (texts_in(received), b"x-request-id: req-" in received) == (["the "], True)
    lane.say(number, b"ND of it")
    received = lane.received()
    assert texts_in(received) == [""]
    assert received.endswith(b"data: [DONE]\n\n\r\n" + END)
    assert (lane.star.num_cancels(), lane.star.port.num_held, lane.connection.stage) == (1, 0, READING)
    assert (lane.generations.connection_of(number), lane.resumed, lane.closed) == (None, 1, 0)


def test_a_stop_sequence_ends_a_whole_text(lane: Lane) -> None:
    number = lane.ask_openai(stop="END")
    lane.say(number, b"the E")
    assert lane.received() == b""
    lane.say(number, b"ND of it")
    assert b'"text":"the ","logprobs":null,"finish_reason":"stop"' in lane.received()
    assert (lane.star.num_cancels(), lane.star.port.num_held, lane.resumed) == (1, 0, 1)


def test_a_model_that_fails_within_a_text_ends_the_stream(lane: Lane) -> None:
    number = lane.ask_openai(stream=True)
    lane.say(number, b"Once")
    lane.received()
    lane.take(lane.star.fail(number, 2, b"no more"))
    error = b'data: {"error":{"message":"no more","type":"server_error","param":null,"code":null}}\n\n'
    assert lane.received() == b"%x\r\n%b\r\n" % (len(error), error) + END


def test_a_model_that_fails_before_a_text_gives_the_stream_its_status(lane: Lane) -> None:
    lane.take(lane.star.fail(lane.ask_openai(stream=True), 5, b"full"))
    received = lane.received()
    assert received.startswith(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n")
    assert received.endswith(b'"code":null}}\r\n' + END)


def test_a_text_whose_model_takes_too_long_ends_with_an_error(lane: Lane) -> None:
    lane.ask_openai(stream=True)
    lane.generations.expire(lane.connection, TIMEOUT_S)
    assert b'"error":{"message":"Request timeout expired' in lane.received()
    assert lane.star.num_cancels() == 1
