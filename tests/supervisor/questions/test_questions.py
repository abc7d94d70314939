"""Questions of front ends: each is answered once, by what its verb returns or raises."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.control import Channel
from shoal.errors import UnsupportedError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.to_client import QuestionAnswered
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.processes.members import Acknowledgements, Member
from shoal.supervisor.questions.questions import Questions, Verb
from tests.messages import receive
from tests.supervisor.clock import ClockLoop


class FrontEnd:
    """A front end that the test plays, and the supervisor's end of its connection."""

    def __init__(self, clock: ClockLoop, here: socket.socket, there: socket.socket) -> None:
        self.clock = clock
        self.loop = EventLoop(clock)
        self._channel = Channel(here)
        self._member = Member(self.loop, Channel(there), 1, Acknowledgements(self.loop))

    def ask(self, message: Any, **verbs: Verb) -> list[Any]:
        """The answers that come at once."""
        Questions(self.loop, verbs).take(self._member, message)
        return self.answers()

    def answers(self) -> list[Any]:
        self.clock.settle()
        received = []
        while True:
            try:
                received.append(receive(self._channel)[0])
            except BlockingIOError:
                return received


@pytest.fixture
def front_end(clock: ClockLoop) -> Iterator[FrontEnd]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    there.setblocking(False)
    with here, there:
        yield FrontEnd(clock, here, there)


def asked(verb: str, number: int = 3) -> Any:
    return QuestionAsked(question=number, verb=verb, arguments={"model": "m"})


def told(number: int = 3, *, wire: int = 0, sentence: str = "", result: object = None) -> Any:
    return QuestionAnswered(question=number, wire=wire, sentence=sentence, result=result)


def test_what_a_verb_returns_is_the_answer_when_it_does(front_end: FrontEnd) -> None:
    done: Future[str] = front_end.loop.future()

    async def load(arguments: dict[str, Any]) -> list[str]:
        return [await done, arguments["model"]]

    assert front_end.ask(asked("load"), load=load) == []
    done.set_result("done")
    assert front_end.answers() == [told(result=["done", "m"])]


def test_what_a_verb_raises_is_the_answer(front_end: FrontEnd, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_arguments: dict[str, Any]) -> None:
        raise UnsupportedError("not this")

    async def fail(arguments: dict[str, Any]) -> None:
        raise KeyError(arguments["model"])

    answers = front_end.ask(asked("load", 9), load=refuse)
    assert answers == [told(9, wire=UnsupportedError.wire, sentence="not this")]
    assert "Traceback" not in caplog.text
    answers = front_end.ask(asked("load"), load=fail)
    assert answers == [told(wire=2, sentence="an error of the server's own, KeyError: 'm'")]
    assert "what process 1 has asked for has met an error of the server's own" in caplog.text


def test_an_error_in_what_a_verb_has_begun_is_the_answer(front_end: FrontEnd) -> None:
    async def fail() -> None:
        raise KeyError("row")

    async def load(_arguments: dict[str, Any]) -> None:
        front_end.loop.start(fail())
        await front_end.loop.future()

    answers = front_end.ask(asked("load"), load=load)
    assert answers == [told(wire=2, sentence="an error of the server's own, KeyError: 'row'")]


def test_a_question_is_answered_though_its_verb_is_cancelled(front_end: FrontEnd) -> None:
    done: Future[None] = front_end.loop.future()

    async def load(_arguments: dict[str, Any]) -> None:
        await done

    assert front_end.ask(asked("load"), load=load) == []
    done.cancel()
    assert front_end.answers() == [told(wire=5, sentence="the server is stopping")]


def test_an_unknown_verb_is_refused(front_end: FrontEnd) -> None:
    (answer,) = front_end.ask(asked("fly"))
    assert (answer.wire, answer.sentence) == (2, "the supervisor does not know the verb 'fly'")
