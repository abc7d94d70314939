"""readiness.py: asked by the supervisor, answered by the model between batches, in the loop's own thread."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from shoal import log
from shoal.control import Channel
from shoal.errors import InternalError
from shoal.messages.from_worker import ReadyAnswered
from shoal.messages.to_worker import CheckReady, StopWorker
from shoal.model_config.signature import Signature
from shoal.workers.loop import Loop, ReadyCheck
from tests.messages import receive
from tests.workers.worker_harness import CONFIG, Batcher, Returning, rows

QUESTION, STOP = CheckReady(), StopWorker()


class Checked(Returning):
    """Is as ready as the test says."""

    def __init__(self, check: Callable[[], bool]) -> None:
        super().__init__(lambda inputs: {"OUTPUT0": inputs["INPUT0"]})
        self._check = check

    @property
    def has_ready_check(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return self._check()


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        yield Channel(here), Channel(there)


def failing(sentence: str) -> Callable[[], bool]:
    def check() -> bool:
        raise InternalError(sentence)

    return check


def test_it_is_answered_after_the_batches_that_have_come(batcher: Batcher, channels: tuple[Channel, Channel]) -> None:
    supervisor, worker = channels
    done: list[int] = []

    def check() -> bool:
        assert threading.current_thread() is threading.main_thread()
        done.append(len(batcher.done()))
        return True

    batcher.send(batcher.request([("INPUT0", "FP32", rows(5))]))
    supervisor.send(QUESTION)
    supervisor.send(STOP)
    Loop(Checked(check), Signature.from_config(CONFIG), "m_0_0", batcher.memory()).run(worker)
    assert receive(supervisor)[0] == ReadyAnswered(True)
    assert done == [1]


def test_another_thread_may_hear_the_question(batcher: Batcher, channels: tuple[Channel, Channel]) -> None:
    """A sender's that waits for memory, while the loop's own executes."""
    supervisor, worker = channels
    heard = Loop(Checked(lambda: False), Signature.from_config(CONFIG), "m_0_0", batcher.memory())
    heard.obey(worker, QUESTION, 0)
    supervisor.send(STOP)
    heard.run(worker)
    assert receive(supervisor)[0] == ReadyAnswered(False)


def test_what_goes_wrong_means_no_and_is_logged_once_until_it_changes(
    channels: tuple[Channel, Channel], caplog: pytest.LogCaptureFixture
) -> None:
    supervisor, worker = channels
    checks = [failing("no database"), failing("no database"), failing("no disk"), lambda: True, failing("no disk")]
    left = iter(checks)

    def check() -> bool:
        return next(left)()

    ready_check = ReadyCheck(Checked(check), "m_0_0")
    with caplog.at_level(logging.ERROR, log.logger.name):
        for _ in checks:
            ready_check.is_asked = True
            ready_check.answer(worker)
            assert not ready_check.is_asked
    answers = [receive(supervisor)[0].is_ready for _ in checks]
    assert answers == [False, False, False, True, False]
    failed = "is_ready of model instance 'm_0_0' failed: "
    assert caplog.messages == [failed + "no database", failed + "no disk", failed + "no disk"]
