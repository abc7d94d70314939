"""The front ends as the supervisor sees them: listening sockets, lanes, the road, and the sockets between those two.

Sockets are bound first, so that a port in use is known before any model loads, and listen last, so that clients are
refused until every model has loaded, as Triton's are.
"""

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

from shoal.control import ADDRESS_VARIABLE, Message
from shoal.errors import InvalidArgumentError
from shoal.options import Endpoint, ServerOptions, endpoints
from shoal.supervisor.arbiter import Arbiter
from shoal.supervisor.event_loop import EventLoop

_log = logging.getLogger(__name__)

#: A road thread is busy with one request where one of Triton's HTTP threads juggles many (ours).
THREADS_PER_HTTP_THREAD = 8
#: Loading a model takes longest of what a front end may ask for; the answer comes this much later at most (ours).
ANSWER_SLACK_S = 30
#: No half-sent request, half-sent body or unread reply holds a thread of the road longer than this per system call.
SOCKET_TIMEOUT_S = 10


#: By endpoint, what it is called in the line that scripts wait for; Triton's.
_SERVICES = {
    "http": "HTTPService",
    "metrics": "Metrics Service",
    "sagemaker": "Sagemaker HTTPService",
    "vertex-ai": "Vertex AI HTTPService",
}
Listeners = Mapping[str, socket.socket]


def bind(options: ServerOptions) -> Listeners:
    """By its endpoint's name, a socket for each that is wanted: bound, not listening.

    Raises OSError naming the address and the flag.
    """
    return {endpoint.name: _bind(endpoint) for endpoint in endpoints(options)}


def _bind(endpoint: Endpoint) -> socket.socket:
    service, _, address, port = endpoint
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
    """Lanes and road. `on_started` is called once, when every front end answers, `on_ended` when both have ended after
    `stop`."""

    def __init__(
        self,
        loop: EventLoop,
        options: ServerOptions,
        log_settings: dict[str, Any],
        control_address: str,
        listeners: Listeners,
        on_started: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._options = options
        self._log_settings = log_settings
        self._listeners = listeners
        self._on_started = on_started
        self._on_ended = on_ended
        # Front ends join for as long as the arbiter lives, which is longer than the sockets are open here.
        self._endpoints = {"{}:{}".format(*listener.getsockname()): name for name, listener in listeners.items()}
        self._handovers = [*_datagram_pair(), *_datagram_pair()]
        road_in, to_road, returns, to_lanes = (each.fileno() for each in self._handovers)
        environment = {
            ADDRESS_VARIABLE: control_address,
            "SHOAL_ROAD_THREADS": str(options.http_thread_count * THREADS_PER_HTTP_THREAD),
            "SHOAL_GRACEFUL_TIMEOUT_S": str(max(1, options.exit_timeout_secs)),
        }
        http = [listener for name, listener in listeners.items() if name == "http"]
        others = [listener for name, listener in listeners.items() if name != "http"]
        lane_sockets = {
            "SHOAL_LISTENER_FDS": _numbers(http),
            "SHOAL_PROCESSES": str(options.http_process_count),
            "SHOAL_SEND_FD": str(to_road),
            "SHOAL_RECEIVE_FD": str(returns),
        }
        road_sockets = {
            # With HTTP alone the road accepts nothing itself, but gunicorn insists on a socket.
            "SHOAL_LISTENER_FDS": _numbers(others or http),
            "SHOAL_ACCEPTS": str(int(bool(others))),
            "SHOAL_PROCESSES": "1",
            "SHOAL_SEND_FD": str(to_lanes),
            "SHOAL_RECEIVE_FD": str(road_in),
            "SHOAL_RETURNED_FD": str(returns),  # what no lane has taken when the last has ended
            # glibc gives each thread an arena that keeps what its largest request took: with bodies of 2 MB of JSON
            # 16 threads came to 340 MiB, and to 110 with two arenas. One runs at a time anyway.
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
        }
        self._road = Arbiter(
            loop, "road", environment | road_sockets,
            [*_filenos(others or http), to_lanes, road_in, returns], on_ended,
        )  # fmt: skip
        self._lanes = Arbiter(
            loop, "http", environment | lane_sockets, [*_filenos(http), to_road, returns], self._road.stop
        )
        # Changed as models settle, as front ends join, and by stop.
        self._vertex_ai_model = ""
        self._num_started = 0
        self._is_stopping = False

    @property
    def _arbiters(self) -> list[Arbiter]:
        """In the order they stop: what the lanes hand over, the road must still answer."""
        lanes = [self._lanes] * self._options.allow_http
        return lanes + [self._road] * bool(self._listeners)

    def start(self) -> None:
        """Exec the arbiters; they import what they need and wait for `open`."""
        for arbiter in self._arbiters:
            arbiter.start()

    def open(self, models: Collection[str]) -> None:
        """All models are known, by their names those that serve: listen, and let the arbiters fork their workers.

        Raises InvalidArgumentError where Vertex AI has no model to ask.
        """
        if self._options.allow_vertex_ai:
            self._vertex_ai_model = _default_model(self._options.vertex_ai_default_model, models)
        for listener in self._listeners.values():
            listener.listen(self._options.listen_backlog)
        for arbiter in self._arbiters:
            arbiter.open()
        if not self.num_front_ends:
            self._on_started()

    @property
    def num_front_ends(self) -> int:
        """Processes that answer clients when all are well: lanes and the road."""
        return self._options.http_process_count * self._options.allow_http + bool(self._listeners)

    def welcome(self) -> Message:
        """What a front end is told when it joins, beside its memory."""
        options = self._options
        return {
            "log": self._log_settings,
            "state": {
                "server_id": options.id,
                "strict_readiness": options.strict_readiness,
                "http_max_input_size": options.http_max_input_size,
                "max_request_bytes": options.max_request_bytes,
                "endpoints": self._endpoints,
                "log_file": options.log_file,
                "header_forward_pattern": options.http_header_forward_pattern,
                "restrictions": options.http_restricted_api,
                "model_control_mode": options.model_control_mode,
                "allow_remote_admin": options.allow_remote_admin,
                "allow_gpu_metrics": options.allow_gpu_metrics,
                "allow_cpu_metrics": options.allow_cpu_metrics,
                "metrics_interval_ms": options.metrics_interval_ms,
                "metrics_config": asdict(options.metrics_config),
                "sagemaker_ping_mode": options.sagemaker_ping_mode,
                "sagemaker_default_model": options.sagemaker_default_model,
                "sagemaker_inference_type": options.sagemaker_inference_type,
                "vertex_ai_default_model": self._vertex_ai_model,
                "vertex_ai_predict_route": options.vertex_ai_predict_route,
                "vertex_ai_health_route": options.vertex_ai_health_route,
            },
            "model_namespacing": options.model_namespacing,
            "max_in_flight": options.max_in_flight,
            "request_timeout_s": options.request_timeout_secs,
            "answer_timeout_s": options.model_load_timeout_secs + ANSWER_SLACK_S,
        }

    def on_client_started(self) -> None:
        """A front end answers now; when all do for the first time, say so in the words that scripts wait for."""
        self._num_started += 1
        if self._is_stopping or self._num_started != self.num_front_ends:
            return
        for name, listener in self._listeners.items():
            address, port = listener.getsockname()[:2]
            _log.info("Started %s at %s:%d", _SERVICES[name], address, port)
        self._on_started()

    def stop(self) -> None:
        """Accept no more; `on_ended` when what was accepted has been answered."""
        self._is_stopping = True
        for listener in self._listeners.values():
            listener.close()
        arbiters = self._arbiters
        if arbiters:
            arbiters[0].stop()
        else:
            self._on_ended()

    def close(self) -> None:
        """No front end is left, nor will there be another."""
        for each in self._handovers:
            each.close()


def _default_model(wanted: str, models: Collection[str]) -> str:
    """The model that Vertex AI's predictions ask. Raises InvalidArgumentError, Triton's sentences."""
    if not wanted and len(models) != 1:
        raise InvalidArgumentError(
            "Expect the model repository contains only a single model if default model is not specified"
        )
    if wanted and wanted not in models:
        raise InvalidArgumentError(f"Expect the default model '{wanted}' is loaded")
    return wanted or next(iter(models))


def _datagram_pair() -> tuple[socket.socket, socket.socket]:
    """A reading and a writing end for connections that change hands."""
    reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reading.setblocking(False)
    writing.setblocking(False)
    return reading, writing


def _filenos(sockets: list[socket.socket]) -> list[int]:
    return [each.fileno() for each in sockets]


def _numbers(sockets: list[socket.socket]) -> str:
    return ",".join(map(str, _filenos(sockets)))
