"""Questions that only the batcher can answer, several of them at once; the test plays the batcher."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.messages.from_batcher import FinishedRequestsListed, ModelExplained
from shoal.messages.from_client import QuestionAsked
from shoal.messages.message import on, table
from shoal.messages.to_batcher import ExplainModel, ListFinishedRequests
from shoal.messages.to_client import QuestionAnswered
from shoal.shm.counters import ZERO_ROW
from shoal.supervisor.questions.batcher_questions import BatcherQuestions
from shoal.supervisor.questions.questions import Questions
from tests.supervisor.star_rig import StarRig

EXPLAIN = ("explain", {"model": "m", "version": None})
LIST = ("finished_requests", {"model": "m", "limit": 5})


class Models:
    """One model with one version, as questions look them up."""

    def __init__(self) -> None:
        version = SimpleNamespace(model_id=3, version=1, row=0, config={"max_batch_size": 8})
        self.model = SimpleNamespace(
            serving={1: SimpleNamespace(version=version)}, identifier=SimpleNamespace(name="m")
        )

    def get(self, _name: str) -> Any:
        return self.model


class Desk(StarRig):
    """A star in which all have joined, whose front end a asks."""

    def __init__(self) -> None:
        super().__init__()
        models: Any = Models()
        asked = BatcherQuestions(self.star, models, lambda _row: ZERO_ROW)
        self.batcher.member.listen(table(on(ModelExplained, asked.receive), on(FinishedRequestsListed, asked.receive)))
        self._questions = Questions(self.loop, asked.verbs)

    def put(self, *asked: tuple[str, dict[str, Any]]) -> list[Any]:
        """Ask several questions at once; the messages that the batcher gets."""
        for number, (verb, arguments) in enumerate(asked):
            self._questions.take(self.a.member, QuestionAsked(number, verb, arguments))
        return self.batcher.heard()

    def answers(self) -> list[Any]:
        """The outcome of each question: its result, or None for a refusal."""
        self.clock.settle()
        return [message.result for message in self.a.heard() if isinstance(message, QuestionAnswered)]


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def test_questions_at_once_have_an_answer_each(desk: Desk) -> None:
    first, second = desk.put(EXPLAIN, EXPLAIN)
    assert (type(first), first.model_id, type(second)) == (ExplainModel, 3, ExplainModel)
    # The supervisor reads both before it goes on with either question.
    for message in (first, second):
        desk.batcher.say(ModelExplained(message.number, 3, {"scheduler": f"of question {message.number}"}))
    desk.acknowledge(desk.batcher)
    explained = [answer["versions"][0]["scheduler"] for answer in desk.answers()]
    assert explained == [f"of question {message.number}" for message in (first, second)]


def test_an_answer_that_comes_too_late_is_not_kept_for_the_next_question(desk: Desk) -> None:
    (first, listed) = desk.put(EXPLAIN, LIST)
    assert type(listed) is ListFinishedRequests
    desk.acknowledge(desk.batcher)  # a batcher that was replaced has answered nothing
    assert desk.answers() == [None, None]
    desk.batcher.say(ModelExplained(first.number, 3, {"scheduler": "late"}))
    desk.batcher.say(FinishedRequestsListed(listed.number, ["late"], [], 0))
    (second, listed) = desk.put(EXPLAIN, LIST)
    desk.batcher.say(ModelExplained(second.number, 3, {"scheduler": "in time"}))
    desk.batcher.say(FinishedRequestsListed(listed.number, ["in time"], [], 0))
    desk.acknowledge(desk.batcher)
    explained, found = desk.answers()
    assert explained["versions"][0]["scheduler"] == "in time"
    assert found == {"slowest": ["in time"], "failed": [], "num_others_failed": 0}
