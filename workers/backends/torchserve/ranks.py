"""A handler in several processes, as torchrun starts them: this worker is rank 0, its companions are the other ranks.

    worker ── each batch ──► rank 1, rank 2, …          rank ── loaded, or why not ──► worker

All ranks load the handler at the same time, so that `torch.distributed.init_process_group` finds them all; only the
worker answers. With pipelines (pp) only the worker gets batches, with tensor parallelism (tp, pptp) every rank does. If
a rank ends, the worker ends, too, and is started again with all ranks.

Ranks are forked by the worker before it imports the handler: it has one thread then and maps no segment, and a zygote
may have imported torch for all of them. Runs in a worker; rank.py is what runs in the other ranks.
"""

import logging
import os
import select
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import NamedTuple

import msgpack

from shoal.errors import InternalError, ShoalError
from shoal.workers.backends.backend import BackendModel, Device
from shoal.workers.backends.torchserve import rank
from shoal.workers.backends.torchserve.archive import Launch

_log = logging.getLogger(__name__)

_EXIT_S = 5.0  # how long a rank may take to end when its model is unloaded; then it is killed (ours)
#: How long the worker may take to load the handler after another rank could not. Then it may wait for that rank in a
#: collective operation, which never returns: the rank's reason is reported in its place, and it is ended (ours).
_REPORT_S = 5.0


class _Process(NamedTuple):
    """The process of a rank."""

    pid: int
    end: int  # a pidfd: readable when the process has ended

    def wait(self, limit_s: float) -> None:
        """Wait until the process has ended; it is killed if it has not ended after `limit_s` seconds."""
        if not select.select([self.end], [], [], limit_s)[0]:
            signal.pidfd_send_signal(self.end, signal.SIGKILL)
        with suppress(ChildProcessError):  # the handler may have waited for all children of its process
            os.waitpid(self.pid, 0)


class Ranks:
    """The companions of a worker: the handler's processes with ranks 1 and up."""

    def __init__(self, launch: Launch, refuse: Callable[[ShoalError], None]) -> None:
        self._launch = launch
        self._refuse = refuse
        # These fields are changed by start and close.
        self._processes: list[_Process] = []
        self._connections: list[Connection] = []
        self._is_closing = False
        # These fields are changed by the watching thread, and by wait_until_loaded.
        self._fault = ""  # why a rank could not load
        self._all_loaded, self._is_reported = threading.Event(), threading.Event()

    def start(self, model: BackendModel, device: Device, backend: rank.RankBackend) -> None:
        """Start the other ranks, which load the handler, each in a copy of `backend`; then set the environment
        variables by which this process is rank 0. Raises InternalError if the system does not start a process."""
        port, worker = _free_port(), os.getpid()
        for number in range(1, self._launch.num_processes):
            try:
                ours, theirs = Pipe()
                pid = _fork()
                end = os.pidfd_open(pid) if pid else -1
            except OSError as error:
                raise InternalError(f"rank {number} of the handler cannot be started: {error.strerror}") from error
            if not pid:
                for connection in (ours, *self._connections):
                    connection.close()
                os.environ.update(self._environment(number, port))
                rank.become(number, worker, theirs, backend, model, device)
            theirs.close()
            self._processes.append(_Process(pid, end))
            self._connections.append(ours)
        os.environ.update(self._environment(0, port))
        threading.Thread(target=self._watch, name="shoal-ranks", daemon=True).start()

    def wait_until_loaded(self) -> None:
        """Wait until all other ranks have loaded. Raises InternalError with the reason of a rank that could not
        load."""
        self._all_loaded.wait()
        if self._fault:
            self._is_reported.set()
            raise InternalError(self._fault)

    def execute(self, batch: Sequence[rank.RankRequest]) -> None:
        """Send a batch to the other ranks, if they get batches."""
        if not self._launch.shares_batches:
            return
        packed = rank.pack(list(batch))
        for connection in self._connections:
            connection.send_bytes(packed)

    def close(self) -> None:
        self._is_closing = True
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.wait(_EXIT_S)

    def _environment(self, number: int, port: int) -> dict[str, str]:
        """The variables by which torch.distributed finds the other ranks, as torchrun sets them on one machine."""
        own, all_of_them = str(number), str(self._launch.num_processes)
        return {
            "RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": all_of_them, "LOCAL_WORLD_SIZE": all_of_them,
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": own, "ROLE_WORLD_SIZE": all_of_them,
            "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
            "OMP_NUM_THREADS": str(self._launch.num_threads),
        }  # fmt: skip

    def _watch(self) -> None:
        """Wait until the other ranks have loaded, in a thread of its own. Ends this worker if a rank cannot load, and
        `wait_until_loaded` has not reported that within _REPORT_S, or if a loaded rank ends."""
        missing = dict(zip(self._connections, range(1, self._launch.num_processes), strict=True))
        while missing and not self._fault:
            for connection in wait(list(missing)):
                assert isinstance(connection, Connection)
                number = missing.pop(connection)
                try:
                    reason = msgpack.unpackb(connection.recv_bytes())
                except (EOFError, OSError):
                    reason = "it has ended"
                if reason:
                    self._fault = f"rank {number} of the handler cannot load it: {reason}"
        self._all_loaded.set()
        if self._fault:
            if not self._is_reported.wait(_REPORT_S):
                with suppress(OSError):  # the supervisor has gone
                    self._refuse(InternalError(self._fault))
                self._end(self._fault)
            return
        ends = {process.end: number for number, process in enumerate(self._processes, 1)}
        ready, _, _ = select.select(list(ends), [], [])
        if not self._is_closing:
            self._end(f"rank {ends[ready[0]]} of the handler has ended; its worker ends with it")

    def _end(self, sentence: str) -> None:
        _log.error("%s", sentence)
        os._exit(1)


def _fork() -> int:
    with warnings.catch_warnings():
        # From 3.12 on Python warns if a process with other threads forks. Its count is wrong if the process's title has
        # spaces, so the warning is suppressed.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _free_port() -> int:
    """A port that is free now. torch.distributed's store binds it a moment later; should another program be quicker,
    the load fails and is tried again."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port: int = opened.getsockname()[1]
        return port
