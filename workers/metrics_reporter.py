"""Changes of a model's own metrics, sent to the supervisor soon after each change, but at most ten times a second; on
request; and when the worker ends.

A thread of this file's own sends them, so that changes that a model's threads make between batches are reported, too.
It also receives the supervisor's messages while a batch is executed, so that a scrape of /metrics shows what the model
has counted before the scrape, in that batch, too. The thread starts with the first change, since most models have no
metrics. Runs in a worker.
"""

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.control import GONE, Channel
from shoal.messages.from_worker import MetricsReported
from shoal.shm.doorbell import Doorbell

if TYPE_CHECKING:  # most workers never import the registry
    from triton_python_backend_utils.metric_registry import MetricRegistry

_log = logging.getLogger(__name__)

#: Seconds between two reports that no scrape asks for (ours). Unreported changes are lost when a worker dies.
INTERVAL_S = 0.1
_MODULE = "triton_python_backend_utils.metrics"


class MetricsReporter:
    """The reporter of one registry's changes on the control connection."""

    def __init__(self, registry: "MetricRegistry", channel: Channel) -> None:
        self._registry = registry
        self._channel = channel
        self._bell = Doorbell.create()  # rung when a metric changes, and by listen_with
        self._reporting = threading.Lock()  # held while a report is made and sent: keeps reports in order
        # Changed when a metric first changes, under the registry's lock, and by listen_with.
        self._thread: threading.Thread | None = None
        self._listen: Callable[[], None] | None = None

    def start(self) -> None:
        """Report all changes so far, and all later changes as they come."""
        self._registry.on_change = self._note
        if self.flush():
            self._note()

    def flush(self) -> bool:
        """Report all changes now. Returns True if there were any."""
        with self._reporting:
            changes = self._registry.take_changes()
            if changes:
                self._channel.send(MetricsReported(changes))
        return bool(changes)

    def listen_with(self, listen: Callable[[], None]) -> None:
        """Have the reporter's thread receive the supervisor's messages, too: `listen` receives and applies the next
        message, and does nothing if another thread has received it."""
        self._listen = listen
        self._bell.ring()

    def _note(self) -> None:
        """Note that a metric has changed. Finalizers call this, too, but only after the thread has started."""
        if self._thread is None:
            self._channel.send(MetricsReported([]))  # tells the supervisor to ask this worker at each scrape
            self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
            self._thread.start()
        self._bell.ring()

    def _run(self) -> None:
        try:
            self._report()
        except (*GONE, OSError):
            return  # the supervisor is gone, and this process about to end
        except Exception:  # noqa: BLE001 - the thread's rim: a received message may be half applied
            _log.exception("this process cannot go on without its metrics")
            os._exit(1)

    def _report(self) -> None:
        poller, due_s, has_changed = select.poll(), 0.0, False
        bell_fd, channel_fd = self._bell.fd, self._channel.fileno()
        poller.register(bell_fd, select.POLLIN)
        while True:
            left_s = due_s - time.monotonic()
            if has_changed and left_s <= 0:
                has_changed = False
                if self.flush():  # False if another thread has reported the changes already
                    due_s = time.monotonic() + INTERVAL_S
                continue
            ready = dict(poller.poll(left_s * 1000 if has_changed else None))
            if bell_fd in ready:
                self._bell.clear()
                has_changed = True
                if self._listen is not None:
                    poller.register(channel_fd, select.POLLIN)
            if channel_fd in ready and self._listen is not None:
                self._listen()


def report_metrics(channel: Channel) -> MetricsReporter | None:
    """Report the metrics of the model that this process has loaded; None if its backend can have none."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return None
    reporter = MetricsReporter(module.registry, channel)
    reporter.start()
    return reporter
