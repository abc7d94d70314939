"""The rows of a front end's death: whose connections end, whether new ones are refused, when its memory is back."""

import asyncio
import os
import re
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from tests.end_to_end.raw_client import Client
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, imbalances, serving, title, wait_until
from tests.end_to_end.traffic import MODEL, ask
from tests.reliability.row import Course

NUM_CONNECTIONS = 40
#: Between two new connections, while a front end dies and is replaced.
CONNECT_EVERY_S = 0.01
LARGE_INTEGERS = 1_500_000
LARGE = MODEL.replace("dims: [ 4 ]", "dims: [ -1 ]")


def lanes(server: Server) -> list[int]:
    """The pids of the HTTP lanes."""
    return [pid for pid in descendants(server.process.pid) if title(pid) == "shoal http"]


def ports_of(pid: int, http_port: int) -> set[int]:
    """The clients' ports of the connections that a process has, as the kernel lists them."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(each)))
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes and int(fields[1].rpartition(":")[2], 16) == http_port:
            found.add(int(fields[2].rpartition(":")[2], 16))
    return found


def run(course: Course) -> None:
    """Kill one of two lanes, again and again."""
    repository = course.directory / "models"
    add_model(repository, "m", MODEL)
    add_model(repository, "large", LARGE)
    number = course.pick(4, 40)
    with serving(repository, "--http-process-count=2") as server:
        wrong: list[str] = []
        num_own = num_new = 0
        for _ in range(number):
            wait_until(lambda: len(lanes(server)) == 2)
            own, new, faults = asyncio.run(kill_one(server))
            num_own, num_new, wrong = num_own + own, num_new + new, wrong + faults
            server.read_on()
        told = f"{number} kills ended {num_own} connections of {number * NUM_CONNECTIONS}; {num_new} new ones"
        course.found("others", told, wrong, is_met=not wrong)
        print(*wrong, sep="\n")
        worst_s = max(memory_back(server) for _ in range(course.pick(2, 10)))
        course.found("memory", f"worst {worst_s:.2f} s", is_met=worst_s <= 1.0)
        assert server.stop() == 0


async def kill_one(server: Server) -> tuple[int, int, list[str]]:
    """How many connections the killed lane had, how many new ones were opened meanwhile, and what is wrong."""
    open_ones = [await asyncio.open_connection("127.0.0.1", server.http_port) for _ in range(NUM_CONNECTIONS)]
    for number, (reader, writer) in enumerate(open_ones):
        assert (await ask(reader, writer, number)).is_right
    victim = lanes(server)[0]
    own = ports_of(victim, server.http_port)
    os.kill(victim, signal.SIGKILL)
    end_s = time.monotonic() + DEADLINE_S
    wrong, num_new = list[str](), 0
    while len([pid for pid in lanes(server) if pid != victim]) < 2 and time.monotonic() < end_s:
        num_new += 1
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        except OSError as error:
            wrong.append(f"a new connection: {error!r}")
            continue
        # It may be the dying lane's: then it ends, and no answer is wrong.
        with suppress(OSError, asyncio.IncompleteReadError):
            answer = await ask(reader, writer, num_new)
            if not answer.is_right:
                wrong.append(f"a new connection: {answer}")
        writer.close()
        await asyncio.sleep(CONNECT_EVERY_S)
    for number, (reader, writer) in enumerate(open_ones):
        port = writer.get_extra_info("sockname")[1]
        try:
            is_right = (await ask(reader, writer, number)).is_right
        except (OSError, asyncio.IncompleteReadError):
            is_right = False
        if is_right is (port in own):
            wrong.append(f"a connection of the {'dead' if port in own else 'living'} lane: answered {is_right}")
        writer.close()
    return sum(each[1].get_extra_info("sockname")[1] in own for each in open_ones), num_new, wrong


def memory_back(server: Server) -> float:
    """Seconds from the death of a lane that has a large answer to send, until nothing is taken any more."""
    wait_until(lambda: len(lanes(server)) == 2)
    with Client(server, receive_buffer=65536) as client:
        head = b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],' % (
            LARGE_INTEGERS,
            4 * LARGE_INTEGERS,
        )
        head += b'"parameters":{"binary_data_output":true}}'
        client.send(
            b"POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\n" % len(head),
            b"Content-Length: %d\r\n\r\n" % (len(head) + 4 * LARGE_INTEGERS) + head + bytes(4 * LARGE_INTEGERS),
        )
        client.socket.recv(1000, socket.MSG_PEEK)  # its answer has begun
        port = client.socket.getsockname()[1]
        (victim,) = [pid for pid in lanes(server) if port in ports_of(pid, server.http_port)]
        start_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        server.ledger_once(lambda ledger: not imbalances(ledger))
        return time.monotonic() - start_s
