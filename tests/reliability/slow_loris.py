"""The rows of clients that begin a request and stand still: others notice nothing, and they are closed in time."""

import asyncio
import select
import socket
import time

from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import Server, serving
from tests.end_to_end.traffic import MODEL, ask
from tests.reliability.row import Course, quantile

HALF_HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Le"
HALF_BODY = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + b'{"inputs":['
NUM_STALLED, NUM_CLIENTS = 1000, 4
#: How late a connection may be closed, the pace of the timers and of this machine included.
HEAD_S, BODY_S, SLACK_S = 10.0, 30.0, 5.0


def run(course: Course) -> None:
    """Ask before and beside the connections that stand still, half of them in a head and half in a body."""
    add_model(course.directory / "models", "m", MODEL)
    seconds = course.pick(4, 8)
    # A second for each byte that has come: the default lets an honest slow upload go on.
    with serving(course.directory / "models", "--upload-timeout-secs=30") as server:
        asyncio.run(answers(server, 1.0))
        before, wrong = asyncio.run(answers(server, seconds))
        stalled = {stand_still(server, HALF_HEAD if number % 2 else HALF_BODY): number for number in range(NUM_STALLED)}
        start_s = time.monotonic()
        beside, more = asyncio.run(answers(server, seconds))
        wrong += more
        ratio = quantile(beside, 0.99) / quantile(before, 0.99)
        told = f"p99 {1e3 * quantile(before, 0.99):.1f} ms without, {1e3 * quantile(beside, 0.99):.1f} ms beside them"
        course.found("others", f"{told}: {ratio:.2f} ×", is_met=ratio <= 1.5)
        told = f"{len(before) + len(beside):,} answers, {len(wrong)} wrong"
        course.found("answers", told, wrong, is_met=not wrong)
        closed_s = await_closed(server, stalled, start_s, start_s + BODY_S + 2 * SLACK_S)
        heads = [closed_s.get(number, float("inf")) for number in range(NUM_STALLED) if number % 2]
        bodies = [closed_s.get(number, float("inf")) for number in range(NUM_STALLED) if not number % 2]
        told = f"last head after {max(heads):.1f} s, last body after {max(bodies):.1f} s"
        is_met = max(heads) <= HEAD_S + SLACK_S and max(bodies) <= BODY_S + SLACK_S
        course.found("gone", told, is_met=is_met)
        assert server.stop() == 0


async def answers(server: Server, seconds: float) -> tuple[list[float], list[str]]:
    """The latencies of some clients that ask one request after the other, and what is wrong."""
    end_s = time.monotonic() + seconds
    latencies_s: list[float] = []
    wrong: list[str] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        while time.monotonic() < end_s:
            number += NUM_CLIENTS
            answer = await ask(reader, writer, number)
            latencies_s.append(answer.seconds)
            if not answer.is_right:
                wrong.append(f"{answer.status} {answer.body[:200]!r}")
        writer.close()

    await asyncio.gather(*map(client, range(NUM_CLIENTS)))
    return latencies_s, wrong


def stand_still(server: Server, begun: bytes) -> socket.socket:
    """A connection with the beginning of a request."""
    connection = socket.create_connection(("127.0.0.1", server.http_port))
    connection.sendall(begun)
    return connection


def await_closed(server: Server, stalled: dict[socket.socket, int], start_s: float, end_s: float) -> dict[int, float]:
    """By number, how long each connection has lived; those that live longer are left out."""
    poller = select.poll()
    by_fd = {connection.fileno(): (connection, number) for connection, number in stalled.items()}
    for fd in by_fd:
        poller.register(fd, select.POLLIN | select.POLLRDHUP)
    closed_s: dict[int, float] = {}
    while by_fd and time.monotonic() < end_s:
        for fd, _ in poller.poll(1000):
            connection, number = by_fd[fd]
            try:
                is_over = not connection.recv(65536)  # the answer 408, then the end
            except ConnectionResetError:
                is_over = True
            if is_over:
                closed_s[number] = time.monotonic() - start_s
                poller.unregister(fd)
                del by_fd[fd]
                connection.close()
        server.read_on()
    return closed_s
