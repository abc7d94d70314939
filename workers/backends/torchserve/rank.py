"""Entry of a companion of a worker: a further rank of a handler that runs in several processes (ranks.py).

Exec'd by the worker as `python -m shoal.workers.backends.torchserve.rank`. It loads the handler as the worker does, and
executes each batch that the worker sends; what the handler returns is dropped. It ends with the worker.
"""

import faulthandler
import logging
import os
import sys
from multiprocessing.connection import Connection

import msgpack

from shoal.errors import ShoalError
from shoal.process import die_with_parent, ignore_group_signals, set_title
from shoal.workers.backends.backend import BackendModel, Device
from shoal.workers.backends.torchserve.backend import TorchserveBackend
from shoal.workers.backends.torchserve.ranks import FD_VARIABLE, pack

_log = logging.getLogger("shoal.workers.backends.torchserve.rank")


def main() -> int:
    """Run the process; returns its exit status."""
    die_with_parent()
    faulthandler.enable()
    ignore_group_signals()
    rank = os.environ["RANK"]
    set_title(f"worker {sys.argv[1]} rank {rank}")
    connection = Connection(int(os.environ.pop(FD_VARIABLE)))
    try:
        model, device = msgpack.unpackb(connection.recv_bytes(), use_list=False)
        backend = TorchserveBackend()
        try:
            backend.load_rank(BackendModel(*model), Device(*device))
        except ShoalError as error:
            connection.send_bytes(pack(str(error)))
            connection.recv_bytes()  # until the worker, which reports the error, has ended
        connection.send_bytes(pack(""))
        while True:
            backend.execute_rank(msgpack.unpackb(connection.recv_bytes(), use_list=False))
    except (EOFError, OSError):
        return 0  # the worker has ended, or unloads the model


if __name__ == "__main__":
    sys.exit(main())
