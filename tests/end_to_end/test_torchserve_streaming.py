"""Answers in parts, from an archive whose handler calls send_intermediate_predict_response, served by the command."""

import http.client
import json
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.test_torchserve_management import NO_WORKER, fault
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve_command
from tests.repository.torchserve.archives import mar

#: Does what a request's body says. `wait PATH` waits, between its parts, until the FIFO has been written to;
#: `endless PATH` sends parts until that fails, and writes then to the FIFO.
HANDLER = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return
    word, _, path = bytes(data[0]["body"]).decode().partition(" ")
    if word == "fail":
        raise ValueError("no")
    if word == "once":
        return ["whole"]
    context.set_response_content_type(0, "text/event-stream")
    context.set_response_header(0, "X-A", "b")
    context.set_response_status(201, "made", 0)

    def send(text):
        send_intermediate_predict_response([text], context.request_ids, "more", 200, context)

    send("one ")
    if word == "wait":
        with open(path) as fifo:
            fifo.readline()
    if word == "break":
        raise ValueError("no")
    try:
        while word == "endless":
            send("more " * 1000)
    except Exception as error:
        with open(path, "w") as fifo:
            fifo.write(type(error).__name__)
        raise
    send("two ")
    return ["three"]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store = tmp_path_factory.mktemp("store")
    mar(store / "talk.mar", {"h.py": HANDLER}, name="talk", handler="h.py")
    properties = "load_models=talk.mar\ndefault_workers_per_model=1\njob_queue_size=2\n"
    with torchserve_command(tmp_path_factory.mktemp("server"), store, properties, "--dt") as served:
        yield served


class Fifo:
    """A FIFO between a test and a handler; its opening waits for neither."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def write(self) -> None:
        """Write a line, which the handler waits for."""
        os.write(self.fd, b"on\n")

    def read(self) -> bytes:
        """Wait for what the handler writes."""
        assert select.select([self.fd], [], [], DEADLINE_S)[0], "the handler has not ended"
        return os.read(self.fd, 4096)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    made = Fifo(tmp_path / "fifo")
    yield made
    os.close(made.fd)


def begin(served: TorchServe, body: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", served.inference_port, timeout=DEADLINE_S)
    connection.request("POST", "/predictions/talk/1.0", body.encode())
    return connection, connection.getresponse()


def test_each_part_is_a_chunk_and_goes_out_as_it_comes(served: TorchServe, fifo: Fifo) -> None:
    connection, response = begin(served, f"wait {fifo.path}")
    assert (response.status, response.reason) == (201, "made")
    assert response.getheader("ts_stream_next") == "true"
    assert (response.getheader("Content-Type"), response.getheader("X-A")) == ("text/event-stream", "b")
    assert response.getheader("Transfer-Encoding") == "chunked"
    assert response.getheader("x-request-id")
    assert response.read1() == b"one "
    fifo.write()  # the handler has gone no further: it waits for this
    assert response.read() == b"two three"
    connection.close()


def test_an_answer_of_one_part_is_no_stream(served: TorchServe) -> None:
    reply = served.ask("POST", "/predictions/talk", b"once")
    assert (reply.status, reply.body, reply.headers["Content-Length"]) == (200, b"whole", "5")
    assert reply.headers["ts_stream_next"] is None


def test_an_error_in_front_of_all_parts_has_its_own_status(served: TorchServe) -> None:
    reply = served.ask("POST", "/predictions/talk", b"fail")
    expected = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    assert (reply.status, reply.json) == (503, expected)


def test_an_error_behind_a_part_cuts_the_body_short(served: TorchServe) -> None:
    connection, response = begin(served, "break")
    assert (response.status, response.read1()) == (201, b"one ")
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    connection.close()


def test_a_client_that_hangs_up_ends_its_stream(served: TorchServe, fifo: Fifo) -> None:
    connection, response = begin(served, f"endless {fifo.path}")
    assert response.read1()
    response.close()
    connection.close()
    assert fifo.read() == b"CancelledError"
    assert served.ask("POST", "/predictions/talk", b"once").body == b"whole"  # the only worker is free again


def test_a_full_queue_refuses_what_it_has_no_room_for(served: TorchServe, fifo: Fifo) -> None:
    busy, streamed = begin(served, f"wait {fifo.path}")
    assert streamed.read1() == b"one "
    waiting = {}
    for _ in range(8):
        connection = http.client.HTTPConnection("127.0.0.1", served.inference_port, timeout=DEADLINE_S)
        connection.request("POST", "/predictions/talk/1.0", b"once")
        waiting[connection.sock] = connection
    # The only worker waits: what can be read before it goes on is no answer of it.
    (first, *_), _, _ = select.select(list(waiting), [], [], DEADLINE_S)
    refused = waiting.pop(first)
    response = refused.getresponse()
    expected = fault(503, "ServiceUnavailableException", f'Model "talk" Version 1.0"{NO_WORKER}')
    assert (response.status, json.loads(response.read())) == (503, expected)
    fifo.write()
    assert streamed.read() == b"two three"
    statuses = [connection.getresponse().status for connection in waiting.values()]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 2  # those that filled the queue
    for connection in (busy, refused, *waiting.values()):
        connection.close()
