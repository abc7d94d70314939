"""batcher/failure_log.py: which failures have a line, and what connects it with other lines."""

import json
import logging
from types import SimpleNamespace
from typing import cast

import pytest

from shoal.batcher.failure_log import log_failure
from shoal.batcher.peers import RunningBatch, ScheduledModel
from shoal.errors import InternalError, InvalidArgumentError
from shoal.finished_request import FinishedRequest
from shoal.log import JsonFormatter
from shoal.reasons import DeathDetail, Reason
from shoal.timing import Execution, Points

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
INSTANCE = DeathDetail(pid=4711, group=0, number=1, figure=0).pack()
EXECUTION = Execution(INSTANCE, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0)
RUNNING = cast(RunningBatch, SimpleNamespace(number=7))
MODEL = cast(
    ScheduledModel, SimpleNamespace(signature=SimpleNamespace(name="mlp"), version=3, groups=("mlp_0", "mlp_1"))
)
POINTS = Points(0, 1, 2, 3, 4, 5, 6, 7)


def failed(status: int, reason: int = 0, *, id_: str = "", trace_id: str = "", detail: int = 0) -> FinishedRequest:
    said, execution = ("", None) if reason else ("it fell over", EXECUTION)
    return FinishedRequest(1, "front end", id_, trace_id, 1, POINTS, status, reason, detail, said, execution)


def test_a_line_has_the_ids_of_request_trace_and_batch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        log_failure(MODEL, failed(InternalError.wire, id_="picture 3", trace_id=TRACE), RUNNING)
        log_failure(MODEL, failed(InternalError.wire), RUNNING)
    whole, bare = [json.loads(JsonFormatter().format(each)) for each in caplog.records]
    ids = {"request_id": "picture 3", "trace_id": TRACE, "batch": 7, "worker_pid": 4711, "instance": "mlp_0_1"}
    assert {name: whole[name] for name in ids} == ids
    assert (whole["model"], whole["version"], whole["stage"]) == ("mlp", "3", "execute")
    assert whole["message"].endswith("batch 7): it fell over")
    assert not {"request_id", "trace_id"} & bare.keys()


def test_what_clients_or_the_load_are_the_reason_of_has_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        log_failure(MODEL, failed(InvalidArgumentError.wire), RUNNING)
        log_failure(MODEL, failed(InternalError.wire, Reason.TIMED_OUT), None)
    assert caplog.records == []


def test_a_death_names_the_signal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        detail = DeathDetail(pid=12, group=1, number=0, figure=-9 & 0xFFFF).pack()
        log_failure(MODEL, failed(InternalError.wire, Reason.INSTANCE_DIED, detail=detail), None)
    (record,) = caplog.records
    assert "(stage execute, instance mlp_1_0, worker_pid 12)" in record.getMessage()
    assert "SIGKILL" in record.getMessage()
    assert json.loads(JsonFormatter().format(record))["signal"] == "SIGKILL"
