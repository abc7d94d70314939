"""Questions of front ends: answered once each, refused by what a handler raises."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.control import Channel
from shoal.errors import UnsupportedError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.to_client import QuestionAnswered
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.members import Acknowledgements, Member
from shoal.supervisor.questions.questions import Question, Questions
from tests.messages import receive


class FrontEnd:
    """A front end that the test plays, and the supervisor's end of its connection."""

    def __init__(self, here: socket.socket, there: socket.socket) -> None:
        self.channel = Channel(here)
        loop = EventLoop()
        self.member = Member(loop, Channel(there), 1, Acknowledgements(loop))

    def answers(self) -> list[Any]:
        received = []
        while True:
            try:
                received.append(receive(self.channel)[0])
            except BlockingIOError:
                return received


@pytest.fixture
def front_end() -> Iterator[FrontEnd]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    there.setblocking(False)
    with here, there:
        yield FrontEnd(here, there)


def asked(verb: str, number: int = 3) -> Any:
    return QuestionAsked(question=number, verb=verb, arguments={"model": "m"})


def told(number: int = 3, *, wire: int = 0, sentence: str = "", result: object = None) -> Any:
    return QuestionAnswered(question=number, wire=wire, sentence=sentence, result=result)


def test_the_handler_answers_when_it_is_done(front_end: FrontEnd) -> None:
    taken: list[Question] = []
    Questions({"load": taken.append}).take(front_end.member, asked("load"))
    assert not front_end.answers()
    taken[0].answer(["done", taken[0].arguments["model"]])
    assert front_end.answers() == [told(result=["done", "m"])]


def test_what_a_handler_raises_is_the_answer(front_end: FrontEnd) -> None:
    def refuse(_question: Question) -> None:
        raise UnsupportedError("not this")

    Questions({"load": refuse}).take(front_end.member, asked("load", 9))
    assert front_end.answers() == [told(9, wire=UnsupportedError.wire, sentence="not this")]


def test_an_unknown_verb_is_refused(front_end: FrontEnd) -> None:
    Questions({}).take(front_end.member, asked("fly"))
    (answer,) = front_end.answers()
    assert (answer.wire, answer.sentence) == (2, "the supervisor does not know the verb 'fly'")
