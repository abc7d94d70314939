"""Descriptors and timers of the supervisor's loop."""

import os
import time

import pytest

from shoal.supervisor.event_loop import EventLoop


def test_timers_fire_in_order_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, fired = EventLoop(), list[str]()
    now_ns = time.monotonic_ns()
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic_ns", lambda: now_ns)  # all are set at one moment
        loop.call_after(0.003, loop.stop)
        loop.call_after(0.002, lambda: fired.append("second"))
        loop.call_after(0.001, lambda: fired.append("first"))
    loop.run()
    assert fired == ["first", "second"]


def test_readable_descriptor_calls_back_until_forgotten() -> None:
    loop, calls = EventLoop(), list[bytes]()
    reading, writing = os.pipe()

    def read() -> None:
        calls.append(os.read(reading, 1))
        if len(calls) == 2:
            loop.forget(reading)
            loop.call_after(0.0, loop.stop)

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
        loop.call_after(0.0, loop.stop)

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
        loop.call_after(0.0, loop.stop)

    loop.on_readable(pipes[0][0], lambda: take("first", pipes[1][0]))
    loop.on_readable(pipes[1][0], lambda: take("second", pipes[0][0]))
    for _, writing in pipes:
        os.write(writing, b"x")
    loop.run()
    assert len(calls) == 1
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
