"""What a model's own metrics have changed by, told to the supervisor: soon, at most ten times a second, and at the end.

A thread of its own sends, so that what a model's threads count while no batch comes is told, too. It starts with the
first change: most models have no metrics. Runs in a worker.
"""

import sys
import threading
import time
from typing import Any, Protocol

from shoal.control import Channel

#: Between two reports (ours). A worker that dies takes what it had not reported along.
INTERVAL_S = 0.1
_MODULE = "triton_python_backend_utils.metrics"


class Registry(Protocol):
    """What is needed of triton_python_backend_utils.metrics.MetricRegistry, which most workers never import."""

    on_change: Any

    def take_changes(self) -> list[list[Any]]: ...


class MetricsReporter:
    """Reports one registry's changes on the control connection."""

    def __init__(self, registry: Registry, channel: Channel) -> None:
        self._registry = registry
        self._channel = channel
        self._has_changed = threading.Event()
        # Changed by the first change, under the registry's lock.
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Report what there is, and hear of changes from now on."""
        self._registry.on_change = self._note
        self.flush()

    def flush(self) -> None:
        """Report now."""
        changes = self._registry.take_changes()
        if changes:
            self._channel.send({"op": "metrics", "families": changes})

    def _note(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
            self._thread.start()
        self._has_changed.set()

    def _run(self) -> None:
        try:
            while True:
                self._has_changed.wait()
                self._has_changed.clear()
                self.flush()
                time.sleep(INTERVAL_S)
        except OSError:
            return  # the supervisor is gone, and this process about to be


def report_metrics(channel: Channel) -> MetricsReporter | None:
    """Report the metrics of the model that this process has loaded; None where its backend can have none."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return None
    reporter = MetricsReporter(module.registry, channel)
    reporter.start()
    return reporter
