"""The front ends as the supervisor sees them: listening sockets and the gunicorn that serves them.

Sockets are bound first, so that a port in use is known before any model loads, and listen last, so that clients are
refused until every model has loaded, as Triton's are. gunicorn's arbiter imports meanwhile and waits for one byte.
"""

import logging
import os
import signal
import socket
from collections.abc import Callable

from shoal.control import ADDRESS_VARIABLE, Message
from shoal.options import ServerOptions
from shoal.supervisor.children import Child, backoff_s, describe_exit, spawn
from shoal.supervisor.event_loop import EventLoop

_log = logging.getLogger(__name__)

#: gunicorn looks at these and would take over what is not meant for it.
_FOREIGN_VARIABLES = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "GUNICORN_CMD_ARGS", "GUNICORN_FD",
                      "GUNICORN_PID", "WEB_CONCURRENCY")  # fmt: skip
#: A road thread is busy with one request where one of Triton's HTTP threads juggles many (ours).
THREADS_PER_HTTP_THREAD = 8
#: No half-sent request, half-sent body or unread reply holds a thread of the road longer than this per system call.
SOCKET_TIMEOUT_S = 10


def bind(options: ServerOptions) -> list[socket.socket]:
    """The HTTP socket and, if wanted, the metrics socket: bound, not listening.

    Raises OSError naming the address and the flag.
    """
    listeners = []
    if options.allow_http:
        listeners.append(_bind("http", options.http_address, options.http_port))
    if options.allow_metrics:
        listeners.append(_bind("metrics", options.metrics_address, options.metrics_port))
    return listeners


def _bind(service: str, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit both: a deadline for each recv and send that no worker class has to enforce.
    timeval = SOCKET_TIMEOUT_S.to_bytes(8, "little") + bytes(8)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"cannot listen on {address}:{port}: {error.strerror}. "
            f"Choose another --{service}-port or --{service}-address, or stop what listens there"
        ) from error
    bound = listener.getsockname()
    _log.info("%s:%d is bound for %s; it accepts connections once the models have loaded", bound[0], bound[1], service)
    return listener


class HttpServer:
    """gunicorn's arbiter and the sockets it serves. `on_ended` is called when it has ended after `stop`."""

    def __init__(
        self,
        loop: EventLoop,
        options: ServerOptions,
        control_address: str,
        listeners: list[socket.socket],
        on_ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._options = options
        self._control_address = control_address
        self._listeners = listeners
        self._on_ended = on_ended
        # Front ends join for as long as the arbiter lives, which is longer than the sockets are open here.
        self._metrics_port = listeners[-1].getsockname()[1] if options.allow_metrics else None
        # Changed as the arbiter starts, dies and stops.
        self._arbiter: Child | None = None
        self._go_fd = -1
        self._is_open = False
        self._is_stopping = False
        self._num_started = 0
        self._num_deaths = 0

    def start(self) -> None:
        """Exec gunicorn; it imports what it needs and waits for `open`."""
        if not self._listeners:
            return
        for name in _FOREIGN_VARIABLES:
            os.environ.pop(name, None)
        read_fd, self._go_fd = os.pipe()
        fds = [listener.fileno() for listener in self._listeners]
        environment = {
            ADDRESS_VARIABLE: self._control_address,
            "SHOAL_HTTP_FDS": ",".join(map(str, fds)),
            "SHOAL_GO_FD": str(read_fd),
            "SHOAL_SUPERVISOR_PID": str(os.getpid()),
            "SHOAL_ROAD_PROCESSES": str(self._options.http_process_count),
            "SHOAL_ROAD_THREADS": str(self._options.http_thread_count * THREADS_PER_HTTP_THREAD),
            "SHOAL_GRACEFUL_TIMEOUT_S": str(max(1, self._options.exit_timeout_secs)),
            # numpy's BLAS would start threads at import, and the arbiter must fork without any.
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = ["gunicorn", "--config", "python:shoal.frontend.gunicorn_conf"]
        self._arbiter = spawn(self._loop, "road", command, environment, pass_fds=[*fds, read_fd])
        self._arbiter.watch(self._on_exit)
        os.close(read_fd)

    def open(self) -> None:
        """All models are known: listen, and let gunicorn fork its workers."""
        self._is_open = True
        for listener in self._listeners:
            listener.listen(self._options.listen_backlog)
        if self._arbiter is not None:
            os.write(self._go_fd, b"g")
            os.close(self._go_fd)

    def welcome(self) -> Message:
        """What a front end is told when it joins, beside its memory."""
        options = self._options
        return {
            "log": {
                "log_verbose": options.log_verbose,
                "log_info": options.log_info,
                "log_warning": options.log_warning,
                "log_error": options.log_error,
                "log_format": options.log_format,
            },
            "state": {
                "server_id": options.id,
                "strict_readiness": options.strict_readiness,
                "http_max_input_size": options.http_max_input_size,
                "max_request_bytes": options.max_request_bytes,
                "metrics_port": self._metrics_port,
            },
            "max_in_flight": options.max_in_flight,
            "request_timeout_s": options.request_timeout_secs,
        }

    def on_client_started(self) -> None:
        """A front end answers now; when all do for the first time, say so in the words that scripts wait for."""
        self._num_started += 1
        if self._num_started != self._options.http_process_count:
            return
        services = ["HTTPService"] * self._options.allow_http + ["Metrics Service"] * self._options.allow_metrics
        for service, listener in zip(services, self._listeners, strict=True):
            address, port = listener.getsockname()[:2]
            _log.info("Started %s at %s:%d", service, address, port)

    def stop(self) -> None:
        """Accept no more; `on_ended` when what was accepted has been answered."""
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        if self._arbiter is None:
            self._on_ended()
        elif self._is_open:
            self._arbiter.signal(signal.SIGTERM)
        else:
            os.close(self._go_fd)

    def _on_exit(self, child: Child, code: int) -> None:
        self._arbiter = None
        if self._is_stopping:
            self._on_ended()
            return
        self._num_deaths += 1
        pause_s = backoff_s(self._num_deaths)
        _log.error(
            "the HTTP front end (pid %d) %s; it is started again in %g s", child.pid, describe_exit(code), pause_s
        )
        self._loop.call_after(pause_s, self._restart)

    def _restart(self) -> None:
        if self._is_stopping:
            return
        self.start()
        if self._is_open:
            self.open()
