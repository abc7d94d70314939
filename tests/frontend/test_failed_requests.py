"""failed_requests.py: a request that an instance died of has a line; a flood of them costs a few lines and a count."""

import logging
from dataclasses import replace

import pytest

from shoal.frontend import failed_requests
from shoal.frontend.failed_requests import LINES_PER_S, FailedRequests, answered
from shoal.reasons import QueueFullError, WorkerDiedError
from shoal.shm.port import Reply
from shoal.star.models import ModelEntry
from tests.star.entries import entry_of

#: Of pid 4242, instance 1 of the first group: killed by signal 9, and ended after 2 s.
DIED = Reply(1, 2, 5, None, None, 4242 << 42 | 1 << 26 | 0xFFF7)
QUEUE_FULL = Reply(1, 5, 1, None, None)
now_s = [100.0]


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> ModelEntry:
    monkeypatch.setattr(failed_requests, "FAILED_REQUESTS", FailedRequests(lambda: now_s[0]))
    logging.getLogger("shoal").propagate = True
    return replace(entry_of("simple", 0, []), groups=("simple_0",))


def test_a_line_names_the_request_the_instance_and_its_end(entry: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(QueueFullError):
        answered(entry, "r7", QUEUE_FULL)  # which is no failure of the model's
    with pytest.raises(WorkerDiedError) as told:
        answered(entry, "r7", DIED)
    [record] = caplog.records
    assert record.getMessage() == str(told.value)
    fields = {"stage": "execute", "model": "simple", "version": "1", "instance": "simple_0_1", "worker_pid": 4242}
    assert vars(record).items() >= {**fields, "signal": "SIGKILL", "request_id": "r7"}.items()


def test_a_flood_has_a_few_lines_a_second_and_a_count(entry: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        with pytest.raises(WorkerDiedError):
            answered(entry, "", DIED)
    assert len(caplog.records) == LINES_PER_S
    now_s[0] += 1.0
    with pytest.raises(WorkerDiedError):
        answered(entry, "", DIED)
    assert caplog.messages[-1].endswith(f" ({20 - LINES_PER_S} more requests failed so before it, without a line)")
