"""A companion of a worker: a further rank of a handler that runs in several processes (ranks.py).

A rank is a fork of the worker, and becomes a process of its own here. It loads the handler as the worker does, and
executes each batch that the worker sends; the handler's results are dropped. It ends with the worker.
"""

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NoReturn, Protocol, TypeAlias

import msgpack

from shoal.errors import ShoalError
from shoal.process import die_with_parent, finish, set_title, take_group_signals
from shoal.workers.backends.backend import BackendModel, Device

#: A request as ranks get it: its tensor in wire form, its parameter `ts` or None, its id.
RankRequest: TypeAlias = tuple[bytes, str | None, str]


class RankBackend(Protocol):
    """The methods of the handler's backend that a rank calls."""

    def load_rank(self, model: BackendModel, device: Device) -> None: ...

    def execute_rank(self, batch: Sequence[RankRequest]) -> None: ...


def become(
    number: int, worker: int, connection: Connection, backend: RankBackend, model: BackendModel, device: Device
) -> NoReturn:
    """Turn this process, a fork of the worker, into the rank of this number. Does not return, since the code that calls
    this function is the worker's: this process ends here."""
    status = 1
    try:
        die_with_parent(worker)
        take_group_signals()
        set_title(f"worker {model.instance_name} rank {number}")
        _close_sockets(connection.fileno())
        numpy_random = sys.modules.get("numpy.random")  # Python's own generator is reseeded by a fork
        if numpy_random is not None:
            numpy_random.seed()
        status = _run(connection, backend, model, device)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - the process ends, and prints why
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        try:
            finish()
        finally:
            os._exit(status)


def _run(connection: Connection, backend: RankBackend, model: BackendModel, device: Device) -> int:
    """Load the handler, and execute batches until the worker has ended or unloads the model. Returns the exit
    status."""
    try:
        try:
            backend.load_rank(model, device)
        except ShoalError as error:
            connection.send_bytes(pack(str(error)))
            connection.recv_bytes()  # returns when the worker, which reports the error, has ended
        connection.send_bytes(pack(""))
        while True:
            backend.execute_rank(msgpack.unpackb(connection.recv_bytes(), use_list=False))
    except (EOFError, OSError):
        return 0


def pack(value: object) -> bytes:
    """A message between a worker and its companions; `msgpack.unpackb` reads it."""
    return msgpack.packb(value)  # type: ignore[no-any-return]


def _close_sockets(kept: int) -> None:
    """Close the worker's sockets, among them its connection to the supervisor, but not this process's output, which may
    be a socket, nor the descriptor `kept`. Objects of the worker that have such a socket are neither used nor finalised
    any more."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and fd != kept and os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(fd)
        except OSError:
            continue  # e.g. the descriptor by which listdir has read the directory
