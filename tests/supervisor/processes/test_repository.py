"""The poller as the supervisor sees it: its process ends when it has had nothing to do, and comes back for an order."""

import signal
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.cloud_url import CloudUrl
from shoal.errors import InternalError
from shoal.messages import to_poller
from shoal.options import ServerOptions
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.processes import repository as repository_module
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.repository import IDLE_S, RepositoryPoller
from tests.supervisor.clock import ClockLoop


class FakeChild:
    """The poller's process, as far as the supervisor knows it."""

    def __init__(self, loop: EventLoop, pid: int) -> None:
        self.pid = pid
        self.exited: Future[int] = loop.future()
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)


class FakeMember:
    """The poller's connection: what it is sent, and whether it is still open."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sent: list[Any] = []
        self.is_open = True

    def listen(self, _handlers: Any) -> None:
        pass

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def hang_up(self) -> None:
        self.is_open = False


class Office:
    """The supervisor's side, with a poller that the test plays."""

    def __init__(self, clock: ClockLoop, monkeypatch: pytest.MonkeyPatch, slots: Any = None, **options: Any) -> None:
        self.clock, self.loop = clock, EventLoop(clock)
        self.children: list[FakeChild] = []
        monkeypatch.setattr(repository_module, "spawn", self._spawn)
        self.poller = RepositoryPoller(self.loop, ServerOptions(**options), "@nowhere", cast(Any, {}), slots or {})

    def _spawn(self, *_: Any) -> FakeChild:
        self.children.append(FakeChild(self.loop, len(self.children) + 1))
        return self.children[-1]

    def join(self) -> FakeMember:
        member = FakeMember(self.children[-1].pid)
        self.poller.join(cast(Member, member))
        return member

    def answer(self, number: int) -> None:
        self.poller.handlers[to_poller.Polled](to_poller.Polled(number, [], []))


def test_a_poller_without_orders_ends_and_the_next_order_starts_another(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(clock, monkeypatch)
    first = office.poller.poll(None)
    member = office.join()
    office.answer(1)
    assert clock.run(_result(first)).models == {}
    clock.pass_time(IDLE_S - 1)
    second = office.poller.poll(())
    office.answer(2)
    clock.pass_time(IDLE_S - 1)
    assert (member.is_open, len(office.children)) == (True, 1)
    clock.pass_time(1)
    assert not member.is_open
    third = office.poller.poll(())
    assert len(office.children) == 2
    office.children[0].exited.set_result(0)  # the end of the first is no end of the second
    clock.settle()
    other = office.join()
    assert [type(each) for each in other.sent] == [to_poller.PollerWelcomed, to_poller.Poll]
    office.answer(3)
    assert second.done()
    assert clock.run(_result(third)).identifiers == ()


def test_a_poller_with_an_order_does_not_end_and_its_death_is_told(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(clock, monkeypatch)
    first = office.poller.poll(None)
    member = office.join()
    slow = office.poller.poll(())
    office.answer(1)
    clock.pass_time(2 * IDLE_S)
    assert (member.is_open, first.done(), slow.done()) == (True, True, False)
    office.children[0].exited.set_result(-9)
    with pytest.raises(InternalError, match=r"\(pid 1\) was killed by signal 9"):
        clock.run(_result(slow))


def test_a_poller_is_killed_that_is_silent_of_an_order_and_those_before_it(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second order, which may wait for the first, is patient while that goes on; the index, which comes and is
    answered all the while, is no sign of life of either."""
    office = Office(clock, monkeypatch, model_load_timeout_secs=100)
    orders = office.poller.poll(None), office.poller.look_all("m")
    office.join()
    found = to_poller.ModelFound(1, "m", "/m", {}, {}, [], 0, 0, "", "", "", "", 0, False, "")
    for number in range(3, 8):
        clock.pass_time(60)
        if number < 7:
            office.poller.handlers[to_poller.ModelFound](found)
        office.poller.poll(())
        office.answer(number)
    clock.pass_time(39)
    assert office.children[0].signals == []
    assert not any(order.done() for order in orders)
    clock.pass_time(1)
    assert signal.SIGKILL in office.children[0].signals


def test_the_end_waits_for_the_removal_of_a_directory(clock: ClockLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for no other order."""
    office = Office(clock, monkeypatch)
    office.poller.poll(())
    office.poller.discard(Path("/override"))
    office.join()
    closing = office.loop.begin(office.poller.close())
    clock.settle()
    assert office.children[0].signals == []
    office.answer(2)
    clock.run(_result(closing))
    assert office.children[0].signals == [signal.SIGKILL]


def test_an_order_whose_answer_cannot_be_read_fails_with_the_process(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(clock, monkeypatch)
    registered = office.poller.register({})
    office.join()
    with pytest.raises(IndexError):  # no model has been found; the connection's failure domain ends the process
        office.poller.handlers[to_poller.OrderDone](to_poller.OrderDone(1))
    office.children[0].exited.set_result(0)
    with pytest.raises(InternalError, match=r"\(pid 1\) exited with code 0"):
        clock.run(_result(registered))


def test_a_poller_that_joins_once_its_end_is_known_is_hung_up_on(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(clock, monkeypatch)
    first = office.poller.poll(None)
    office.children[0].exited.set_result(-9)
    with pytest.raises(InternalError):
        clock.run(_result(first))
    late = office.join()
    assert (late.is_open, late.sent) == (False, [])


@pytest.mark.parametrize(
    ("slots", "options"),
    [
        ({CloudUrl("s3", "", "bucket", ""): None}, {}),
        ({}, {"model_control_mode": "poll"}),
    ],
    ids=["cloud", "poll"],
)
def test_a_poller_that_knows_something_or_is_asked_again_stays(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch, slots: Any, options: dict[str, Any]
) -> None:
    office = Office(clock, monkeypatch, slots, **options, model_repository=(Path("/nowhere"),))
    done = office.poller.poll(None)
    member = office.join()
    office.answer(1)
    clock.pass_time(3 * IDLE_S)
    assert (member.is_open, done.done()) == (True, True)


async def _result(future: Future[Any]) -> Any:
    return await future
