"""The row of memory that clients hold by what they begin and do not finish, in all processes of the server together.

Measured is the proportional set size, which has slabs, too; what the kernel buffers for a socket is not in it.
"""

import resource
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import Server, descendants, serving
from tests.end_to_end.traffic import MODEL
from tests.frontend.grpc.http2.peer import DATA, HEADERS, PREFACE, SETTINGS, frame
from tests.reliability.row import Course

KIB, MIB = 1 << 10, 1 << 20
POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
#: ":method POST", ":scheme http", ":authority x", and the path, type and "te" of a call, as literals.
CALL = (
    b"\x83\x86\x01\x01x\x04\x2c/inference.GRPCInferenceService/ModelInfer"
    b"\x0f\x10\x10application/grpc\0\x02te\x08trailers"
)
UPLOAD_MIB, SLAB_MIB = 64, 64
#: Small bodies on a lane, bodies on the road, half of HTTP's slab, half of gRPC's, and what gRPC keeps beside it.
MOST_MIB = 16 + UPLOAD_MIB + SLAB_MIB // 2 + SLAB_MIB // 2 + 64
#: Memory is looked at for so long after the last byte, and again once the connections are closed.
LOOK_S, BACK_S = 1.5, 5.0


class Beginning(NamedTuple):
    """What a connection sends; many do."""

    name: str
    is_grpc: bool
    data: bytes
    number: int


GREETING = PREFACE + frame(SETTINGS, 0, 0)
HALF_HEAD = POST + b"A: " + b"a" * 7 * KIB
#: A literal field with a value of 15 KiB and more, of which that has come.
HALF_BLOCK = GREETING + frame(HEADERS, 0, 1, CALL + b"\0\x01a\x7f\x81\x77" + b"a" * 15 * KIB)
SMALL_BODY = POST + b"Content-Length: 41000\r\n\r\n" + b"{" * 40 * KIB
CHUNKS = POST + b"Transfer-Encoding: chunked\r\n\r\n100001\r\n" + bytes(MIB)
LARGE_BODY = POST + b"Content-Length: 4194304\r\nInference-Header-Content-Length: 90\r\n\r\n" + bytes(MIB)
#: A message of 256 KiB, of which 60 have come: less than a connection's window.
MESSAGE = GREETING + frame(HEADERS, 4, 1, CALL) + frame(DATA, 0, 1, b"\0" + (256 * KIB).to_bytes(4, "big"))
MESSAGE += frame(DATA, 0, 1, bytes(15 * KIB)) * 4
SMALL = (
    Beginning("nothing", False, b"", 1000),
    Beginning("half a head of 7 KiB", False, HALF_HEAD, 1000),
    Beginning("nothing over gRPC", True, GREETING, 1000),
    Beginning("half a header block of 15 KiB", True, HALF_BLOCK, 1000),
)
LARGE = (
    Beginning("40 KiB of a body", False, SMALL_BODY, 1200),
    Beginning("1 MiB of chunks", False, CHUNKS, 200),
    Beginning("1 MiB of a body of 4 MiB", False, LARGE_BODY, 200),
    Beginning("60 KiB of a message", True, MESSAGE, 2000),
)


def run(course: Course) -> None:
    """Begin requests of every kind and finish none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    add_model(course.directory / "models", "m", MODEL)
    flags = ["--http-process-count=1", "--grpc-process-count=1", "--grpc-port=0", f"--max-upload-mib={UPLOAD_MIB}"]
    share = course.pick(1, 4)  # of a quarter of the connections
    small, large = [[each._replace(number=each.number * share // 4) for each in kind] for kind in (SMALL, LARGE)]
    with serving(course.directory / "models", *flags, f"--shm-client-slab-mib={SLAB_MIB}") as server:
        for each in (*SMALL, *LARGE):  # what a first time takes for good
            hold(server, [each._replace(number=5)], 0.2)
        by_name = hold(server, small, LOOK_S)
        told = ", ".join(f"{each.name} {by_name[each.name] / each.number / KIB:.1f} KiB" for each in small)
        is_met = all(by_name[each.name] <= 32 * KIB * each.number for each in small)
        course.found("each", told, is_met=is_met)
        by_name = hold(server, large, LOOK_S)
        total = sum(by_name.values())
        told = ", ".join(f"{each.number} × {each.name}: {by_name[each.name] / MIB:.0f} MiB" for each in large)
        course.found("all", f"{total / MIB:.0f} MiB at once ({told})", is_met=total <= MOST_MIB * MIB)
        at_rest = memory(server)
        hold(server, large, LOOK_S)
        end_s = time.monotonic() + BACK_S
        while (more := memory(server) - at_rest) > 8 * MIB and time.monotonic() < end_s:
            time.sleep(0.1)
        course.found("again", f"{more / MIB:.1f} MiB", is_met=more <= 8 * MIB)
        assert server.stop() == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hold(server: Server, beginnings: Sequence[Beginning], seconds: float) -> dict[str, int]:
    """Begin one kind after the other and keep all connections; by name, the bytes that the server then has more."""
    by_name = dict[str, int]()
    with ExitStack() as opened:
        before = memory(server)
        for each in beginnings:
            begin(server, each, opened)
            most, end_s = before, time.monotonic() + seconds
            while time.monotonic() < end_s:
                most = max(most, memory(server))
                server.read_on()
                time.sleep(0.05)
            by_name[each.name], before = most - before, most
    time.sleep(0.2)
    return by_name


def begin(server: Server, beginning: Beginning, opened: ExitStack) -> None:
    """Open the connections, and send as much as the server takes."""
    address = "127.0.0.1", server.grpc_port if beginning.is_grpc else server.http_port
    rests = dict[socket.socket, memoryview]()
    for _ in range(beginning.number):
        made = opened.enter_context(socket.create_connection(address, 30))
        made.setblocking(False)
        rests[made] = memoryview(beginning.data)
    for _ in range(40):  # as the server reads on, or does not
        for connection, data in rests.items():
            with suppress(OSError):
                rests[connection] = data[connection.send(data) :] if data else data
        if not any(rests.values()):
            return
        time.sleep(0.02)


def memory(server: Server) -> int:
    """Bytes of all processes of the server, shared ones once."""
    pids = [server.process.pid, *descendants(server.process.pid)]
    nbytes = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            nbytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * KIB
    return nbytes
