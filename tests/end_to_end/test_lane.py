"""The lane as its clients see it: bytes in any pieces and any order, kept connections, and the road and back.

One lane serves all of it, so an answer on another connection tells that it has seen what was sent before.
"""

import gzip
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.raw_client import LIVE, Client, number_in, numbers, post, tensor, tensor_in
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import LOOK_AGAIN_S, Server, serving_to_the_end, title, wait_until

MODELS = {
    "grid": ("FP32", "-1, -1", 0),
    "word": ("STRING", "-1", 0),
    "slow": ("INT32", "1", 200),
    "infer": ("INT32", "1", 0),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for name, (data_type, dims, delay_ms) in MODELS.items():
        add_model(
            repository,
            name,
            f"""
            backend: "identity"
            input {{ name: "A" data_type: TYPE_{data_type} dims: [ {dims} ] }}
            output {{ name: "B" data_type: TYPE_{data_type} dims: [ {dims} ] }}
            instance_group {{ count: 1 kind: KIND_CPU }}
            parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
            """,
        )
    warnings = {"PYTHONWARNINGS": "default::ResourceWarning"}
    with serving_to_the_end(repository, "--http-process-count=1", environment=warnings) as running:
        lanes = [pid for pid in running.children if title(pid) == "shoal http"]
        yield running
        assert [pid for pid in running.children if pid in lanes and title(pid) == "shoal http"] == lanes
    assert b"Traceback" not in running.log, running.log.decode()
    # What a process has left open is said when it ends; gunicorn leaves what it makes its listeners of.
    left = [line for line in running.log.splitlines() if b"ResourceWarning: unclosed" in line]
    assert all(b"gunicorn/arbiter.py" in line or b"gunicorn/sock.py" in line for line in left), left


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client


def metric(server: Server, name: str, labels: str) -> int:
    lines = fetch(server.metrics_port, "/metrics").body.decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name + "{") and labels in line)


def wait_for(server: Server, name: str, labels: str, value: int) -> None:
    wait_until(
        lambda: metric(server, name, labels) == value,
        lambda: f"{name}{{{labels}}} is {metric(server, name, labels)}, not {value}",
    )


# --- one after the other on one connection ---


def test_kept_connection(client: Client) -> None:
    for number in range(50):
        data = struct.pack("<4f", *[number] * 4)
        assert number_in(client.ask(numbers("grid", number))) == number
        assert tensor_in(client.ask(tensor(data))) == data
        assert client.ask(LIVE) == (200, {"content-length": "0"}, b"")


def test_pipelined_requests_are_answered_in_order(client: Client) -> None:
    metadata_of_grid = b"GET /v2/models/grid HTTP/1.1\r\nHost: x\r\n\r\n"
    sent: list[bytes] = []
    for number in range(30):
        sent += [numbers("grid", number), LIVE, numbers("infer", number), numbers("nobody", number), metadata_of_grid]
        sent.append(tensor(struct.pack("<f", number)))
    client.send(b"".join(sent))
    replies = [client.reply() for _ in sent]
    for number in range(30):
        grid, live, infer, nobody, metadata, binary = replies[6 * number : 6 * number + 6]
        assert (number_in(grid), number_in(infer), tensor_in(binary)) == (number, number, struct.pack("<f", number))
        assert (live.status, live.body, nobody.status) == (200, b"", 404)
        assert json.loads(metadata.body)["name"] == "grid"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (LIVE, 200),
        (b"GET /v2/models/grid/config HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /v2/nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (post("grid", b"{"), 500),
        (numbers("grid", 7), 200),
        (tensor(bytes(8)), 200),
    ],
    ids=["health", "config", "no-path", "no-model", "no-JSON", "infer", "binary"],
)
def test_many_requests_at_once_to_a_client_that_reads_late(server: Server, request_: bytes, status: int) -> None:
    """More answers than the sockets hold, and more requests than the lane reads ahead."""
    count = 1500
    with Client(server, receive_buffer=4096) as client, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send, request_ * count)
        with Client(server) as other:
            assert other.ask(LIVE).status == 200
        replies = [client.reply() for _ in range(count)]
        sending.result()
        assert {reply.status for reply in replies} == {status}
        assert all(reply == replies[0] for reply in replies)
        assert client.ask(LIVE).status == 200


def test_requests_behind_one_for_the_road_are_answered_in_order(client: Client) -> None:
    """The hundredth finds more behind it than one message to the road can carry."""
    count = 2000
    sent = [numbers("grid", number, *[b"TE: trailers"] * (number in (100, 1000))) for number in range(count)]
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send, b"".join(sent))
        replies = [client.reply() for _ in range(count)]
        sending.result()
    assert [number_in(reply) for reply in replies] == list(range(count))
    assert (replies[99].took_the_road, replies[100].took_the_road) == (False, True)
    assert not client.ask(LIVE).took_the_road


def test_metadata_of_a_model_called_infer(client: Client) -> None:
    reply = client.ask(b"GET /v2/models/infer HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (reply.status, json.loads(reply.body)["name"]) == (200, "infer")


# --- in pieces ---

FLOATS = struct.pack("<4f", 1, 2, 3, 4)
LARGE = bytes(range(256)) * 400
#: What is sent, and at which bytes it is cut.
CUT = {
    "json": (numbers("grid", 5), range(1, 10_000)),
    "binary": (tensor(FLOATS), range(1, 10_000)),
    "health": (LIVE, range(1, 10_000)),
    "for the road": (tensor(FLOATS, b"TE: trailers"), range(1, 10_000, 11)),
    "in two reads": (tensor(LARGE), [1, 60, 130, 131, 132, 200, 300, 5000, 49_152, 65_536, 102_000]),
}


@pytest.mark.parametrize("kind", CUT)
def test_a_request_in_two_pieces(server: Server, client: Client, kind: str) -> None:
    sent, cuts = CUT[kind]
    expected = client.ask(sent)
    assert expected.status == 200
    with Client(server) as other:
        for cut in cuts:
            if cut >= len(sent):
                break
            client.send(sent[:cut])
            assert other.ask(LIVE).status == 200  # the lane has seen the first piece
            assert client.ask(sent[cut:])[::2] == expected[::2], cut


@pytest.mark.parametrize("kind", CUT)
def test_a_request_that_is_cut_short(server: Server, kind: str) -> None:
    sent, cuts = CUT[kind]
    for cut in cuts:
        if cut >= len(sent):
            break
        with Client(server) as client:
            rest = client.send(sent[:cut]).finish().rest()
            assert rest == b"" or rest.startswith(b"HTTP/1.1 400 "), cut
            assert rest.count(b"HTTP/1.1") <= 1, cut


def test_every_byte_alone(server: Server, client: Client) -> None:
    sent = numbers("grid", 5) + LIVE + tensor(FLOATS)
    with Client(server) as other:
        for index in range(len(sent)):
            client.send(sent[index : index + 1])
            assert other.ask(LIVE).status == 200
    assert number_in(client.reply()) == 5
    assert client.reply().status == 200
    assert tensor_in(client.reply()) == FLOATS


# --- clients that leave ---


def test_half_closed_client_gets_its_answer(server: Server) -> None:
    for sent in (numbers("slow", 3), numbers("slow", 3, b"TE: trailers")):
        with Client(server) as client:
            assert number_in(client.send(sent).finish().reply()) == 3
            assert client.rest() == b""


def test_half_closed_client_gets_all_its_answers(server: Server) -> None:
    with Client(server) as client:
        client.send(numbers("slow", 1) + LIVE + numbers("slow", 2) + numbers("nobody", 3) + tensor(FLOATS)).finish()
        assert number_in(client.reply()) == 1
        assert client.reply().status == 200
        assert number_in(client.reply()) == 2
        assert client.reply().status == 404
        assert tensor_in(client.reply()) == FLOATS
        assert client.rest() == b""


def test_what_a_vanished_client_had_queued_is_cancelled(server: Server) -> None:
    canceled = 'model="slow",reason="CANCELED"'
    before = metric(server, "nv_inference_request_failure", canceled)
    (worker,) = [pid for pid in server.children if "worker slow_0_0 " in title(pid)]
    os.kill(worker, signal.SIGSTOP)  # what is queued stays so
    try:
        holding = [Client(server).send(numbers("slow", number)) for number in range(4)]
        wait_for(server, "nv_inference_pending_request_count", 'model="slow"', 3)
        leaving = [Client(server).send(numbers("slow", 99)) for _ in range(2)]
        wait_for(server, "nv_inference_pending_request_count", 'model="slow"', 5)
        for client in leaving:
            client.reset()
        wait_for(server, "nv_inference_request_failure", canceled, before + 2)
    finally:
        os.kill(worker, signal.SIGCONT)
    for number, client in enumerate(holding):
        with client:
            assert number_in(client.reply()) == number
    wait_for(server, "nv_inference_pending_request_count", 'model="slow"', 0)


def test_clients_that_leave_at_any_time_leave_nothing(server: Server, client: Client) -> None:
    """More of them than there is memory for, if what they held were not given back."""
    (lane,) = [pid for pid in server.children if title(pid) == "shoal http"]
    large = tensor(bytes(4 << 20))
    assert client.ask(LIVE).status == 200
    num_descriptors = len(os.listdir(f"/proc/{lane}/fd"))
    for number in range(120):
        leaving = Client(server).send(large[: (1 << 20) + number])
        if number % 3 == 0:
            leaving.send(large[(1 << 20) + number :])
        leaving.reset() if number % 2 else leaving.socket.close()
        assert client.ask(LIVE).status == 200
    assert tensor_in(client.ask(tensor(FLOATS))) == FLOATS
    wait_for(server, "nv_inference_pending_request_count", 'model="grid"', 0)
    wait_until(lambda: len(os.listdir(f"/proc/{lane}/fd")) <= num_descriptors, lambda: "connections are left open")
    assert client.ask(large).status == 200


@pytest.mark.parametrize("held_s", [0.0, 1.7], ids=["while-the-worker-lends", "after-it-was-copied"])
def test_a_slow_reader_holds_up_no_other_client(server: Server, client: Client, held_s: float) -> None:
    data = struct.pack("<I", 0x01234567) * (2 << 20)
    with Client(server, receive_buffer=65536) as slow:
        slow.send(tensor(data))
        first = slow.socket.recv(1)
        end = time.monotonic() + held_s
        number = 0
        while number < 50 or time.monotonic() < end:
            number += 1
            assert number_in(client.ask(numbers("grid", number))) == number
            assert client.ask(LIVE).status == 200
            time.sleep(LOOK_AGAIN_S if number > 50 else 0)
        slow.data = first
        assert tensor_in(slow.reply()) == data
        assert number_in(slow.ask(numbers("grid", 3))) == 3


# --- the road and back ---


def test_bodies_that_never_end_leave_memory_for_the_others(server: Server) -> None:
    """A hundred of 1 MiB blocks are more than the slab has."""
    begun = tensor(bytes(1 << 19))[: 1 << 18]
    stalled = []
    try:
        for _ in range(100):
            stalled.append(Client(server))
            stalled[-1].send(begun)
        with Client(server) as client:
            for number in range(20):
                data = struct.pack("<4f", *[number] * 4)
                assert tensor_in(client.ask(tensor(data))) == data
                assert number_in(client.ask(numbers("grid", number))) == number
    finally:
        for each in stalled:
            each.socket.close()


def chunked(body: bytes) -> bytes:
    head = post("grid", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"


def test_one_connection_takes_the_road_and_comes_back(client: Client) -> None:
    plain = numbers("grid", 7)
    body = plain.partition(b"\r\n\r\n")[2]
    expected = client.ask(plain)
    detours = {
        "gzip": post("grid", gzip.compress(body), b"Content-Encoding: gzip"),
        "chunked": chunked(body),
        "expectation": numbers("grid", 7, b"Expect: 100-continue"),
        "long JSON": post("grid", body.ljust(300_000)),
        "another method": b"PUT /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    }
    for name, sent in detours.items():
        reply = client.ask(sent)
        assert reply.took_the_road, name
        if name == "another method":
            assert reply.status == 405
        else:
            assert (reply.status, reply.body) == expected[::2], name
        assert client.ask(plain) == expected, name
        assert client.ask(LIVE) == (200, {"content-length": "0"}, b""), name


def test_of_clients_that_accept_compression_those_of_models_with_long_answers_take_the_road(client: Client) -> None:
    accepts = b"Accept-Encoding: gzip, deflate"
    for _ in range(3):
        reply = client.ask(numbers("infer", 7, accepts))
        assert (number_in(reply), reply.took_the_road, "content-encoding" in reply.headers) == (7, False, False)
    data = FLOATS * (1 + 20_000 // len(FLOATS))
    assert tensor_in(client.ask(tensor(data))) == data  # how long its answers are is not known before
    for _ in range(3):
        reply = client.ask(tensor(data, accepts))
        assert (reply.took_the_road, reply.headers["content-encoding"]) == (True, "gzip")
        assert tensor_in(reply._replace(body=gzip.decompress(reply.body))) == data
        assert tensor_in(client.ask(tensor(data))) == data
        assert number_in(client.ask(numbers("infer", 7, accepts))) == 7
    short = client.ask(numbers("grid", 7, accepts))
    assert (number_in(short), "content-encoding" in short.headers) == (7, False)


@pytest.mark.parametrize("data", [FLOATS, LARGE], ids=len)
def test_a_body_that_waits_for_its_expectation(client: Client, data: bytes) -> None:
    """As curl does with what is large."""
    head, blank, body = tensor(data, b"Expect: 100-continue").partition(b"\r\n\r\n")
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    for _ in range(2):
        client.send(head + blank)
        assert client.socket.recv(len(go_on), socket.MSG_WAITALL) == go_on
        reply = client.ask(body)
        assert (tensor_in(reply), reply.took_the_road) == (data, True)
        assert not client.ask(LIVE).took_the_road


def test_two_hundred_connections_at_once(server: Server) -> None:
    clients = [Client(server) for _ in range(200)]
    for fields in ((), (b"TE: trailers",), ()):
        for number, client in enumerate(clients):
            client.send(numbers("grid", number, *fields))
        replies = [client.reply() for client in clients]
        assert [number_in(reply) for reply in replies] == list(range(200))
        assert {reply.took_the_road for reply in replies} == {bool(fields)}
    for client in clients:
        client.socket.close()


# --- the end of a connection ---


@pytest.mark.parametrize("field", [b"Connection: close", b"connection: Close"])
@pytest.mark.parametrize("sent", [LIVE, numbers("grid", 1), numbers("nobody", 1), tensor(LARGE)], ids=len)
def test_connection_close_is_honoured(client: Client, sent: bytes, field: bytes) -> None:
    expected = client.ask(sent)
    reply = client.ask(sent.replace(b"Host: x\r\n", b"Host: x\r\n" + field + b"\r\n"))
    assert reply == expected._replace(headers=expected.headers | {"connection": "close"})
    assert client.rest() == b""


def test_close_beside_other_options_is_honoured(client: Client) -> None:
    """As libwww-perl sends it."""
    reply = client.ask(LIVE.replace(b"Host: x\r\n", b"Host: x\r\nTE: deflate\r\nConnection: TE, close\r\n"))
    assert (reply.status, reply.took_the_road, reply.headers["connection"]) == (200, True, "close")
    assert client.rest() == b""


def test_http_1_0(server: Server) -> None:
    for sent, field, closes in [
        (LIVE, b"", True), (numbers("grid", 4), b"", True), (numbers("grid", 4), b"Connection: keep-alive\r\n", False),
    ]:  # fmt: skip
        with Client(server) as client:
            reply = client.ask(sent.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\n" + field))
            assert (reply.status, reply.took_the_road) == (200, True)
            if closes:
                assert client.rest() == b""
            else:
                assert number_in(client.ask(numbers("grid", 5))) == 5
