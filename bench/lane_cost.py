"""Measures the instructions of a lane alone for a small inference: python -m bench.lane_cost [CASE...]

The lane runs its own loop, over real sockets and real shared memory, in this one process. Between two passes of the
loop the program plays all other processes: clients, batcher and worker. Only the lane's instructions are counted, so
two seconds show the effect of a change to it, on a machine however busy. Half of the clients are a pass ahead of the
others, so that a pass takes requests and delivers replies, as it does under load.

  python -m bench.lane_cost                       all cases
  python -m bench.lane_cost --opcodes grpc-c16    where its bytecode runs, by function
"""

import argparse
import os
import socket
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

from hpack import Encoder

from bench.background_load import raw
from bench.errors import BenchmarkError
from bench.grpc_words import METHOD, frame, grpc_request
from bench.own_instructions import OwnInstructions
from bench.workloads import IDENTITY_16, PLACE_OF_ID, BenchModel, identified, v2_request
from shoal.control import Channel
from shoal.datatypes import FP32
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.http.http_lane import HttpLane
from shoal.frontend.lane_loop import GunicornHandle, Lane
from shoal.request import InferResponse, TensorRef, pack_response
from shoal.shm import layout
from shoal.shm.doorbell import Doorbell
from shoal.star.place import Place
from tests.frontend.lane_star import Star

#: The model `same` of the tests' star (tests/frontend/lane_star.py) as a BenchModel: with little and with much data.
SMALL = replace(IDENTITY_16, name="same", dims=(1, 16), input_names=("A",), output_names=("OUT_A",))
LARGE = replace(SMALL, dims=(1, 3 * 224 * 224))
#: The end of each output, which no input has: a client counts answers by it.
MARK = array("f", range(100, 116)).tobytes()
SLAB_BYTES = 64 << 20
WARM_UP_CALLS = 500
GRACE_S = 5.0  # seconds for the lane to end, when its clients have closed their connections


class World(Star):
    """The star with a bell for the lane, in which every request has the same answer."""

    def __init__(self, model: BenchModel) -> None:
        super().__init__(SLAB_BYTES)
        self.lane_bell = Doorbell.create()
        nbytes = 4 * prod(model.dims)
        block = self.worker_slab.allocate(nbytes + 4096)
        assert block is not None
        header = pack_response(InferResponse((TensorRef("OUT_A", FP32.wire, model.dims, 0, nbytes),), {}))
        block.memory[nbytes - len(MARK) : nbytes] = MARK
        block.memory[nbytes : nbytes + len(header)] = header
        self._answer = block.ref, layout.pack_span(nbytes, len(header))

    def reply_to_all(self) -> None:
        """Answer all requests, as batcher and workers would; the block may be freed any number of times."""
        asked = [each[1] for each in self._requests.drain() if each[0] == layout.REQUEST]
        for number in asked:
            words = layout.record(layout.REPLY, number)
            self._replies.push((*words[:3], *self._answer, *words[5:]))
        if asked:
            self._replies.publish()
            self.lane_bell.ring()


class LoadClient:
    """One connection that sends a number of requests at once, and again as soon as all are answered."""

    def __init__(self, port: int, model: BenchModel, num_at_once: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._model = model
        self._num_at_once = num_at_once
        # Changed by ask and receive.
        self._num_waiting = 0
        self._unsent = memoryview(b"")
        self._end = b""  # of the received bytes: a mark may arrive in two pieces

    def ask(self) -> None:
        """Send all requests, in one write where the socket takes it."""
        self._num_waiting = self._num_at_once
        self._unsent = memoryview(b"".join([self.request() for _ in range(self._num_at_once)]))
        self._send()

    def receive(self) -> int:
        """The number of answers that have arrived; after the last one, the requests are sent again."""
        self._send()
        try:
            data = self._end + self._socket.recv(1 << 20)
        except BlockingIOError:
            return 0
        num_answers = data.count(MARK)
        self._end = data[1 - len(MARK) :]
        self._num_waiting -= num_answers
        if num_answers and not self._num_waiting:
            self.ask()
        return num_answers

    def _send(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def close(self) -> None:
        """Close the connection, whatever is still to arrive."""
        self._socket.close()

    def request(self) -> bytes:
        """The bytes of the next request; raises NotImplementedError unless a subclass implements this."""
        raise NotImplementedError


class HttpLoadClient(LoadClient):
    """An HTTP client that sends the same bytes each time."""

    def __init__(self, port: int, model: BenchModel, num_at_once: int) -> None:
        super().__init__(port, model, num_at_once)
        self._bytes = raw(v2_request(model, "binary"))

    def request(self) -> bytes:
        """The bytes of the next request, always the same."""
        return self._bytes


class DistinctHttpLoadClient(LoadClient):
    """An HTTP client each of whose requests has an id and a trace header of its own, as bench/load.lua sends them."""

    def __init__(self, port: int, model: BenchModel, num_at_once: int) -> None:
        super().__init__(port, model, num_at_once)
        asked = identified(v2_request(model, "binary"))
        traced = replace(asked, headers={**asked.headers, "traceparent": f"00-{PLACE_OF_ID * 2}-{PLACE_OF_ID}-01"})
        self._bytes = raw(traced)
        self._number = self._socket.getsockname()[1] << 32

    def request(self) -> bytes:
        """The bytes of the next request, like no earlier one of any client."""
        self._number += 1
        return self._bytes.replace(PLACE_OF_ID.encode(), b"%016x" % self._number)


class GrpcLoadClient(LoadClient):
    """A gRPC client with a stream for each request: HEADERS of references into the table, once that is filled, and DATA
    in frames as large as most clients make them. Like h2load, and unlike others, it sends a content-length."""

    HEAD = (
        (":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "localhost:8001"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "lane-cost"),
    )  # fmt: skip
    FRAME_BYTES = 16 * 1024

    def __init__(self, port: int, model: BenchModel, num_at_once: int) -> None:
        super().__init__(port, model, num_at_once)
        body = grpc_request(model).body
        starts = range(0, len(body), self.FRAME_BYTES)
        self._pieces = [(body[start : start + self.FRAME_BYTES], int(start == starts[-1])) for start in starts]
        self._head = (*self.HEAD, ("content-length", str(len(body))))
        self._encoder = Encoder()
        self._stream_id = -1
        # Windows for all data that will ever arrive.
        settings = frame(4, 0, 0, b"\0\4\x7f\xff\xff\xff") + frame(8, 0, 0, b"\x7f\0\0\0")
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)

    def request(self) -> bytes:
        """The frames of the next request."""
        self._stream_id += 2
        frames = [frame(1, 4, self._stream_id, self._encoder.encode(self._head))]
        frames += [frame(0, is_last, self._stream_id, piece) for piece, is_last in self._pieces]
        return b"".join(frames)


class DistinctGrpcLoadClient(GrpcLoadClient):
    """A gRPC client each of whose calls has an id and a trace of its own, the trace as gRPC's own libraries send it: a
    literal that does not enter the table."""

    def __init__(self, port: int, model: BenchModel, num_at_once: int) -> None:
        super().__init__(port, model, num_at_once)
        body = grpc_request(model, request_id=PLACE_OF_ID).body
        self._pieces = [(body, 1)]
        self._head = (*self.HEAD, ("content-length", str(len(body))))
        self._number = self._socket.getsockname()[1] << 32

    def request(self) -> bytes:
        """The frames of the next request, like no earlier one of any client."""
        self._stream_id += 2
        self._number += 1
        ((body, _),) = self._pieces
        body = body.replace(PLACE_OF_ID.encode(), b"%016x" % self._number)
        return frame(1, 4, self._stream_id, self.block()) + frame(0, 1, self._stream_id, body)

    def trace(self) -> str:
        """The trace of the next request."""
        return f"00-{self._number * 0x9E3779B97F4A7C15 % (1 << 128):032x}-{self._number:016x}-01"

    def block(self) -> bytes:
        """The header block of the next request."""
        trace = self.trace().encode()
        literal = b"\0%c%b%c%b" % (len(b"traceparent"), b"traceparent", len(trace), trace)
        return self._encoder.encode(self._head) + literal


class IndexingGrpcLoadClient(DistinctGrpcLoadClient):
    """A gRPC client that enters each call's trace and timeout into HPACK's table, as grpc-go, grpc-java and nghttp2 do:
    earlier fields move in the table with each call, leave it after some 40, and are entered again."""

    def block(self) -> bytes:
        """The header block of the next request."""
        own = ("grpc-timeout", f"{999_900 + self._number % 100}u"), ("traceparent", self.trace())
        return self._encoder.encode((*self._head, *own))


@dataclass(frozen=True, slots=True)
class Case:
    """A lane under one load."""

    name: str
    lane: type[Lane[Any]]
    client: type[LoadClient]
    num_clients: int
    num_at_once: int = 1
    model: BenchModel = SMALL


CASES = (
    Case("http-c1", HttpLane, HttpLoadClient, 1),
    Case("http-c16", HttpLane, HttpLoadClient, 16),
    Case("http-ids-c1", HttpLane, DistinctHttpLoadClient, 1),
    Case("http-ids-c16", HttpLane, DistinctHttpLoadClient, 16),
    Case("http-large", HttpLane, HttpLoadClient, 8, model=LARGE),
    Case("grpc-c1", GrpcLane, GrpcLoadClient, 1),
    Case("grpc-c16", GrpcLane, GrpcLoadClient, 16),
    Case("grpc-ids-c16", GrpcLane, DistinctGrpcLoadClient, 16),
    Case("grpc-indexed-c16", GrpcLane, IndexingGrpcLoadClient, 16),
    Case("grpc-s16", GrpcLane, GrpcLoadClient, 1, 16),  # streams of one connection
    Case("grpc-large", GrpcLane, GrpcLoadClient, 8, model=LARGE),
)


class Opcodes:
    """Counts bytecodes by function while it is switched on, which makes them a hundred times slower."""

    def __init__(self) -> None:
        self.is_on = False
        self.counts: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> "Opcodes | None":
        if not self.is_on:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            code = frame.f_code
            self.counts[Path(code.co_filename).name, code.co_name] += 1
        return self


class Run:
    """A case, from the first connection on. Between two passes the lane calls `is_alive`."""

    def __init__(self, case: Case, num_calls: int, opcodes: Opcodes | None) -> None:
        self._case = case
        self._num_calls = num_calls
        self._opcodes = opcodes
        self._counter = OwnInstructions() if opcodes is None else None
        self._own = self._counter.own if self._counter is not None else 0
        self._world = World(case.model)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        # Changed by `is_alive`.
        self._clients: list[LoadClient] = []
        self._silent: deque[LoadClient] = deque()  # clients that have not sent a request yet
        self._num_warm_up = WARM_UP_CALLS if case.model is SMALL else WARM_UP_CALLS // 10
        self._mark, self._mark_s = 0, 0.0
        #: Figures of the lane since it was warm.
        self.instructions, self.cpu_s, self.num_answers, self.num_passes = 0, 0.0, 0, 0

    def run(self) -> None:
        """Run the lane until the calls are answered."""
        case, world = self._case, self._world
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        road, road_end = socket.socketpair()
        os.environ["SHOAL_SEND_FD"] = str(road.detach())
        place = Place(world.port, world.lane_bell, Channel(ours), world.state.models, 300.0, 630.0)
        front_end = FrontEnd(world.state, place)
        host = GunicornHandle([self._listener], theirs.fileno(), self.is_alive, lambda: None)
        lane = case.lane(front_end, host)
        port: int = self._listener.getsockname()[1]
        self._clients = [case.client(port, case.model, case.num_at_once) for _ in range(case.num_clients)]
        self._silent.extend(self._clients)
        if self._opcodes is not None:
            sys.settrace(self._opcodes)
        lane.run(GRACE_S)
        sys.settrace(None)
        for each in (ours, theirs, road_end, self._listener):
            each.close()
        if self._counter is not None:
            self._counter.close()

    def is_alive(self) -> bool:
        """Called by the lane between passes: counts the last pass, plays the other processes; False ends the lane."""
        if self.num_answers >= self._num_calls:
            self._world.reply_to_all()
            return False
        instructions, cpu_s = self._instructions(), time.thread_time()
        if self._opcodes is not None:
            self._opcodes.is_on = False
        if not self._num_warm_up:
            self.instructions += instructions - self._mark - self._own
            self.cpu_s += cpu_s - self._mark_s
            self.num_passes += 1
        self._world.reply_to_all()
        num_answers = sum([each.receive() for each in self._clients])
        if self._num_warm_up:
            self._num_warm_up = max(0, self._num_warm_up - num_answers)
        else:
            self.num_answers += num_answers
        for _ in range(min(len(self._silent), max(1, self._case.num_clients // 2))):
            self._silent.popleft().ask()
        if self.num_answers >= self._num_calls:
            for client in self._clients:
                client.close()
            return self.is_alive()
        if self._opcodes is not None:
            self._opcodes.is_on = not self._num_warm_up
        self._mark_s, self._mark = time.thread_time(), self._instructions()
        return True

    def _instructions(self) -> int:
        """The instructions of this thread so far; 0 where bytecodes are counted instead."""
        return self._counter.read() if self._counter is not None else 0


def report(case: Case, num_calls: int, with_opcodes: bool, say: Callable[[str], object] = print) -> None:
    """Run a case and print its figures."""
    opcodes = Opcodes() if with_opcodes else None
    run = Run(case, num_calls, opcodes)
    run.run()
    num = run.num_answers
    if opcodes is None:
        say(
            f"{case.name:16} {run.instructions / num / 1000:8.1f}k instructions {run.cpu_s / num * 1e6:8.1f} µs CPU "
            f"per call, {num / run.num_passes:.2f} calls per pass"
        )
        return
    say(f"{case.name:16} {opcodes.counts.total() / num:.0f} opcodes per call")
    for (file, function), count in opcodes.counts.most_common(60):
        say(f"{count / num:8.1f}  {file:20} {function}")


def main() -> None:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    parser.add_argument("--calls", type=int, default=5000, help="per case (default: 5000)")
    parser.add_argument("--opcodes", action="store_true", help="count bytecodes by function instead")
    options = parser.parse_args()
    for case in CASES:
        if not options.cases or case.name in options.cases:
            num_calls = options.calls if case.model is SMALL else options.calls // 10
            report(case, min(num_calls, 200) if options.opcodes else num_calls, options.opcodes)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.lane_cost: {error}")
