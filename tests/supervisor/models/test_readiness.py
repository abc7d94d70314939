"""readiness.py: who is asked when, and what becomes of the questions; workers at real connections, time in hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.messages.from_client import QuestionAsked
from shoal.messages.to_client import QuestionAnswered
from shoal.messages.to_worker import CheckReady
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.models.readiness import Readiness
from shoal.supervisor.questions.questions import Questions
from tests.supervisor.star_rig import Process, StarRig

MODEL = 3


class Probes:
    """Front end a, which asks for model 3, and its workers."""

    def __init__(self) -> None:
        self.rig = StarRig()
        self.readiness = Readiness(self.rig.star.workers, self.rig.loop)
        self._questions = Questions(self.rig.loop, {"is_ready": self.readiness.is_ready})
        self.first, self.worker = self.rig.third, self.rig.worker_of_3
        self._number = 0

    def ask(self, model_id: int = MODEL) -> int:
        self._number += 1
        self._questions.take(self.rig.a.member, QuestionAsked(self._number, "is_ready", {"model": model_id}))
        self.rig.clock.settle()
        return self._number

    def answers(self) -> dict[int, bool]:
        """By the number of the question, those since the last time."""
        told = [message for message in self.rig.a.heard() if isinstance(message, QuestionAnswered)]
        assert not any(message.wire for message in told)
        return {message.question: message.result for message in told}

    def second(self) -> tuple[Process, Participant]:
        joined = self.rig.join_worker(MODEL)
        self.rig.settle()
        return joined

    def say(self, worker: Participant, is_ready: bool) -> None:
        self.readiness.receive(worker.owner, is_ready=is_ready)


@pytest.fixture
def probes() -> Iterator[Probes]:
    made = Probes()
    yield made
    made.rig.close()


QUESTION: Any = CheckReady()


@pytest.mark.parametrize("is_ready", [True, False])
def test_the_only_instance_decides(probes: Probes, is_ready: bool) -> None:
    number = probes.ask()
    assert probes.first.heard() == [QUESTION]
    assert probes.rig.fourth.heard() == []  # another model's
    assert probes.answers() == {}
    probes.say(probes.worker, is_ready)
    assert probes.answers() == {number: is_ready}
    probes.rig.clock.pass_time(5)
    assert probes.answers() == {}


def test_all_instances_must_say_yes(probes: Probes) -> None:
    process, other = probes.second()
    number = probes.ask()
    assert (probes.first.heard(), process.heard()) == ([QUESTION], [QUESTION])
    probes.say(other, True)
    assert probes.answers() == {}
    probes.say(probes.worker, True)
    assert probes.answers() == {number: True}


def test_the_first_no_is_the_answer_and_later_words_change_nothing(probes: Probes) -> None:
    _, other = probes.second()
    number = probes.ask()
    probes.say(other, False)
    assert probes.answers() == {number: False}
    probes.say(probes.worker, True)
    assert probes.answers() == {}


def test_probes_at_a_time_share_a_round(probes: Probes) -> None:
    numbers = [probes.ask() for _ in range(3)]
    assert probes.first.heard() == [QUESTION]
    probes.say(probes.worker, True)
    assert probes.answers() == dict.fromkeys(numbers, True)
    number = probes.ask()
    assert probes.first.heard() == [QUESTION]
    probes.say(probes.worker, False)
    assert probes.answers() == {number: False}


def test_who_does_not_answer_in_time_is_not_ready_and_is_not_asked_twice(probes: Probes) -> None:
    late = probes.ask()
    probes.rig.clock.pass_time(4.9)
    assert probes.answers() == {}
    probes.rig.clock.pass_time(0.1)
    assert probes.answers() == {late: False}
    number = probes.ask()
    assert probes.first.heard() == [QUESTION]  # the first time
    probes.say(probes.worker, True)  # how things are now
    assert probes.answers() == {number: True}
    probes.rig.clock.pass_time(5)
    assert probes.answers() == {}
    probes.ask()
    assert probes.first.heard() == [QUESTION]


def test_the_end_of_a_round_is_not_that_of_the_next(probes: Probes) -> None:
    probes.ask()
    probes.say(probes.worker, True)
    probes.answers()
    probes.rig.clock.pass_time(1)
    number = probes.ask()
    probes.rig.clock.pass_time(4)  # the limit of the first round, which is over
    assert probes.answers() == {}
    probes.rig.clock.pass_time(1)
    assert probes.answers() == {number: False}


def test_an_instance_that_dies_is_not_ready_and_its_successor_is_asked(probes: Probes) -> None:
    _, other = probes.second()
    number = probes.ask()
    probes.say(other, True)
    probes.say(probes.worker, False)  # as the supervisor has it of a dead one
    assert probes.answers() == {number: False}
    probes.rig.star.workers.pop(probes.worker.owner).close()
    process, fresh = probes.second()
    number = probes.ask()
    assert process.heard() == [QUESTION]
    probes.say(other, True)
    probes.say(fresh, True)
    assert probes.answers() == {number: True}


def test_only_instances_that_batches_go_to_are_asked(probes: Probes) -> None:
    _, retiring = probes.second()
    probes.rig.star.retire_worker(retiring)
    _, mapping = probes.second()
    mapping.is_ready = False
    number = probes.ask()
    probes.say(probes.worker, True)
    assert probes.answers() == {number: True}


def test_a_version_without_instances_is_not_ready(probes: Probes) -> None:
    assert probes.answers() == {}
    number = probes.ask(model_id=99)
    assert probes.answers() == {number: False}
    assert probes.readiness._rounds == {}


def test_versions_are_asked_by_themselves(probes: Probes) -> None:
    third, fourth = probes.ask(), probes.ask(model_id=4)
    probes.say(probes.rig.worker_of_4, False)
    assert probes.answers() == {fourth: False}
    probes.say(probes.worker, True)
    assert probes.answers() == {third: True}


def test_an_unrequested_answer_is_ignored(probes: Probes) -> None:
    probes.say(probes.worker, False)
    number = probes.ask()
    probes.say(probes.worker, True)
    assert probes.answers() == {number: True}
