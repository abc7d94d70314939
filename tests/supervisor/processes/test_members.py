"""Messages to processes that read late, and announcements that wait for all living recipients."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.control import Channel
from shoal.messages.message import Fd, Kinds, Message, close_descriptors
from shoal.messages.shared import LedgerCounted
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.members import MAX_OUTBOX, Acknowledgements, Member
from tests.scarcity import no_descriptors_left


class Said(Message):
    """A message of these tests."""

    number: int
    padding: str = ""
    fd: Fd | None = None


SAID = Kinds(Said)
X = Said(7)


class Process:
    """The other end of a member: what a process would read and say."""

    def __init__(self, loop: EventLoop) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.channel = Channel(theirs)
        self.member = Member(loop, Channel(ours), 1, Acknowledgements(loop))
        self.said: list[Any] = []
        self.is_gone = False
        self.member.listen({Said: self.said.append})
        self.member.on_gone = self._gone
        self.member.start()

    def _gone(self) -> None:
        self.is_gone = True


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


@pytest.fixture
def start(loop: EventLoop) -> Iterator[Callable[[], Process]]:
    """Starts processes, and hangs up on all of them after the test."""
    started: list[Process] = []

    def start_one() -> Process:
        started.append(Process(loop))
        return started[-1]

    yield start_one
    for process in started:
        process.channel.close()
        process.member.hang_up()


def run_until(loop: EventLoop, seconds: float = 0.0) -> None:
    """Dispatch what is ready, then return."""
    loop.call_after(seconds, loop.stop)
    loop.run()


def test_what_a_process_had_said_before_its_end_is_heard(start: Callable[[], Process]) -> None:
    process = start()
    for number in range(3):
        process.channel.send(Said(number))
    process.member.drain()
    assert process.said == [Said(number) for number in range(3)]
    assert process.member.is_open
    process.channel.send(Said(9))
    process.channel.close()
    process.member.drain()
    assert process.said[3:] == [Said(9)]
    assert process.is_gone
    process.member.drain()
    assert len(process.said) == 4


def test_process_that_reads_late_gets_everything_in_order(loop: EventLoop, start: Callable[[], Process]) -> None:
    process = start()
    count = 2000  # more than a socket's buffer holds
    fd = os.open("/dev/null", os.O_RDONLY)
    for number in range(count):
        process.member.send(Said(number, "p" * 500, fd if number % 100 == 0 else None))
    os.close(fd)
    numbers = []
    for _ in range(count):
        run_until(loop)
        message, _ = process.channel.receive(SAID)
        assert (message.fd is not None) == (message.number % 100 == 0)
        close_descriptors(message)
        numbers.append(message.number)
    assert numbers == list(range(count))


def test_process_that_never_reads_is_hung_up_on(start: Callable[[], Process], caplog: pytest.LogCaptureFixture) -> None:
    process = start()
    for _ in range(MAX_OUTBOX * 2):
        process.member.send(Said(0, "p" * 500))
    assert process.is_gone
    assert not process.member.is_open
    assert f"the connection of process 1 is closed: the process has not read {MAX_OUTBOX} messages" in caplog.text


def test_what_a_process_counts_is_kept_beside_what_it_says(loop: EventLoop, start: Callable[[], Process]) -> None:
    process = start()
    assert process.member.counts is None
    process.channel.send(LedgerCounted({"descriptors": 9}))
    process.channel.send(X)
    for _ in range(2):
        run_until(loop)
    assert process.member.counts == {"descriptors": 9}
    assert process.said == [X]


@pytest.mark.parametrize("lives", [False, True])
def test_what_a_process_garbles_ends_its_connection_and_nothing_else(
    loop: EventLoop, start: Callable[[], Process], caplog: pytest.LogCaptureFixture, lives: bool
) -> None:
    process = start()
    process.channel.send(X)
    process.channel.send_encoded(b"\xc1", ())
    if lives:
        for _ in range(2):
            run_until(loop)
    else:
        process.channel.close()
        process.member.drain()
    assert process.said == [X]
    assert process.is_gone
    assert [each.message.partition(": ")[0] for each in caplog.records] == ["the connection of process 1 is closed"]


@pytest.mark.parametrize("counts", [{"descriptors": "9"}, {"descriptors": b""}, {b"descriptors": 9}])
def test_a_ledger_of_what_is_no_count_is_refused(start: Callable[[], Process], counts: Any) -> None:
    process = start()
    process.channel.send(LedgerCounted(counts))
    process.member.drain()
    assert process.member.counts is None
    assert process.is_gone


def test_death_is_told_once(loop: EventLoop, start: Callable[[], Process]) -> None:
    process = start()
    process.channel.close()
    run_until(loop, 0.001)
    assert process.is_gone
    process.is_gone = False
    process.member.hang_up()
    assert not process.is_gone


def test_an_announcement_waits_for_all_members(start: Callable[[], Process]) -> None:
    acknowledgements = Acknowledgements(EventLoop())
    first, second = start(), start()
    applied = acknowledgements.announce([(first.member, X), (second.member, X)])
    seq = first.channel.receive(SAID)[1]
    acknowledgements.received(first.member, seq)
    acknowledgements.received(first.member, seq)
    assert not applied.done()
    acknowledgements.received(second.member, seq)
    acknowledgements.received(second.member, seq)
    assert applied.done()


def test_announcement_of_several_messages_waits_for_each(start: Callable[[], Process]) -> None:
    acknowledgements = Acknowledgements(EventLoop())
    first, second = start(), start()
    applied = acknowledgements.announce([(process.member, X) for process in (first, second, first)])
    seq = second.channel.receive(SAID)[1]
    acknowledgements.received(first.member, seq)
    acknowledgements.received(second.member, seq)
    assert not applied.done()
    acknowledgements.received(first.member, seq)
    assert applied.done()


def test_announcement_does_not_wait_for_the_dead(start: Callable[[], Process]) -> None:
    acknowledgements = Acknowledgements(EventLoop())
    living, dying, dead = start(), start(), start()
    dead.member.hang_up()
    applied = acknowledgements.announce([(process.member, X) for process in (living, dying, dead)])
    acknowledgements.received(living.member, living.channel.receive(SAID)[1])
    assert not applied.done()
    acknowledgements.gone(dying.member)
    assert applied.done()


def test_a_member_is_late_until_it_has_acknowledged_something(loop: EventLoop, start: Callable[[], Process]) -> None:
    acknowledgements = Acknowledgements(loop)
    prompt, late, dead = processes = start(), start(), start()
    brief = [(process.member, X) for process in processes]
    loop.after(acknowledgements.announce((), briefly=brief, patience_s=0.0), loop.stop)
    acknowledgements.received(prompt.member, prompt.channel.receive(SAID)[1])
    acknowledgements.gone(dead.member)
    assert not any(acknowledgements.is_late(process.member) for process in processes)
    loop.run()
    assert [acknowledgements.is_late(process.member) for process in processes] == [False, True, False]
    acknowledgements.received(late.member, late.channel.receive(SAID)[1])
    assert not acknowledgements.is_late(late.member)
    loop.after(acknowledgements.announce((), briefly=brief[1:2], patience_s=0.0), loop.stop)
    loop.run()
    assert acknowledgements.is_late(late.member)
    acknowledgements.gone(late.member)
    assert not acknowledgements.is_late(late.member)


@pytest.mark.parametrize("num_dead", [0, 1])
def test_an_announcement_to_no_member_is_in_force_at_once(start: Callable[[], Process], num_dead: int) -> None:
    processes = [start() for _ in range(num_dead)]
    for process in processes:
        process.member.hang_up()
    assert Acknowledgements(EventLoop()).announce([(process.member, X) for process in processes]).done()


def test_a_process_is_killed_only_while_the_pid_is_its_own(start: Callable[[], Process]) -> None:
    """The pid of one that has hung up may be another's by now: here it is that of a process which must live."""
    living, dead = start(), start()
    program = [sys.executable, "-c", "print(input())"]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(program, stdin=pipe) as first,
        subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as second,
    ):
        living.member.pid, dead.member.pid = first.pid, second.pid
        dead.channel.close()
        dead.member.kill()
        living.member.kill()
        assert first.wait() == -signal.SIGKILL
        living.member.kill()  # there is no such process any more
        assert second.communicate("it lives\n")[0] == "it lives\n"  # which no process does that has been sent SIGKILL


def test_without_a_descriptor_left_no_process_is_killed_and_the_caller_is_told(start: Callable[[], Process]) -> None:
    process = start()
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(program) as living:
        process.member.pid = living.pid
        with no_descriptors_left():
            assert not process.member.kill()
        assert process.member.kill()
        assert living.wait() == -signal.SIGKILL


def test_a_large_message_for_which_there_is_no_descriptor_is_not_lost_in_silence(
    start: Callable[[], Process], caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    with no_descriptors_left():
        process.member.send(Said(1, "x" * 100_000))
    assert process.is_gone
    assert "the connection of process 1 is closed: no file descriptor is left" in caplog.text


def test_a_large_message_that_waits_is_not_lost_in_silence_either(
    loop: EventLoop, start: Callable[[], Process], caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    while not process.member._outbox:
        process.member.send(Said(0, "x" * 50_000))
    process.member.send(Said(1, "x" * 100_000))
    with no_descriptors_left():
        while process.member._outbox:
            process.member._flush()
            process.channel.receive(SAID)
    assert process.is_gone
    assert "the connection of process 1 is closed: no file descriptor is left" in caplog.text


def test_a_message_to_a_process_that_has_ended_is_dropped(start: Callable[[], Process]) -> None:
    process = start()
    process.channel.close()
    process.member.send(X)
    assert not process.is_gone  # the end of file says so
