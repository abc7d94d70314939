"""What an unexpected exception in a callback costs: the callback's domain, and nothing around it."""

import gc
import os

import pytest

from shoal.supervisor.event_loop import EventLoop, first
from shoal.supervisor.failure_domains import bound, contained
from tests.supervisor.clock import ClockLoop


class Domain:
    """Notes what it had to contain; `is_hopeless`: it cannot."""

    def __init__(self, title: str, *, is_hopeless: bool = False) -> None:
        self.title = title
        self.contained: list[str] = []
        self._is_hopeless = is_hopeless

    def contain(self, error: Exception) -> None:
        self.contained.append(str(error))
        if self._is_hopeless:
            raise RuntimeError("hopeless")


def fail(words: str = "why") -> None:
    raise ValueError(words)


def test_an_error_is_contained_where_it_belongs_and_its_traceback_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outer, inner = Domain("the outer"), Domain("the inner")
    went_on: list[bool] = []
    with contained(outer):
        with contained(inner):
            fail("inside")
        went_on.append(True)
        fail("outside")
    assert (inner.contained, outer.contained, went_on) == (["inside"], ["outside"], [True])
    assert "the inner has met an error of the server's own" in caplog.text
    assert "in fail" in caplog.text  # the traceback


def test_what_a_domain_cannot_contain_is_its_surroundings_failure() -> None:
    outer, inner = Domain("the outer"), Domain("the inner", is_hopeless=True)
    with contained(outer), contained(inner):
        fail()
    assert outer.contained == ["hopeless"]
    with pytest.raises(RuntimeError, match="hopeless"), contained(inner):
        fail()


def test_outside_every_domain_exceptions_propagate() -> None:
    with pytest.raises(ValueError, match="why"):
        bound(fail)()


def test_a_callback_belongs_to_the_domain_in_which_it_was_registered(clock: ClockLoop) -> None:
    loop, ours, others = EventLoop(clock), Domain("ours"), Domain("others'")
    reading, writing = os.pipe()

    def read() -> None:
        fail(os.read(reading, 1).decode())

    with contained(ours):
        loop.on_readable(reading, read)
        loop.call_after(0.0, lambda: loop.call_after(0.0, fail))
    with contained(others):
        os.write(writing, b"x")
    clock.pass_time(1.0)
    assert (sorted(ours.contained), others.contained) == (["why", "x"], [])
    os.close(reading)
    os.close(writing)


def test_a_flow_and_what_it_starts_belong_to_the_domain_that_it_enters(clock: ClockLoop) -> None:
    loop, ours, others, went_on = EventLoop(clock), Domain("ours"), Domain("others'"), list[str]()

    async def flow() -> None:
        with contained(ours):
            loop.call_after(2.0, lambda: fail("a timer"))
            loop.start(wait_and_fail(3.0, "a flow"))
            await wait_and_fail(1.0, "an await")
            went_on.append("inside")
        went_on.append("after")
        fail("outside")

    async def wait_and_fail(seconds: float, words: str) -> None:
        await first(loop.future(), limit_s=seconds)
        fail(words)

    with contained(others):
        loop.start(flow())
    clock.pass_time(5.0)
    assert (ours.contained, others.contained, went_on) == (["an await", "a timer", "a flow"], ["outside"], ["after"])


def test_a_cancellation_is_no_failure_of_the_domain_that_waits(clock: ClockLoop) -> None:
    loop, ours = EventLoop(clock), Domain("ours")

    async def flow() -> None:
        with contained(ours):
            await loop.future()

    task = loop.begin(flow())
    clock.settle()
    task.cancel()
    clock.settle()
    assert task.cancelled()
    assert ours.contained == []


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_flow_that_is_destroyed_unfinished_as_the_process_ends_is_no_failure() -> None:
    ours = Domain("ours")

    async def flow(loop: EventLoop) -> None:
        with contained(ours):
            await loop.future()

    def abandon() -> None:
        loop = EventLoop()
        loop.start(flow(loop))
        loop.call_after(0.0, loop.stop)
        loop.run()

    abandon()
    gc.collect()
    assert ours.contained == []
