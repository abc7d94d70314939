"""The row of damaged requests over real connections, HTTP's and gRPC's: every answer has its sentence, nothing dies."""

import json
import socket
import time
from random import Random

from tests.end_to_end.http_cases.malformed import BODY, CHUNKED, WHOLE, length, message
from tests.end_to_end.http_cases.models import FLAGS, write_models
from tests.end_to_end.server import Server, descendants, serving, title
from tests.frontend.grpc import diced_messages
from tests.frontend.grpc.http2.peer import DATA, HEADERS, PLAIN_CALL, PREFACE, SETTINGS, frame
from tests.reliability.parsers import BODIES, mutated
from tests.reliability.row import Course

#: A client waits so long for the end of its connection.
ANSWER_S = 5.0
#: Statuses beyond 499 that an answer may have: a model's error or what Triton answers to JSON that it cannot read, what
#: the server does not support, and no room. With a sentence, each.
ALLOWED = {500, 501, 503}
#: What no answer may contain.
SECRETS = (b"Traceback", b"/proc/", b"site-packages", b"memfd:")


def run(course: Course) -> None:
    """Damaged requests, one connection each; at the end the same processes, and right answers."""
    dice = Random(course.seed)
    seeds = [message(length(BODY)), CHUNKED + WHOLE]
    seeds += [message(length(body), body=body) for body in BODIES]
    seeds += [b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"/v2/models/grid", b"/v2/models/stats", b"/")]
    repository = course.directory / "models"
    repository.mkdir()
    with serving(write_models(repository), *FLAGS, "--grpc-port=0") as server:
        kinds = processes(server)
        wrong: list[str] = []
        number = course.pick(2000, 60_000)
        for count in range(number):
            sent = mutated(dice, dice.choice(seeds))
            if fault := http_fault(server, sent):
                wrong.append(f"{fault} to {sent[:300]!r}")
            if count % 100 == 0:
                server.read_on()
        num_calls = course.pick(400, 10_000)
        for count in range(num_calls):
            sent = damaged_call(dice)
            if fault := grpc_fault(server, sent):
                wrong.append(f"gRPC: {fault} to {sent[:300]!r}")
            if count % 100 == 0:
                server.read_on()
        if processes(server) != kinds:
            wrong.append(f"there were {kinds}, there are {processes(server)}")
        server.read_on()
        wrong += ["a traceback in the log"] * (b"Traceback" in server.log)
        if fault := http_fault(server, message(length(BODY)), statuses=(200,)):
            wrong.append(f"{fault} to a right request")
        print(*wrong, sep="\n")
        if wrong:
            print(server.log.decode(errors="replace")[-6000:])
        told = f"{number:,} over HTTP, {num_calls:,} over gRPC: {len(wrong)} faults"
        course.found("answers", told, wrong, is_met=not wrong)
        assert server.stop() == 0


def processes(server: Server) -> dict[int, str]:
    """The lanes, the road, the batcher and the workers."""
    found = {pid: title(pid) for pid in descendants(server.process.pid)}
    ending = ("poller", "standby", "zygote")  # they come and go, as it should be
    return {pid: name for pid, name in found.items() if not any(each in name for each in ending)}


def exchanged(port: int, sent: bytes) -> tuple[bytes, str]:
    """All that comes back until the server ends the connection, and what is wrong with how it ends."""
    received = bytearray()
    end_s = time.monotonic() + ANSWER_S
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
                connection.settimeout(max(0.01, end_s - time.monotonic()))
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before its end
        except TimeoutError:
            return bytes(received), f"it is open after {ANSWER_S:.0f} s"
    return bytes(received), ""


def http_fault(server: Server, sent: bytes, statuses: tuple[int, ...] = ()) -> str:
    """What is wrong with the answers, or nothing. Silence is an answer to half a request."""
    received, fault = exchanged(server.http_port, sent)
    if fault:
        return fault
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        if not (head.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")) and end):
            return f"an answer that is none: {received[:200]!r}"
        status = int(head[9:12])
        if status == 100:
            received = rest
            continue
        lines = [line.lower() for line in head.split(b"\r\n")]
        size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), len(rest))
        body, received = rest[:size], rest[size:]
        if fault := answer_fault(status, body, statuses):
            return fault
    return ""


def answer_fault(status: int, body: bytes, statuses: tuple[int, ...]) -> str:
    """What is wrong with one answer, or nothing."""
    if statuses and status not in statuses:
        return f"{status}"
    if status >= 500 and status not in ALLOWED:
        return f"{status} {body[:200]!r}"
    if status >= 400 and body:  # without a body: the answer to HEAD, or one cut short by our own hanging up
        try:
            sentence = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            return f"{status} without a sentence: {body[:200]!r}"
        if not sentence:
            return f"{status} with an empty sentence"
    if any(secret in body for secret in SECRETS):
        return f"{status} tells too much: {body[:300]!r}"
    return ""


def damaged_call(dice: Random) -> bytes:
    """A call, sound up to a point."""
    request = diced_messages.damaged(dice, diced_messages.request_of(dice).SerializeToString())
    data = b"\0%s%s" % (len(request).to_bytes(4, "big"), request)
    said = frame(HEADERS, 4, 1, PLAIN_CALL) + frame(DATA, 1, 1, data)
    if dice.random() < 0.7:
        said = mutated(dice, said)
    return PREFACE + frame(SETTINGS, 0, 0) + said


def grpc_fault(server: Server, sent: bytes) -> str:
    """What is wrong with the end of the connection, or nothing."""
    received, fault = exchanged(server.grpc_port, sent)
    if any(secret in received for secret in SECRETS):
        return f"it tells too much: {received[:300]!r}"
    return fault
