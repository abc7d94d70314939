"""refusals.py: a flood of bad requests costs a few lines a second, and a count of the rest."""

import logging

import pytest

from shoal.frontend.road.refusals import LINES_PER_S, RefusalLog


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, None)
    return logging.LogRecord("gunicorn.error", logging.WARNING, "glogging.py", 1, message, (), caught)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> RefusalLog:
    made = RefusalLog(lambda: now_s[0])
    monkeypatch.setattr(made, "_summarise_after", summaries.append)
    return made


now_s = [100.0]
summaries: list[float] = []


def test_a_flood_is_summarised(refusals: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    now_s[0], summaries[:] = 100.0, []
    logging.getLogger("shoal").propagate = True
    passed = [refusals.filter(record("Invalid request from ip=192.0.2.1: no")) for _ in range(20)]
    assert passed == [True] * LINES_PER_S + [False] * (20 - LINES_PER_S)
    assert summaries == [1.0], "one summary for all of a second"
    assert refusals.filter(record("Worker failed to boot.")), "other lines are gunicorn's own"
    now_s[0] += 1.0
    with caplog.at_level(logging.WARNING, "shoal"):
        refusals.summarise()
        refusals.summarise()
    assert caplog.messages == [f"{20 - LINES_PER_S} more requests were refused, of which there is no line"]
    assert refusals.filter(record("Invalid request from ip=192.0.2.1: no"))


def test_a_client_that_stops_in_the_middle_of_a_request_is_not_logged(refusals: RefusalLog) -> None:
    assert not refusals.filter(record("Error handling request", BlockingIOError()))
