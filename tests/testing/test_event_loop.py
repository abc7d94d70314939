"""The event loop on the test's clock: what it waits for, and who wakes it."""

import asyncio
import socket
import threading
from contextlib import nullcontext

from shoal.testing.event_loop import InlineEventLoop, VirtualEventLoop


class Clock:
    """One that a test sets."""

    def __init__(self) -> None:
        self.ns = 10**9
        self.num_wakes = 0

    def wake(self) -> None:
        self.num_wakes += 1


def make() -> tuple[InlineEventLoop, VirtualEventLoop, Clock]:
    clock = Clock()
    loop = VirtualEventLoop(lambda: clock.ns, clock.wake, nullcontext)
    return InlineEventLoop(loop), loop, clock


def run(loop: VirtualEventLoop) -> None:
    loop.claim()()


def test_it_runs_until_all_wait_and_says_for_which_time() -> None:
    coroutines, loop, clock = make()
    done: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append(name)

    coroutines.begin(wait("long", 3))
    coroutines.begin(wait("short", 0.5))
    assert loop.is_due(clock.ns)
    run(loop)
    assert (loop.due_ns, done) == (1_500_000_000, [])
    assert not loop.is_due(clock.ns)
    clock.ns = 1_500_000_000
    assert loop.is_due(clock.ns)
    run(loop)
    assert (loop.due_ns, done) == (4_000_000_000, ["short"])
    clock.ns = 4_000_000_000
    run(loop)
    assert (loop.due_ns, done) == (None, ["short", "long"])
    coroutines.stop()


def test_a_thread_wakes_it() -> None:
    coroutines, loop, clock = make()
    arrived = loop.create_future()

    async def wait() -> None:
        await arrived

    coroutines.begin(wait())
    run(loop)
    assert (loop.due_ns, clock.num_wakes, loop.has_sockets) == (None, 1, False)
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(arrived.set_result, None))
    thread.start()
    thread.join()
    assert clock.num_wakes == 2
    assert loop.is_due(clock.ns)
    run(loop)
    assert not loop.is_due(clock.ns)
    coroutines.stop()


def test_a_socket_is_waited_for() -> None:
    coroutines, loop, _ = make()
    here, there = socket.socketpair()
    here.setblocking(False)
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await loop.sock_recv(here, 10))

    with here, there:
        coroutines.begin(receive())
        run(loop)
        assert loop.has_sockets
        there.send(b"fish")
        run(loop)
        assert (received, loop.has_sockets) == ([b"fish"], False)
    coroutines.stop()


def test_what_has_not_ended_is_cancelled_at_the_end() -> None:
    coroutines, loop, _ = make()
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ended.append(True)

    coroutines.begin(wait())
    run(loop)
    coroutines.stop()
    assert (ended, loop.is_closed()) == ([True], True)
