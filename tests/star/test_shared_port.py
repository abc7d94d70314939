"""A port for many threads; the test plays the supervisor, and mostly the listening thread, too."""

import errno
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn
from weakref import ref

import pytest

from shoal.control import Channel
from shoal.errors import UnavailableError
from shoal.messages import shared
from shoal.messages.from_client import QuestionAsked
from shoal.messages.message import Message
from shoal.messages.to_client import ModelForgotten, QuestionAnswered, ToClient, TraceSettingsChanged
from shoal.shm.doorbell import Doorbell
from shoal.shm.port import Port
from shoal.star.models import ModelTable
from shoal.star.place import Place
from shoal.star.questions import NoAnswerError
from shoal.star.shared_port import SharedPort
from tests.batcher.star import CLIENT, Star
from tests.messages import receive
from tests.submitted import submit

UNKNOWN_MODEL = 4


class Harness:
    """The shared port of a client of a real batcher's exchange, and the supervisor's end of its connection."""

    def __init__(self, supervisor: socket.socket, channel: socket.socket) -> None:
        self.star = Star()
        end = self.star.add_client(CLIENT)
        self.supervisor = Channel(supervisor)
        self.port = Port(end.own, end.link_view, Doorbell.create(), max_in_flight=8)
        self.place = Place(self.port, end.bell, Channel(channel), ModelTable(), 10, 10)
        #: What was taken and applied: numbers of replies, messages.
        self.heard: list[int | Message] = []
        self.shared = SharedPort(self.place, lambda reply: self.heard.append(reply.number), self.apply)

    def apply(self, message: ToClient, seq: int) -> None:
        self.heard.append(message)
        self.place.apply(message, seq)

    def submit(self) -> int:
        """A request that the batcher will refuse. Not shown to it yet."""
        return submit(self.port, UNKNOWN_MODEL, self.shared.allocate(1, UNKNOWN_MODEL))

    def say(self, message: Message, seq: int = 0) -> None:
        self.supervisor.send(message, seq)
        self.shared.receive()

    def listen(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """Be the listening thread; the process's exit status."""

        def leave(status: int) -> NoReturn:
            raise SystemExit(status)

        monkeypatch.setattr(os, "_exit", leave)
        with pytest.raises(SystemExit) as ended:
            self.shared._listen()
        assert isinstance(ended.value.code, int)
        return ended.value.code


@pytest.fixture
def harness() -> Iterator[Harness]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(10)
    with here, there:
        yield Harness(here, there)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_a_places_handlers_are_made_once_and_keep_no_place_alive(harness: Harness) -> None:
    """A cycle would keep a closed client's memory until the next collection of garbage."""
    place = Place(harness.port, harness.place.bell, harness.place.channel, ModelTable(), 10, 10)
    handlers, alive = place.handlers, ref(place)
    assert place.handlers is handlers
    del place
    assert alive() is None


@pytest.mark.parametrize("message", [shared.SegmentGone(31), shared.BatcherReplaced()])
def test_replies_are_taken_before_a_message_that_makes_them_void(harness: Harness, message: Message) -> None:
    number = harness.submit()
    harness.port.flush()
    harness.star.exchange.step(0)
    harness.say(message)
    assert harness.heard == [number, message]
    assert harness.port.slab.num_taken == 0


def test_what_concerns_others_is_passed_over_and_its_descriptors_closed(harness: Harness) -> None:
    reading, writing = os.pipe()
    harness.say(TraceSettingsChanged({}, writing), seq=2)
    os.close(writing)
    assert os.read(reading, 1) == b""  # nobody has the other end any more
    os.close(reading)
    assert receive(harness.supervisor) == (shared.Acknowledged(2), 0)


def test_the_ledger_is_told_before_it_is_acknowledged(harness: Harness) -> None:
    harness.submit()
    harness.say(shared.LedgerWanted(), seq=5)
    told, _ = receive(harness.supervisor)
    assert receive(harness.supervisor) == (shared.Acknowledged(5), 0)
    assert isinstance(told, shared.LedgerCounted)
    assert told.counts.pop("descriptors") > 0
    assert told.counts.pop("mapped_bytes") >= (16 + 16) * 4096
    counts = {name: count for name, count in told.counts.items() if not name.startswith("memo_")}
    assert counts == {"connections_open": 0, **harness.port.counts}
    assert told.counts["blocks_acquired"] == told.counts["requests_open"] == 1


def test_what_was_pushed_is_shown_before_a_message_is_acknowledged(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    def acknowledge(_channel: Channel, _message: Any) -> None:
        harness.star.exchange.step(0)
        shown.extend(reply.number for reply in harness.port.poll())

    monkeypatch.setattr(Channel, "acknowledge", acknowledge)
    number = harness.submit()
    harness.say(ModelForgotten(name="m", namespace="", version=1), seq=1)
    assert shown == [number]


# --- questions to the supervisor ---


def test_a_question_waits_for_its_own_answer(harness: Harness, pool: ThreadPoolExecutor) -> None:
    future = pool.submit(harness.shared.ask, "load", {"model": "simple"})
    asked, _ = receive(harness.supervisor)
    assert asked == QuestionAsked(question=1, verb="load", arguments={"model": "simple"})
    for question in (7, 1):
        harness.say(QuestionAnswered(question=question, wire=0, sentence="", result=question))
    assert future.result() == 1


def test_a_refused_question_raises_what_the_supervisor_said(harness: Harness, pool: ThreadPoolExecutor) -> None:
    future = pool.submit(harness.shared.ask, "load", {})
    question = receive(harness.supervisor)[0].question
    harness.say(QuestionAnswered(question=question, wire=5, sentence="not now", result=None))
    with pytest.raises(UnavailableError, match=r"^not now$"):
        future.result()


def test_an_unanswered_question_is_given_up(harness: Harness) -> None:
    with pytest.raises(NoAnswerError, match=r"^no answer from the supervisor within 0\.01 s"):
        harness.shared.ask("load", {}, timeout_s=0.01)


# --- the end of the listening thread is that of the process ---


def test_it_ends_quietly_with_the_supervisor(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.supervisor.close()
    assert harness.listen(monkeypatch) == 0
    assert not caplog.records


def test_it_ends_quietly_where_the_supervisor_is_gone_before_it_is_told_something(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.shared._send(shared.SegmentWanted(1))
    harness.supervisor.send(shared.Ping(), seq=1)
    harness.supervisor.close()
    with pytest.raises(ConnectionResetError):
        harness.shared._send(shared.SegmentWanted(1))
    assert harness.listen(monkeypatch) == 0


def test_a_fault_of_ours_ends_the_process_with_its_traceback(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: Any, _seq: int) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(harness.shared, "_apply", fail)
    monkeypatch.setattr("shoal.log.logger.propagate", True)
    harness.supervisor.send(shared.SegmentMissing(1))
    assert harness.listen(monkeypatch) == 1
    assert "Too many open files" in caplog.text
