"""The threads of a worker process for the instances of its model except the first instance, which runs in the main
thread.

Each thread works like a worker process: it has a connection to the supervisor, a segment, rings and a loop of its own,
and shares only the loaded model with the other threads. The end of the process ends all of its instances.
"""

import logging
import os
import threading
from collections.abc import Callable

from shoal import control
from shoal.control import GONE, Channel
from shoal.messages.from_worker import WorkerConnected
from shoal.process import EXIT_DEVICE_LOST
from shoal.workers.faults import DeviceLostError

_log = logging.getLogger(__name__)


class InstanceThreads:
    """The threads of all instances but the first. Only the main thread uses this object."""

    def __init__(self, serve: Callable[[Channel], None]) -> None:
        """`serve` is called in each thread with the instance's connection, and returns once the instance is stopped; it
        may raise the errors in GONE, and DeviceLostError."""
        self._serve = serve
        # This field is changed by start.
        self._threads: list[threading.Thread] = []

    def start(self, number: int) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        # A daemon: a process whose supervisor has gone must not wait for a thread that executes.
        thread = threading.Thread(target=self._run, args=(number,), name=f"instance {number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait until all instances have been stopped and their threads have ended."""
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        # Closed last: the supervisor kills a process that closes a connection before it ends.
        channel: Channel | None = None
        try:
            channel = control.join(WorkerConnected(number))
            self._serve(channel)
        except GONE:
            pass  # the supervisor has closed the connection, or is gone
        except DeviceLostError:
            os._exit(EXIT_DEVICE_LOST)  # as the main thread does: the whole process has lost the GPU
        except BaseException as error:  # noqa: BLE001 - outermost, see below
            # If only this thread ended, the supervisor would wait for an instance that never answers.
            _log.exception("a thread of the worker has failed, and the process ends")
            # A model that calls exit() ends the process, as it does in the main thread.
            status = error.code or 0 if isinstance(error, SystemExit) else 1
            os._exit(status if isinstance(status, int) else 1)
        if channel is not None:
            channel.close()
