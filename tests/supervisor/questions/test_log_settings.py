"""Who hears of changed log settings, and when the client does; the test plays the processes that are told."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from shoal import log
from shoal.messages.from_client import QuestionAsked
from shoal.messages.shared import LogChanged
from shoal.messages.to_client import QuestionAnswered
from shoal.messages.to_worker import MemoryGranted
from shoal.options import ServerOptions
from shoal.supervisor.processes.repository import RepositoryPoller
from shoal.supervisor.questions.log_settings import LogSettings
from shoal.supervisor.questions.questions import Questions
from tests.supervisor.star_rig import StarRig

SETTINGS = {"log_verbose": 0, "log_info": True, "log_warning": True, "log_error": True, "log_format": "default"}


class Tracer:
    """It is told by its own supervisor (test_trace_settings.py)."""

    num_told = 0

    def configure_log(self) -> None:
        self.num_told += 1


class Office(StarRig):
    """A star with everybody joined whose front end a asks for changes."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = dict(SETTINGS)
        self.star.log_settings = self.settings
        repository = RepositoryPoller(self.loop, ServerOptions(), "@nowhere", self.settings, {})
        self.tracer = Tracer()
        settings = LogSettings(self.settings, self.star, repository, self.tracer)
        self._questions = Questions(self.loop, {"log_settings": settings.change})

    def change(self, **changes: Any) -> None:
        arguments = {"changes": changes}
        self._questions.take(self.a.member, QuestionAsked(1, "log_settings", arguments))
        self.clock.settle()


@pytest.fixture
def office() -> Iterator[Office]:
    before = (log.logger.handlers[:], log.logger.level, log.logger.propagate)
    made = Office()
    yield made
    log.logger.handlers[:], log.logger.level, log.logger.propagate = before
    made.close()


def answers(office: Office) -> list[Any]:
    office.clock.settle()
    return [message.result for message in office.a.heard() if isinstance(message, QuestionAnswered)]


def test_the_client_hears_when_every_front_end_and_the_batcher_have_acknowledged(office: Office) -> None:
    office.change(log_verbose=2, log_format="ISO8601")
    now = SETTINGS | {"log_verbose": 2, "log_format": "ISO8601"}
    told = [LogChanged(now)]
    for process in (office.a, office.b, office.batcher, office.third, office.fourth):
        assert process.heard() == told
    # A worker may be at a batch that takes a minute: it is not waited for.
    assert not office.third.unacknowledged
    for process in (office.batcher, office.b):
        office.acknowledge(process)
        assert answers(office) == []
    office.acknowledge(office.a)
    assert answers(office) == [now]


def test_who_dies_is_not_waited_for(office: Office) -> None:
    office.change(log_info=False)
    office.acknowledge(office.a)
    office.acknowledge(office.b)
    office.star.leave_batcher(office.batcher.member)
    assert answers(office) == [SETTINGS | {"log_info": False}]
    office.change(log_info=True)
    office.star.acknowledgements.gone(office.b.member)
    office.acknowledge(office.a)
    assert answers(office) == [SETTINGS]


def test_changes_add_up_and_are_in_force_here_at_once(office: Office) -> None:
    office.change(log_verbose=1)
    assert log.logger.level == logging.DEBUG
    office.change(log_error=False)
    office.settle()
    assert office.tracer.num_told == 2
    assert office.settings == SETTINGS | {"log_verbose": 1, "log_error": False}


def test_who_joins_later_is_told_what_is_in_force_then(office: Office) -> None:
    worker = office.start()  # it has been sent the settings with its model, and loads
    office.change(log_verbose=3)
    joined = office.star.join_worker(worker.member, {"max_batch_size": 0, "output": []})
    (memory,) = worker.heard()
    assert (type(memory), memory.log) == (MemoryGranted, office.settings)
    # From now on it listens, whether it has mapped its memory or not.
    office.change(log_verbose=4)
    assert worker.heard() == [LogChanged(SETTINGS | {"log_verbose": 4})]
    office.star.leave_batcher(office.batcher.member)
    successor = office.start()
    office.star.join_batcher(successor.member)
    assert successor.heard()[0].log["log_verbose"] == 4
    assert joined.owner in office.star.workers
