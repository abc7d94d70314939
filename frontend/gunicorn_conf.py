"""gunicorn's settings and hooks, read by gunicorn's arbiter. Settings that vary come from the supervisor, in
environment variables.

The arbiter imports the modules of its workers, which are the lanes ("http", "grpc") and the road, and waits for the
supervisor's signal before it touches the sockets: while models load, connections are refused, as Triton's clients
expect. The arbiter has no threads, so forking it is safe.
"""

import ctypes
import gc
import importlib
import json
import logging
import os
import resource
import sys
from contextlib import suppress
from typing import Any

from shoal import log
from shoal.frontend.arbiter import WORKER_CLASSES, listener_fds
from shoal.frontend.tls import context as tls_context
from shoal.process import die_with_parent, set_title, trim_heap

#: The parameter of glibc's mallopt that limits the number of arenas (malloc.h).
_M_ARENA_MAX = -8

_ROLES: dict[str, int] = json.loads(os.environ["SHOAL_FRONT_ENDS"])
_GO_FD = int(os.environ["SHOAL_GO_FD"])

worker_class = "gthread"  # the road's class inherits from it; the arbiter sets the class of each role
wsgi_app = "shoal.frontend.road.road:create()"  # the road's application; a lane does not load it
bind = [f"fd://{fd}" for role in _ROLES for fd in listener_fds(os.environ, role)]
workers = sum(_ROLES.values())
threads = int(os.environ["SHOAL_ROAD_THREADS"])
#: Most connections of the road, those that lanes hand over included: beyond this number the road accepts none on its
#: own endpoints, metrics among them (ours: as many as three lanes may have, but no more than half of the process's
#: limit of descriptors; gunicorn's default is 1000).
worker_connections = max(threads + 1, min(32_768, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
#: Seconds that an idle connection is kept. Triton has no limit; proxies keep connections for 60 s, and the client
#: should be the first to close.
keepalive = 75
#: Seconds after which the arbiter ends a front end whose main thread hangs. A slow model runs in a process of its own,
#: so it makes no main thread hang.
timeout = 30
graceful_timeout = int(os.environ["SHOAL_GRACEFUL_TIMEOUT_S"])
#: Request lines and header lines of at most 8 KiB, and at most 100 header lines, as nginx and most proxies allow.
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190
backlog = 256
#: Proxies' headers about themselves are ignored: by gunicorn's default they could make the road refuse a request that a
#: lane answers.
secure_scheme_headers: dict[str, str] = {}
forwarder_headers = ""
#: gunicorn 25 and later open a control socket in the home directory unless told not to.
control_socket_disable = True
proc_name = "shoal front ends"
accesslog = None
loglevel = "warning"


def on_starting(_arbiter: Any) -> None:
    """Import everything in the arbiter, before any socket is touched, then wait until the models are ready."""
    die_with_parent(int(os.environ["SHOAL_SUPERVISOR_PID"]))
    set_title("front ends (gunicorn)")
    for role in _ROLES:
        importlib.import_module(WORKER_CLASSES[role].rpartition(".")[0])
        tls_context.read_in_arbiter(role)
    if module := os.environ["SHOAL_MODULE"]:  # a module that only some servers' front ends need
        importlib.import_module(module)
    _limit_arenas()
    _forward_log()
    trim_heap()  # give freed memory back before the forks, as in shoal/zygote.py
    gc.freeze()  # the children share these objects' pages until a collector writes to them
    if not os.read(_GO_FD, 1):
        sys.exit(0)  # the supervisor gave up before there was anything to serve


def _limit_arenas() -> None:
    """Limit glibc to two arenas of memory instead of one per thread: each arena keeps what its largest request took.

    16 threads that received bodies of 2 MB of JSON took 340 MiB, and with two arenas 110 MiB. Two suffice, since the
    GIL lets one thread run at a time. glibc reads MALLOC_ARENA_MAX only when a program is exec'd, but this process may
    have been forked.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError):  # the C library is not glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _forward_log() -> None:
    """Give gunicorn's lines to Shoal's log: gunicorn's own handler would block its processes while a pipe is full."""
    log.describe("front ends")
    log.configure(**json.loads(os.environ["SHOAL_LOG"]))
    logger = logging.getLogger("gunicorn.error")
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
    logger.addHandler(log.ForwardingHandler())


def post_fork(arbiter: Any, worker: Any) -> None:
    """Let a worker die with the arbiter, which dies with the supervisor, and close what the worker's role does not
    need."""
    die_with_parent(worker.ppid)
    arbiter.become(worker)
