"""metrics_reporter.py: what reaches the other end of a control connection, and when."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from triton_python_backend_utils import metrics
from triton_python_backend_utils.metric_registry import MetricKind, MetricRegistry
from triton_python_backend_utils.metrics import MetricFamily, set_registry

from shoal.control import Channel
from shoal.messages.from_worker import MetricsReported
from shoal.messages.shared import Ping
from shoal.messages.to_worker import ReportMetrics
from shoal.workers import metrics_reporter
from shoal.workers.metrics_reporter import MetricsReporter, report_metrics
from tests.messages import receive


class Connection:
    """Both ends; the supervisor's waits for ten seconds."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(10)
        self._supervisor = Channel(ours)
        self.worker = Channel(self.theirs)

    def heard(self) -> Any:
        message, _ = receive(self._supervisor)
        return message

    def ask(self, message: Any) -> None:
        self._supervisor.send(message)

    def close(self) -> None:
        self._supervisor.close()
        self.worker.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.close()


class OvertakenRegistry(MetricRegistry):
    """Once, something happens when changes have been taken and are not yet reported."""

    meanwhile: Callable[[], None] | None = None

    def take_changes(self) -> list[list[Any]]:
        changes = super().take_changes()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return changes


@pytest.fixture
def registry() -> Iterator[MetricRegistry]:
    before = metrics.registry
    made = MetricRegistry()
    set_registry(made)
    yield made
    set_registry(before)


#: The first of a worker's messages: it has metrics.
NOTHING: Any = MetricsReported([])


def said(count: float | None) -> Any:
    return MetricsReported([["n", "counter", "Number", [[[["a", "b"]], count]]]])


def test_what_there_is_is_told_at_once_and_changes_soon(connection: Connection, registry: MetricRegistry) -> None:
    family = MetricFamily("n", "Number", MetricFamily.COUNTER)
    counter = family.Metric({"a": "b"})
    counter.increment(2)
    reporter = report_metrics(connection.worker)
    assert reporter is not None
    assert connection.heard() == said(2.0)
    assert connection.heard() == NOTHING
    counter.increment(1)
    assert connection.heard() == said(1.0)
    counter.increment(3)
    assert connection.heard() == said(3.0)
    thread = reporter._thread
    assert thread is not None
    connection.close()
    counter.increment(6)
    thread.join(10)
    assert not thread.is_alive()  # nobody hears it


def test_changes_within_the_interval_are_told_together_or_when_they_are_asked_for(
    connection: Connection, registry: MetricRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_reporter, "INTERVAL_S", 3600.0)
    family = MetricFamily("n", "Number", MetricFamily.COUNTER)
    counter = family.Metric({"a": "b"})
    reporter = report_metrics(connection.worker)
    assert reporter is not None
    assert [connection.heard(), connection.heard()] == [said(0.0), NOTHING]
    counter.increment(1)
    assert connection.heard() == said(1.0)  # the interval begins
    counter.increment(3)
    counter.increment(4)
    asked = threading.Event()

    def listen() -> None:
        message, _ = receive(connection.worker)
        assert message == ReportMetrics()
        reporter.flush()
        asked.set()

    reporter.listen_with(listen)
    connection.ask(ReportMetrics())
    assert asked.wait(10)
    assert connection.heard() == said(7.0)
    counter.increment(5)
    reporter.flush()  # at the end
    assert connection.heard() == said(5.0)


def test_the_first_change_is_announced_before_anything_else_is_done(
    connection: Connection, registry: MetricRegistry
) -> None:
    reporter = report_metrics(connection.worker)
    assert reporter is not None
    family = MetricFamily("n", "Number", MetricFamily.COUNTER)
    with registry.lock:  # nothing can be told meanwhile
        counter = family.Metric({"a": "b"})
        assert connection.heard() == NOTHING
        counter.increment(1)
    assert connection.heard() == said(1.0)


def test_reports_of_two_threads_arrive_in_the_order_of_the_changes(connection: Connection) -> None:
    """The worker's own thread reports when a scrape asks it, the reporter's when the interval is over."""
    registry = OvertakenRegistry()
    reporter = MetricsReporter(registry, connection.worker)
    handle = registry.register("n", MetricKind.GAUGE, "Number")
    gauge = registry.series(handle, (), ())
    other = threading.Thread(target=reporter.flush)

    def set_gauge(value: float) -> None:
        gauge.set(value)  # type: ignore[attr-defined]
        registry.note(handle.family, (), gauge)

    def meanwhile() -> None:
        set_gauge(2)
        other.start()
        other.join(0.2)  # it reports now, or when the first report has been sent

    set_gauge(1)
    registry.meanwhile = meanwhile
    reporter.flush()
    other.join(10)
    assert [connection.heard().families[0][3] for _ in range(2)] == [[[[], [1, 0.0]]], [[[], [2, 0.0]]]]


def test_a_deleted_family_is_told(connection: Connection, registry: MetricRegistry) -> None:
    family = MetricFamily("n", "Number", MetricFamily.COUNTER)
    family.Metric({"a": "b"})
    report_metrics(connection.worker)
    assert [connection.heard(), connection.heard()] == [said(0.0), NOTHING]
    del family
    assert connection.heard() == said(None)


def test_without_changes_nothing_is_said_and_no_thread_runs(connection: Connection, registry: MetricRegistry) -> None:
    reporter = MetricsReporter(registry, connection.worker)
    reporter.start()
    reporter.flush()
    connection.worker.send(Ping())
    assert connection.heard() == Ping()
    MetricFamily("n", "Number", MetricFamily.COUNTER)
    reporter.flush()
    connection.worker.send(Ping())
    assert connection.heard() == Ping()
