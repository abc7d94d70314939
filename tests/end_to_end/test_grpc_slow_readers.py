"""Clients of streams that do not read, of gRPC and of HTTP: others of the model are answered, and nothing is left."""

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client

from shoal.frontend.grpc.messages import service
from tests.end_to_end.asking import tensors
from tests.end_to_end.raw_client import Client as RawClient
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, only, serving, title
from tests.end_to_end.window_client import ORDINARY, WindowClient

#: Sends COUNT responses of NBYTES each before `execute` returns: who holds it up holds up all its clients.
FLOOD = python_model("""
    def execute(self, requests):
        for request in requests:
            count, nbytes = (pb_utils.get_input_tensor_by_name(request, n).as_numpy()[0] for n in ("COUNT", "NBYTES"))
            sender = request.get_response_sender()
            for number in range(count):
                if request.is_cancelled():
                    break
                out = np.full(nbytes // 4, 1 << 30, np.int32)
                out[0] = number
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")
FLOOD_CONFIG = config_text(
    "python", "COUNT INT32 1, NBYTES INT32 1", "OUT INT32 -1", "model_transaction_policy { decoupled: true }", count=1
)
WHOLE_CONFIG = config_text("identity", "IN INT32 -1", "OUT INT32 -1", count=1)
#: Sends a response every millisecond, no more than its client takes, until the client opens and closes a pipe.
DRIP = """
import os
import select

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, number = request.get_response_sender(), 0
            pipe = os.open("{path}", os.O_RDONLY | os.O_NONBLOCK)
            ended = select.poll()
            ended.register(pipe, select.POLLHUP)
            while not ended.poll(1):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
                number += 1
            os.close(pipe)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DRIP_CONFIG = config_text(
    "python",
    "IN INT32 -1",
    "OUT INT32 1",
    "model_transaction_policy { decoupled: true }",
    count=1,
    execution_timeout_ms="1000",
)
INFER, STREAM, LIVE = (
    f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelStreamInfer", "ServerLive")
)
RESOURCE_EXHAUSTED = "8"
#: The limit of `drip`, how late the supervisor may look at it (a second where no instance executes), and some more.
LONGER_THAN_THE_LIMIT_S = 2.5


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of `drip`."""
    path = tmp_path_factory.mktemp("drip") / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pipe: Path) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    drip = DRIP.replace("{path}", str(pipe))
    for name, config, code in (
        ("flood", FLOOD_CONFIG, FLOOD), ("whole", WHOLE_CONFIG, ""), ("drip", DRIP_CONFIG, drip),
    ):  # fmt: skip
        add_model(models, name, config, code)
    flags = ["--grpc-port=0", "--http-process-count=1", "--shm-worker-slab-mib=16", *only("flood", "whole", "drip")]
    with serving(models, *flags) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))
        assert server.stop() == 0, server.log.decode()
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture
def reader(server: Server) -> Iterator[Any]:
    """Another client of the same models, which reads."""
    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as opened:
        yield opened


@pytest.fixture
def stalled(server: Server) -> Iterator[WindowClient]:
    """A client whose windows are closed: of what it is answered it reads nothing until it says so."""
    with WindowClient(server.grpc_port) as opened:
        yield opened


def flood(count: int, nbytes: int) -> bytes:
    request = service.ModelInferRequest(model_name="flood", id="f")
    for name, value in (("COUNT", count), ("NBYTES", nbytes)):
        request.inputs.add(name=name, datatype="INT32", shape=[1])
        request.raw_input_contents.append(np.array([value], np.int32).tobytes())
    return bytes(request.SerializeToString())


def whole(nbytes: int) -> bytes:
    request = service.ModelInferRequest(model_name="whole", id="w")
    request.inputs.add(name="IN", datatype="INT32", shape=[nbytes // 4])
    request.raw_input_contents.append(bytes(nbytes))
    return bytes(request.SerializeToString())


def flood_inputs(count: int, nbytes: int) -> list[client.InferInput]:
    return tensors({"COUNT": np.array([count], np.int32), "NBYTES": np.array([nbytes], np.int32)}, api=client)


def is_answered(reader: Any, model: str) -> None:
    """Another client's request is."""
    if model == "whole":
        four = tensors({"IN": np.arange(4, dtype=np.int32)}, api=client)
        assert reader.infer("whole", four).as_numpy("OUT").tolist() == [0, 1, 2, 3]
        return
    answers: Any = queue.SimpleQueue()
    reader.start_stream(lambda result, error: answers.put((result, error)))
    reader.async_stream_infer("flood", flood_inputs(1, 4))
    result, error = answers.get(timeout=DEADLINE_S)
    assert error is None
    assert result.as_numpy("OUT").tolist() == [0]
    reader.stop_stream()


def test_small_responses_wait_for_their_client_and_hold_up_no_other(stalled: WindowClient, reader: Any) -> None:
    stream = stalled.call(STREAM, flood(3000, 400), ends=True)
    is_answered(reader, "flood")
    stalled.open_windows()
    messages = stalled.messages(stream)
    numbers = [
        int(np.frombuffer(each.infer_response.raw_output_contents[0], np.int32)[0])
        for each in map(service.ModelStreamInferResponse.FromString, messages)
    ]
    assert numbers == list(range(3000))
    assert stalled.trailers(stream)["grpc-status"] == "0"


def test_a_slow_callback_holds_up_no_other_client(server: Server, reader: Any) -> None:
    """tritonclient reads nothing more meanwhile. How much gRPC and the kernel take before that differs; these responses
    are more, and what of them the server does not keep, the client is told of."""
    count, called, goes_on = 12_000, threading.Event(), threading.Event()
    answers: Any = queue.SimpleQueue()

    def callback(result: Any, error: Any) -> None:
        called.set()
        goes_on.wait(DEADLINE_S)
        answers.put(error or int(result.as_numpy("OUT")[0]))

    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as opened:
        slow: Any = opened
        slow.start_stream(callback)
        slow.async_stream_infer("flood", flood_inputs(count, 8000))
        try:
            assert called.wait(DEADLINE_S)
            is_answered(reader, "flood")
        finally:
            goes_on.set()
        numbers = [answers.get(timeout=DEADLINE_S)]
        while isinstance(numbers[-1], int) and numbers[-1] < count - 1:
            numbers.append(answers.get(timeout=DEADLINE_S))
        if not isinstance(numbers[-1], int):
            assert "does not read its responses" in str(numbers.pop())
        assert numbers == list(range(len(numbers)))
        slow.stop_stream()


def test_a_stream_that_goes_on_for_longer_than_the_execution_limit_is_no_hang(
    server: Server, reader: Any, pipe: Path
) -> None:
    """Its client reads, and each response is a sign of life."""
    (worker,) = [pid for pid in server.children if title(pid).startswith("shoal worker drip")]
    answers: Any = queue.SimpleQueue()
    reader.start_stream(lambda result, error: answers.put(error or result))
    tensor = client.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    end_s = time.monotonic() + LONGER_THAN_THE_LIMIT_S
    reader.async_stream_infer("drip", [tensor], enable_empty_final_response=True)
    numbers = []
    while (answer := answers.get(timeout=DEADLINE_S)).as_numpy("OUT") is not None:
        numbers.append(int(answer.as_numpy("OUT")[0]))
        if time.monotonic() > end_s:
            os.close(os.open(pipe, os.O_RDWR))
    reader.stop_stream()
    assert numbers == list(range(len(numbers)))
    assert answer.as_numpy("OUT") is None
    assert answer.get_response().parameters["triton_final_response"].bool_param
    assert title(worker)  # the same one


def test_a_stream_that_is_not_read_ends_and_its_model_is_told(stalled: WindowClient, reader: Any) -> None:
    stream = stalled.call(STREAM, flood(1_000_000, 1 << 16), ends=True)
    is_answered(reader, "flood")
    trailers = stalled.trailers(stream)
    assert trailers["grpc-status"] == RESOURCE_EXHAUSTED
    assert "does not read its responses" in trailers["grpc-message"]
    live = stalled.call(LIVE, b"", ends=True)  # the connection goes on
    stalled.open_windows()
    assert len(stalled.messages(live)) == 1


def test_events_wait_for_their_client_and_hold_up_no_other(server: Server, reader: Any) -> None:
    """Over HTTP: the client reads that its answer begins, and 6.8 MB of events wait: more than the sockets take, and
    less than the lane keeps for one connection."""
    body = b'{"COUNT": 700, "NBYTES": 3500}'
    with RawClient(server, receive_buffer=262_144) as stalled:
        stalled.send(b"POST /v2/models/flood/generate_stream HTTP/1.1\r\nHost: x\r\n")
        stalled.send(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        received = stalled.socket.recv(100)
        is_answered(reader, "flood")
        while not received.endswith(b"0\r\n\r\n"):
            received += stalled.socket.recv(1 << 20)
        assert received.count(b"data: {") == 700


def private_bytes(server: Server) -> int:
    """Of the gRPC lane."""
    (lane,) = [pid for pid in server.children if title(pid) == "shoal grpc"]
    (line,) = [each for each in Path(f"/proc/{lane}/status").read_text().splitlines() if each.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def test_unfinished_messages_take_a_bounded_part_of_the_lane_s_memory(
    server: Server, stalled: WindowClient, reader: Any
) -> None:
    stalled.open_windows()
    is_answered(reader, "whole")
    before = private_bytes(server)
    message = whole(46_000)
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    calls = [stalled.call(INFER) for _ in range(1000)]
    for call in calls:
        stalled.send(call, framed[:45_000])
    is_answered(reader, "whole")
    (last,) = [stalled.call(LIVE, b"", ends=True)]
    assert len(stalled.messages(last)) == 1  # all before it has been looked at
    assert private_bytes(server) - before < 20 << 20
    for call in calls[:50]:
        stalled.send(call, framed[45_000:], ends=True)
        assert stalled.trailers(call)["grpc-status"] == "0"
    assert stalled.trailers(calls[-1])["grpc-status"] == RESOURCE_EXHAUSTED


def test_messages_of_streams_that_wait_for_a_model_leave_memory_to_others(server: Server, reader: Any) -> None:
    """More than the lane's slab takes."""
    is_answered(reader, "whole")
    (worker,) = [pid for pid in server.children if title(pid).startswith("shoal worker whole")]
    with ExitStack() as stack:
        clients = [stack.enter_context(WindowClient(server.grpc_port)) for _ in range(5)]
        os.kill(worker, signal.SIGSTOP)
        stack.callback(os.kill, worker, signal.SIGCONT)
        calls = []
        for each in clients:
            each.open_windows()
            calls += [(each, each.call(STREAM, whole(1 << 20), ends=True)) for _ in range(8)]
            assert len(each.messages(each.call(LIVE, b"", ends=True))) == 1  # all before it has come
        is_answered(reader, "flood")
        os.kill(worker, signal.SIGCONT)
        for each, call in calls:
            (message,) = each.messages(call)
            answer = service.ModelStreamInferResponse.FromString(message)
            assert len(answer.infer_response.raw_output_contents[0]) == 1 << 20, answer.error_message


@pytest.mark.parametrize("window", [0, ORDINARY])
def test_results_that_are_not_read_hold_up_no_other_client(server: Server, reader: Any, window: int) -> None:
    """More than the worker's memory and the client's share of the front end's."""
    with WindowClient(server.grpc_port, window) as stalled:
        hold_up_no_other_client(stalled, reader)


def hold_up_no_other_client(stalled: WindowClient, reader: Any) -> None:
    calls = [stalled.call(INFER, whole(1 << 20), ends=True) for _ in range(24)]
    for _ in range(3):  # so that something comes of it all the while
        stalled.call(LIVE, b"", ends=True)
        is_answered(reader, "whole")
    assert stalled.first_end(calls)["grpc-status"] == RESOURCE_EXHAUSTED
    stalled.open_windows()
    ends = [stalled.trailers(call)["grpc-status"] for call in calls]
    assert set(ends) == {"0", RESOURCE_EXHAUSTED}
    for call, status in zip(calls, ends, strict=True):
        if status == "0":
            (message,) = stalled.messages(call)
            assert len(service.ModelInferResponse.FromString(message).raw_output_contents[0]) == 1 << 20
