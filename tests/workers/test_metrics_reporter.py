"""metrics_reporter.py: what reaches the other end of a control connection, and when."""

import socket
import threading
from collections.abc import Iterator

import pytest
from triton_python_backend_utils import metrics
from triton_python_backend_utils.metrics import MetricFamily, MetricRegistry, set_registry

from shoal.control import Channel, Message
from shoal.workers import metrics_reporter
from shoal.workers.metrics_reporter import INTERVAL_S, MetricsReporter, report_metrics


class Connection:
    """Both ends; the supervisor's waits for ten seconds."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(10)
        self._supervisor = Channel(ours)
        self.worker = Channel(self.theirs)

    def heard(self) -> Message:
        message, _ = self._supervisor.receive()
        return message

    def close(self) -> None:
        self._supervisor.close()
        self.worker.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.close()


@pytest.fixture
def registry() -> Iterator[MetricRegistry]:
    before = metrics.registry
    made = MetricRegistry()
    set_registry(made)
    yield made
    set_registry(before)


def said(count: float) -> Message:
    return {"op": "metrics", "families": [["n", "counter", "Number", [[[["a", "b"]], count]]]]}


class Interval:
    """Time passes for the reporter when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._over = threading.Semaphore(0)

    def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._over.acquire()

    def end(self) -> None:
        self._over.release()


def test_what_there_is_is_told_at_once_and_changes_soon(
    connection: Connection, registry: MetricRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = Interval()
    monkeypatch.setattr(metrics_reporter, "time", interval)
    counter = MetricFamily("n", "Number", MetricFamily.COUNTER).Metric({"a": "b"})
    counter.increment(2)
    reporter = report_metrics(connection.worker)
    assert reporter is not None
    assert connection.heard() == said(2.0)
    counter.increment(1)
    assert connection.heard() == said(1.0)
    counter.increment(3)
    counter.increment(4)
    interval.end()
    assert connection.heard() == said(7.0)  # together, as they come within the interval
    assert interval.asked[0] == INTERVAL_S
    counter.increment(5)
    reporter.flush()
    assert connection.heard() == said(5.0)
    counter.increment(6)
    connection.close()
    interval.end()
    thread = reporter._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()  # nobody hears it


def test_without_changes_nothing_is_said_and_no_thread_runs(connection: Connection, registry: MetricRegistry) -> None:
    reporter = MetricsReporter(registry, connection.worker)
    reporter.start()
    reporter.flush()
    connection.worker.send({"op": "end"})
    assert connection.heard() == {"op": "end"}
    MetricFamily("n", "Number", MetricFamily.COUNTER)
    reporter.flush()
    connection.worker.send({"op": "end"})
    assert connection.heard() == {"op": "end"}
