"""segments.listen_until: what was waited for is there, or another thread has read it, or time is up."""

import socket
import threading
from collections.abc import Iterator

import pytest

from shoal.control import Channel
from shoal.messages.shared import LedgerWanted, LogChanged, SegmentGone
from shoal.messages.to_worker import StopWorker
from shoal.workers.segments import listen_until
from tests.messages import receive


@pytest.fixture
def connection() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(each) for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield ours, theirs
    ours.close()
    theirs.close()


def test_each_message_is_obeyed_until_the_one_that_is_waited_for(connection: tuple[Channel, Channel]) -> None:
    supervisor, worker = connection
    heard = list[object]()
    messages = [LogChanged({}), LedgerWanted(), SegmentGone(7), StopWorker()]
    for message in messages:
        supervisor.send(message)
    listen_until(lambda: SegmentGone(7) in heard, worker, lambda: heard.append(receive(worker)[0]), 10)
    assert heard == messages[:3]


def test_what_another_thread_hears_ends_the_wait_too(connection: tuple[Channel, Channel]) -> None:
    _, worker = connection
    has_looked, is_done = threading.Event(), threading.Event()

    def looked() -> bool:
        has_looked.set()
        return is_done.is_set()

    waiting = threading.Thread(target=listen_until, args=(looked, worker, pytest.fail, 60))
    waiting.start()
    assert has_looked.wait(10)
    is_done.set()
    waiting.join(10)
    assert not waiting.is_alive()


def test_it_ends_when_time_is_up(connection: tuple[Channel, Channel]) -> None:
    _, worker = connection
    listen_until(lambda: False, worker, pytest.fail, 0.01)
