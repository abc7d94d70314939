"""gunicorn's settings and hooks, read by its arbiters. The supervisor passes variable ones in the environment.

Each arbiter, those of the lanes ("http", "grpc") and the road's, imports its workers' modules and waits for the
supervisor's signal before it touches the sockets: while models load, connections are refused, as Triton's clients
expect. The arbiter has no threads, so forking it is safe.
"""

import gc
import importlib
import json
import logging
import os
import resource
import sys
from typing import Any

from shoal import log
from shoal.process import die_with_parent, set_title

_ROLE = os.environ["SHOAL_FRONT_END"]
_WORKER_CLASSES = {
    "http": "shoal.frontend.lane.LaneWorker",
    "grpc": "shoal.frontend.grpc.lane.GrpcLaneWorker",
    "road": "shoal.frontend.road.road.RoadWorker",
}
_GO_FD = int(os.environ["SHOAL_GO_FD"])

worker_class = _WORKER_CLASSES[_ROLE]
wsgi_app = "shoal.frontend.road.road:create()"  # a lane has none and does not load it
bind = [f"fd://{fd}" for fd in os.environ["SHOAL_LISTENER_FDS"].split(",")]
workers = int(os.environ["SHOAL_PROCESSES"])
threads = int(os.environ["SHOAL_ROAD_THREADS"])
#: Most connections of the road, those that lanes hand over included: beyond these it would accept none on its own
#: endpoints, metrics among them (ours: as many as three lanes have, or half of a low limit of descriptors; gunicorn's
#: default is 1000).
worker_connections = max(threads + 1, min(32_768, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
#: Triton has no limit; proxies keep idle connections for 60 s, and the client should be the first to close.
keepalive = 75
#: Seconds after which a worker whose main thread hangs is ended; a slow model, which runs elsewhere, does not count.
timeout = 30
graceful_timeout = int(os.environ["SHOAL_GRACEFUL_TIMEOUT_S"])
#: 16 KiB of headers in all, 100 of them, as nginx and most proxies allow.
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190
backlog = 256
#: Proxies' headers about themselves are ignored, and must not make the road refuse what a lane answers.
secure_scheme_headers: dict[str, str] = {}
forwarder_headers = ""
#: gunicorn 25 and later open a control socket in the home directory unless told not to.
control_socket_disable = True
proc_name = f"shoal {_ROLE}"
accesslog = None
loglevel = "warning"


def on_starting(_arbiter: Any) -> None:
    """Import everything in the arbiter, before any socket is touched, then wait until the models are ready."""
    die_with_parent(int(os.environ["SHOAL_SUPERVISOR_PID"]))
    set_title(f"{_ROLE} (gunicorn)")
    importlib.import_module(worker_class.rpartition(".")[0])
    _forward_log()
    gc.freeze()  # the children share these pages as long as the collector does not touch them
    if not os.read(_GO_FD, 1):
        sys.exit(0)  # the supervisor gave up before there was anything to serve
    os.close(_GO_FD)


def _forward_log() -> None:
    """Give gunicorn's lines to Shoal's log: its own handler would wait for a full pipe, and stop its processes."""
    log.describe(_ROLE)
    log.configure(**json.loads(os.environ["SHOAL_LOG"]))
    logger = logging.getLogger("gunicorn.error")
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
    logger.addHandler(log.ForwardingHandler())


def post_fork(_arbiter: Any, worker: Any) -> None:
    """Let a worker die with its arbiter, which dies with the supervisor."""
    die_with_parent(worker.ppid)
