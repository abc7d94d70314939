"""frontend/grpc/road_stream.py over a real port: which answers leave when; the test plays batcher and client."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

from shoal.errors import NotFoundError, UnavailableError
from shoal.frontend.grpc.messages import service as pb
from shoal.frontend.grpc.road_stream import MAX_OPEN, RoadStream
from shoal.frontend.grpc.service import GrpcCall
from shoal.frontend.state import ServerState
from tests.frontend.transport_harness import TransportHarness, harness, rung

__all__ = ["harness"]

EMPTY = b"\x92\x90\x80"  # msgpack: no outputs, no parameters
NAMED = b"\x92\x90\x81\xa1n\x01"  # the parameter n = 1
REQUEST, CANCEL, RELEASE = 1, 2, 3
NOT_READY = 3  # why the batcher refuses: its model is not there any more


class HungUpError(Exception):
    """What a request iterator raises where the client is gone."""


def message(model: str = "simple", id_: str = "", **parameters: bool) -> bytes:
    request = pb.ModelInferRequest(model_name=model, id=id_)
    inputs = [("TEXT", "BYTES", [1, 2], 8)] if model == "stream" else []
    inputs = inputs or [(name, "INT32", [1, 16], 64) for name in ("INPUT0", "INPUT1")]
    for name, datatype, shape, nbytes in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(bytes(nbytes))
    for key, value in parameters.items():
        request.parameters[key].bool_param = value
    return bytes(request.SerializeToString())


class Call:
    """A stream, its client and, through `around`, its batcher."""

    def __init__(self, state: ServerState, around: TransportHarness, threads: ThreadPoolExecutor) -> None:
        self.state, self.around, self._threads = state, around, threads
        self.metadata: dict[str, str] = {}
        self.stream = self.open()

    def open(self) -> RoadStream:
        self.stream = RoadStream(GrpcCall(self.state, None, self.metadata, "127.0.0.1"), self.around.transport)
        self.answers = self.stream.answers()
        return self.stream

    def ask(self, *messages: bytes, ends: bool = False) -> None:
        def sent() -> Iterator[bytes]:
            yield from messages
            if not ends:
                raise HungUpError

        self.stream.read(sent(), HungUpError)

    def next(self, count: int = 1) -> "Future[list[Any]]":
        """The next answers, or fewer where the stream ends before."""
        return self._threads.submit(
            lambda: [pb.ModelStreamInferResponse.FromString(each) for each in islice(self.answers, count)]
        )

    def asked(self, count: int) -> list[int]:
        """The numbers of requests, once the batcher has so many."""
        numbers: list[int] = []
        while len(numbers) < count:
            rung(self.around)
            numbers += [record[1] for record in self.around.reader.drain() if record[0] == REQUEST]
        return numbers


@pytest.fixture
def call(state: ServerState, harness: TransportHarness) -> Iterator[Call]:
    with ThreadPoolExecutor(1) as threads:
        made = Call(state, harness, threads)
        yield made
        made.stream.call_off()
        threads.submit(lambda: list(made.answers)).result(timeout=10)
    assert (harness.port.counts["replies_held"], harness.transport._kept.nbytes) == (0, 0)


def is_final(answer: Any) -> bool:
    return bool(answer.infer_response.parameters["triton_final_response"].bool_param)


def test_ordinary_models_keep_the_order_of_their_requests(call: Call) -> None:
    call.ask(message(id_="a"), message(id_="b"), message("none", "c"), ends=True)
    answers = call.next(4)
    first, second = call.asked(2)
    call.around.say(second, NAMED, more=False)
    call.around.say(first, EMPTY, more=False)
    found = answers.result(timeout=10)
    assert [each.infer_response.id for each in found] == ["a", "b", "c"]  # and then it ends
    assert [is_final(each) for each in found[:2]] == [True, True]
    assert found[1].infer_response.parameters["n"].int64_param == 1
    assert found[2].error_message == "Request for unknown model: 'none' is not found"


def test_answers_of_decoupled_models_leave_as_they_come(call: Call) -> None:
    call.ask(message(id_="a"), message("stream", id_="b"))
    answers = call.next(2)
    ordinary, decoupled = call.asked(2)
    call.around.say(decoupled, NAMED, more=True)
    call.around.say(decoupled, NAMED, more=True)
    found = answers.result(timeout=10)
    assert [(each.infer_response.id, is_final(each)) for each in found] == [("b", False), ("b", False)]
    answers = call.next(2)
    call.around.say(decoupled, EMPTY, more=False)
    call.around.say(ordinary, EMPTY, more=False)
    found = answers.result(timeout=10)
    assert [(each.infer_response.id, is_final(each)) for each in found] == [("b", True), ("a", True)]


def test_replies_that_wait_for_their_client_leave_the_worker_s_memory(call: Call) -> None:
    call.ask(message("stream", id_="a"), message(id_="b"))
    answers = call.next()
    decoupled, ordinary = call.asked(2)
    call.around.say(decoupled, NAMED, more=True)
    answers.result(timeout=10)
    for _ in range(3):
        call.around.say(decoupled, NAMED, more=True)
    call.around.say(ordinary, NAMED, more=False)
    assert call.around.port.counts["replies_held"] == 1  # nothing waited before that one
    found = call.next(4).result(timeout=10)
    assert [each.infer_response.id for each in found] == ["a", "a", "a", "b"]
    assert all(each.infer_response.parameters["n"].int64_param == 1 for each in found)


@pytest.mark.parametrize("wanted", [False, True])
def test_an_end_without_a_response_is_told_to_who_wants_it(call: Call, wanted: bool) -> None:
    call.ask(message("stream", "a", triton_enable_empty_final_response=wanted), ends=True)
    answers = call.next(3)
    (number,) = call.asked(1)
    call.around.say(number, NAMED, more=True)
    call.around.say(number, more=False)
    found = answers.result(timeout=10)
    assert [is_final(each) for each in found] == [False, True][: 1 + wanted]
    assert all(each.infer_response.id == "a" for each in found)


def test_what_goes_wrong_is_an_answer_and_the_stream_goes_on(call: Call) -> None:
    call.ask(message("none", "a"), message(id_="b"), b"\xff", ends=True)
    answers = call.next(4)
    (number,) = call.asked(1)
    call.around.say(number, b"oh", more=False, status=2)
    found = answers.result(timeout=10)
    assert [(each.error_message, each.infer_response.id, each.infer_response.model_name) for each in found[:2]] == [
        ("Request for unknown model: 'none' is not found", "a", "none"), ("oh", "b", "simple"),
    ]  # fmt: skip
    assert found[2].error_message
    assert len(found) == 3


def test_the_first_error_ends_the_stream_of_a_client_that_asks_for_that(call: Call) -> None:
    call.metadata = {"triton_grpc_error": "true"}
    call.open()
    call.ask(message(id_="a"), message("none"))
    with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'none' is not found$"):
        call.next().result(timeout=10)
    assert [record[0] for record in call.around.reader.drain()] == [REQUEST, CANCEL]


def test_a_client_that_is_gone_takes_back_what_it_asked(call: Call) -> None:
    call.ask(message("stream"), message())
    answers = call.next(9)
    decoupled, _ = call.asked(2)
    call.around.say(decoupled, NAMED, more=True)
    call.stream.call_off()
    assert len(answers.result(timeout=10)) == 1
    assert sorted(record[0] for record in call.around.reader.drain()) == [CANCEL, CANCEL, RELEASE]


def test_a_model_that_is_silent_for_too_long(call: Call) -> None:
    call.around.transport.request_timeout_s = 0.01
    call.ask(message(id_="a"), ends=True)
    (answer,) = call.next(2).result(timeout=10)
    assert answer.error_message.startswith("Request timeout expired: no answer within 0.01 s")
    assert answer.infer_response.id == "a"
    assert [record[0] for record in call.around.reader.drain()] == [REQUEST, CANCEL]


def test_a_request_whose_model_was_reloaded_meanwhile_is_asked_again(call: Call, make_message: Any) -> None:
    call.ask(message(id_="a"), ends=True)
    answers = call.next(2)
    (number,) = call.asked(1)
    entry = call.state.models.lookup("simple", None)
    call.state.models.apply(make_message("simple", entry.version, 99, entry.config))
    call.around.refuse(number, NOT_READY)
    (again,) = call.asked(1)
    call.around.refuse(again, NOT_READY)  # and there is no other
    (answer,) = answers.result(timeout=10)
    assert answer.infer_response.id == "a"
    assert answer.error_message


def test_a_server_that_ends_answers_what_was_asked_and_no_more(call: Call) -> None:
    call.ask(message(id_="a"))
    answers = call.next()
    (number,) = call.asked(1)
    call.state.exiting = True
    call.stream.drain()
    call.ask(message(id_="b"))
    call.around.say(number, EMPTY, more=False)
    (answer,) = answers.result(timeout=10)
    assert (answer.infer_response.id, answer.error_message) == ("a", "")
    (answer,) = call.next().result(timeout=10)
    sentence = "GRPC server is shutting down and has stopped accepting new requests."
    assert (answer.infer_response.id, answer.error_message) == ("b", sentence)
    with pytest.raises(UnavailableError, match=r"^GRPC server is shutting down"):
        call.next().result(timeout=10)


def test_no_more_is_read_than_can_be_open(call: Call) -> None:
    num_read = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_read
        while True:
            num_read += 1
            yield message("none")

    reader = threading.Thread(target=call.stream.read, args=(endless(), HungUpError))
    reader.start()
    call.next(2 * MAX_OPEN).result(timeout=10)
    call.stream.call_off()
    call.next(9 * MAX_OPEN).result(timeout=10)
    reader.join(10)
    assert not reader.is_alive()
    assert num_read <= 12 * MAX_OPEN + 2
