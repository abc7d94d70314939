"""Descriptors, timers and flows of the supervisor's loop."""

import os
import subprocess
import sys
from functools import partial

import pytest

from shoal.supervisor.event_loop import LOOK_S, EventLoop, first, first_awake, shared
from tests.supervisor.clock import ClockLoop


def test_timers_fire_in_order_and_once(clock: ClockLoop) -> None:
    loop, fired = EventLoop(clock), list[str]()
    loop.call_after(2.0, lambda: fired.append("second"))
    loop.call_after(1.0, lambda: fired.append("first"))
    clock.pass_time(1.5)
    assert fired == ["first"]
    clock.pass_time(1.0)
    assert fired == ["first", "second"]


def test_the_time_of_the_loop_is_monotonic_and_passes_while_it_waits() -> None:
    loop = EventLoop()
    begun_s = loop.now_s()
    loop.call_after(0.003, loop.stop)
    loop.run()
    assert loop.now_s() - begun_s >= 0.003


def test_readable_descriptor_calls_back_until_forgotten() -> None:
    loop, calls = EventLoop(), list[bytes]()
    reading, writing = os.pipe()

    def read() -> None:
        calls.append(os.read(reading, 1))
        if len(calls) == 2:
            loop.forget(reading)
            loop.stop()

    loop.on_readable(reading, read)
    os.write(writing, b"abc")
    loop.run()
    assert calls == [b"a", b"b"]
    os.close(reading)
    os.close(writing)


def test_writable_callback_ends_when_told() -> None:
    loop, calls = EventLoop(), list[str]()
    reading, writing = os.pipe()

    def write() -> None:
        calls.append("writable")
        loop.on_writable(writing, None)
        loop.stop()

    loop.on_readable(writing, lambda: None)
    loop.on_writable(writing, write)
    loop.run()
    assert calls == ["writable"]
    os.close(reading)
    os.close(writing)


def test_descriptor_forgotten_by_another_callback_of_the_same_round_is_not_called() -> None:
    loop, calls = EventLoop(), list[str]()
    pipes = [os.pipe() for _ in range(2)]

    def take(name: str, other: int) -> None:
        calls.append(name)
        loop.forget(other)
        loop.stop()

    loop.on_readable(pipes[0][0], lambda: take("first", pipes[1][0]))
    loop.on_readable(pipes[1][0], lambda: take("second", pipes[0][0]))
    for _, writing in pipes:
        os.write(writing, b"x")
    loop.run()
    assert len(calls) == 1
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_paused_descriptor_calls_back_after_the_pause_unless_forgotten(clock: ClockLoop) -> None:
    loop, calls = EventLoop(clock), list[bytes]()
    pipes = [os.pipe() for _ in range(2)]
    for (reading, writing), byte in zip(pipes, (b"a", b"b"), strict=True):
        loop.on_readable(reading, partial(lambda each: calls.append(os.read(each, 1)), reading))
        loop.pause(reading, 1.0)
        os.write(writing, byte)
    loop.forget(pipes[0][0])
    clock.pass_time(0.9)
    assert calls == []
    clock.pass_time(0.2)
    assert calls == [b"b"]
    for pipe in pipes:
        loop.forget(pipe[0])
        for fd in pipe:
            os.close(fd)


def test_first_of_several_futures_or_none_within_the_limit(clock: ClockLoop) -> None:
    loop = EventLoop(clock)
    early, late = loop.future(), loop.future()
    loop.call_after(1.0, lambda: early.set_result("early"))
    loop.call_after(2.0, lambda: late.set_exception(OSError("late")))

    async def flow() -> None:
        assert await first(early, late, limit_s=0.5) == set()
        assert await first(early, late) == {early}
        assert await first(late) == {late}  # whose error is not this flow's

    clock.run(flow())
    assert isinstance(late.exception(), OSError)


def test_time_in_which_the_machine_stood_still_is_no_part_of_a_limit(clock: ClockLoop) -> None:
    loop = EventLoop(clock)
    future = loop.future()
    waits = loop.begin(first_awake(future, loop.future(), limit_s=30.0))
    clock.pass_time(20.5)
    clock.stand_still(44.9)
    clock.pass_time(9.0 - LOOK_S)
    assert not waits.done()
    clock.pass_time(2 * LOOK_S)
    assert waits.result() == set()
    waits = loop.begin(first_awake(future, loop.future(), limit_s=30.0))
    clock.pass_time(29.5)
    future.set_result(None)
    clock.settle()
    assert waits.result() == {future}


def test_a_limit_of_no_time_leaves_one_look(clock: ClockLoop) -> None:
    loop = EventLoop(clock)
    future = loop.future()
    future.set_result(None)
    assert clock.run(first_awake(future, loop.future(), limit_s=0.0)) == {future}
    assert clock.run(first_awake(loop.future(), limit_s=0.0)) == set()


def test_who_is_cancelled_while_waiting_for_a_shared_future_leaves_it_to_the_others(clock: ClockLoop) -> None:
    loop = EventLoop(clock)
    result = loop.future()
    gives_up, stays = loop.begin(shared(result)), loop.begin(shared(result))
    clock.settle()
    gives_up.cancel()
    clock.settle()
    result.set_result(7)
    clock.settle()
    assert gives_up.cancelled()
    assert stays.result() == 7


def test_outcome_of_a_begun_flow_is_for_its_caller(clock: ClockLoop) -> None:
    task = EventLoop(clock).begin(_fail())
    clock.settle()
    assert str(task.exception()) == "meant"


def test_error_of_a_started_flow_outside_every_failure_domain_ends_the_loop() -> None:
    loop = EventLoop()
    loop.start(_fail())
    with pytest.raises(ValueError, match="meant"):
        loop.run()
    loop.call_after(0.0, loop.stop)
    loop.run()  # and it may go on


async def _fail() -> None:
    raise ValueError("meant")


def test_what_follows_a_future_is_called_once_it_is_done(clock: ClockLoop) -> None:
    loop, calls = EventLoop(clock), list[str]()
    done = loop.future()
    loop.after(done, lambda: calls.append("called"))
    clock.settle()
    assert calls == []
    done.set_result(None)
    clock.settle()
    assert calls == ["called"]


def test_no_flow_is_handed_to_another_thread(clock: ClockLoop) -> None:
    with pytest.raises(RuntimeError, match="one thread"):
        clock.run_in_executor(None, print)


def test_supervisor_starts_without_ssl() -> None:
    """asyncio would import it: 6 to 10 ms and 4 MiB, for nothing that the supervisor's loop does."""
    program = "import sys, shoal.supervisor.main; sys.exit('ssl' in sys.modules or 'asyncio' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_flows_that_end_with_the_process_print_nothing() -> None:
    """As a server ends in whose exit timeout a load has not: what waits for the load's lock was woken in a closed
    loop."""
    program = """
from shoal.supervisor.event_loop import EventLoop, Lock
loop, lock = EventLoop(), Lock()
async def hold():
    async with lock:
        await loop.future()
tasks = [loop.begin(hold()), loop.begin(hold())]
loop.call_after(0, loop.stop)
loop.run()
loop.begin(hold())  # too late: as that of a worker which dies in the last pass of the loop
loop.end()
"""
    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True)
    assert ended.stderr == b""
