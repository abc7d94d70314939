"""event_loop.py: what ends it, and that nothing keeps it from ending."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from shoal.workers.backends.python import event_loop
from shoal.workers.backends.python.event_loop import ModelEventLoop


def began(coroutine: Callable[[threading.Event], object]) -> ModelEventLoop:
    """A loop in which it has begun."""
    loop, has_begun = ModelEventLoop("execute"), threading.Event()
    loop.begin(coroutine(has_begun))  # type: ignore[arg-type]
    assert has_begun.wait(10)
    return loop


def test_what_runs_may_end_by_itself() -> None:
    ended: list[bool] = []

    async def run(has_begun: threading.Event) -> None:
        has_begun.set()
        await asyncio.sleep(0.01)
        ended.append(True)

    began(run).stop(10)
    assert ended == [True]


def test_a_coroutine_that_takes_no_cancellation_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    can_end, waits, wait = False, list[float](), asyncio.wait

    async def wait_less(tasks: set[asyncio.Task[None]], timeout: float) -> object:
        waits.append(timeout)
        return await wait(tasks, timeout=min(timeout, 0.05))

    monkeypatch.setattr(asyncio, "wait", wait_less)

    async def run(has_begun: threading.Event) -> None:
        has_begun.set()
        while not can_end:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue

    began(run).stop(0)
    can_end = True
    gc.collect()  # as the coroutine goes, asyncio logs that it was pending; that is no other test's log
    assert waits == [0, event_loop.CANCEL_WAIT_S]
    assert "1 coroutines in thread 'execute' went on after they were cancelled" in caplog.text


def test_a_coroutine_that_does_not_give_way_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_loop, "CANCEL_WAIT_S", 0.05)
    can_end = threading.Event()

    async def run(has_begun: threading.Event) -> None:
        has_begun.set()
        can_end.wait(10)

    loop = began(run)
    thread = loop._thread
    assert thread is not None
    loop.stop(0)
    can_end.set()
    thread.join(10)
    assert "a coroutine blocks the event loop of thread" in caplog.text


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "asyncio.get_running_loop().stop()"])
def test_code_that_ends_the_loop_ends_the_worker(end: str) -> None:
    program = f"""
import asyncio, threading
from shoal.workers.backends.python.event_loop import ModelEventLoop

async def run():
    {end}

ModelEventLoop("execute").begin(run())
threading.Event().wait(10)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "the model has ended its event loop, and with it this worker" in ended.stderr
