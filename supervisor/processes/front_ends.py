"""The front ends as the supervisor sees them: the processes that answer clients, and the sockets between them.

HTTP ─► lanes "http" ─┬─► the road ─► connections that are idle again: back to the lanes
gRPC ─► lanes "grpc" ─┘
"""

import json
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial

from shoal.control import ADDRESS_VARIABLE
from shoal.errors import InvalidArgumentError
from shoal.grpc_settings import GrpcSettings
from shoal.messages.shared import LogSettings
from shoal.messages.to_client import ClientWelcomed, FrontEndSettings
from shoal.options import ServerOptions, https_endpoints, torchserve_apis, torchserve_grpc_apis
from shoal.recording_settings import read_settings
from shoal.shared_settings import MIB
from shoal.supervisor.event_loop import EventLoop, Future, shared
from shoal.supervisor.key_file import KeyFile
from shoal.supervisor.memory.available_memory import available_nbytes
from shoal.supervisor.processes.arbiter import Arbiter, FrontEndRole
from shoal.supervisor.processes.cores import num_grpc_lanes, num_http_lanes, num_usable_cores
from shoal.supervisor.processes.listeners import SERVICES, Listeners, address_of, remove, text_of
from shoal.supervisor.processes.zygotes import Zygotes

_log = logging.getLogger(__name__)

#: Threads of the road for each thread of --http-thread-count (ours): one of Triton's handles many requests at a time.
THREADS_PER_HTTP_THREAD = 8
#: The memory for requests that arrive on the road, if --max-upload-mib does not say (ours): a part of what is available
#: at the start, but enough for many small requests.
UPLOAD_PART_OF_MEMORY, LEAST_UPLOAD_BYTES = 4, 64 << 20
#: A front end waits for the supervisor's answer for so many seconds more than a model's load, the longest question, may
#: take (ours).
ANSWER_SLACK_S = 30
#: Seconds in which front ends refuse the requests that are open when --exit-timeout-secs is over (ours).
REFUSAL_S = 5
#: The endpoints whose connections the lanes accept, HTTP's (beside all that have TLS) and gRPC's.
HTTP_LANE_ENDPOINTS = ("http", "openai", "torchserve-inference")
GRPC_LANE_ENDPOINTS = ("grpc", "torchserve-grpc-inference", "torchserve-grpc-management")
#: What gRPC's lanes import for TorchServe's endpoints, for the arbiter to import before it forks them.
TORCHSERVE_GRPC = "shoal.frontend.grpc.torchserve.service"


class FrontEnds:
    """The lanes and the road: their arbiter, and the sockets between them."""

    def __init__(
        self,
        loop: EventLoop,
        options: ServerOptions,
        log_settings: LogSettings,
        control_address: str,
        listeners: Listeners,
        key_file: KeyFile,
        zygotes: Zygotes,
        *,
        has_gpus: bool = False,
    ) -> None:
        self._loop = loop
        self._options = options
        self._log_settings = log_settings
        self._listeners = listeners
        self._key_file = key_file
        self._has_gpus = has_gpus
        # Front ends join for as long as the arbiter lives, which is longer than the sockets are open here. The road's
        # endpoint for gRPC has no address: the road trusts what arrives there, and only lanes may reach it.
        addresses = {name: address_of(each) for name, each in listeners.items()}
        self._endpoints = {"{}:{}".format(*address): name for name, address in addresses.items() if name != "grpc"}
        self._ports = {name: port for name, (_, port) in addresses.items()}
        #: The port of HTTP, bound or configured; 0 of a Unix socket.
        self.port = self._ports.get("http", options.http_port)
        environment = {
            ADDRESS_VARIABLE: control_address,
            "SHOAL_LOG": json.dumps(log_settings),
            "SHOAL_ROAD_THREADS": str(options.http_thread_count * THREADS_PER_HTTP_THREAD),
            "SHOAL_GRACEFUL_TIMEOUT_S": str(options.exit_timeout_secs + REFUSAL_S),
            "SHOAL_MODULE": TORCHSERVE_GRPC * bool(torchserve_grpc_apis(options)),
        }
        part = max(LEAST_UPLOAD_BYTES, available_nbytes() // UPLOAD_PART_OF_MEMORY)
        self._begun_s = int(time.time())
        self._max_upload_bytes = options.max_upload_mib * MIB or part
        self._handovers = [*_datagram_pair(), *_datagram_pair()]
        self._https = https_endpoints(options)
        self._roles = self._make_roles()
        #: The number of processes that answer clients when all run: lanes and road.
        self.num_front_ends = sum(role.num_processes for role in self._roles)
        self._arbiter = Arbiter(loop, self._roles, environment, zygotes) if self._roles else None
        # Changed as models settle, as front ends join, and by stop.
        self._vertex_ai_model = ""
        self._has_repositories = True
        self._num_started = 0
        self._is_stopping = False
        self._all_started: Future[None] = loop.future()  # resolved when all have started for the first time

    # --- the processes ---

    def _make_roles(self) -> list[FrontEndRole]:
        """The kinds of front ends, the lanes before the road."""
        options = self._options
        road_in, to_road, returns, to_lanes = self._handovers
        roles = []
        if endpoints := self._http_lane_endpoints():
            passed = {"SEND_FD": to_road, "RECEIVE_FD": returns}
            num_lanes = options.http_process_count or num_http_lanes(num_usable_cores())
            roles.append(FrontEndRole("http", num_lanes, self._descriptors(endpoints, passed), self._tls("http")))
        if endpoints := [name for name in GRPC_LANE_ENDPOINTS if name in self._listeners]:
            passed = {"SEND_FD": to_road}  # a gRPC lane hands over no client's connection, so none returns
            num_lanes = options.grpc_process_count or num_grpc_lanes(num_usable_cores())
            roles.append(FrontEndRole("grpc", num_lanes, self._descriptors(endpoints, passed), self._tls("grpc")))
        lanes = self._http_lane_endpoints() + [name for name in GRPC_LANE_ENDPOINTS if name in self._listeners]
        accepting = self._listeners.keys() - set(lanes)
        if not accepting and not roles:
            return []
        passed = {
            "SEND_FD": to_lanes,
            "RECEIVE_FD": road_in,
            "RETURNED_FD": returns,  # connections that no lane has taken when the last one has ended
        }
        # gunicorn insists on a socket, even where the road, which answers what lanes hand over, accepts nothing.
        settings = {"ACCEPTS": str(int(bool(accepting)))}
        return [*roles, FrontEndRole("road", 1, self._descriptors(accepting or lanes, passed), settings)]

    def _descriptors(self, endpoints: Collection[str], passed: Mapping[str, socket.socket]) -> dict[str, list[int]]:
        """The descriptors of a role by variable: the endpoints' sockets, and those of `passed`."""
        return {
            "LISTENER_FDS": [self._listeners[name].fileno() for name in endpoints],
            **{variable: [each.fileno()] for variable, each in passed.items()},
        }

    def _http_lane_endpoints(self) -> list[str]:
        """The endpoints whose connections HTTP's lanes accept: TLS is ended there, also for endpoints of the road."""
        return [name for name in self._listeners if name in HTTP_LANE_ENDPOINTS or name in self._https]

    def _tls(self, protocol: str) -> dict[str, str]:
        """The settings of a protocol's lanes for TLS; none if they have no TLS."""
        files = self._options.tls.get(protocol)
        return {} if files is None else {"TLS": json.dumps(files), "TLS_ENDPOINTS": json.dumps(self._https)}

    # --- their life ---

    def start(self) -> None:
        """Start the arbiter; it imports what front ends need and waits for `open`."""
        if self._arbiter is not None:
            self._arbiter.start()

    def open(self, models: Collection[str], *, has_repositories: bool = True) -> Future[None]:
        """Listen, and let the arbiter fork the front ends: all models have settled. The future is done when every front
        end answers. `models` are the names of those that serve.

        Raises InvalidArgumentError where Vertex AI's default model is missing or ambiguous.
        """
        self._has_repositories = has_repositories
        if self._options.allow_vertex_ai:
            self._vertex_ai_model = _default_model(self._options.vertex_ai_default_model, models)
        for listener in self._listeners.values():
            listener.listen(self._options.listen_backlog)
        if self._arbiter is not None:
            self._arbiter.open()
        else:
            self._all_started.set_result(None)
        return self._all_started

    def welcome(self, *, is_caller: bool = False) -> Callable[..., ClientWelcomed]:
        """A function that builds the first message to a client from the client's place in the star. A caller is not a
        front end: it is sent none of their settings."""
        options = self._options
        return partial(
            ClientWelcomed,
            log=self._log_settings,
            settings=None if is_caller else self._settings(),
            model_namespacing=options.model_namespacing,
            max_in_flight=options.max_in_flight,
            request_timeout_s=options.request_timeout_secs,
            answer_timeout_s=options.model_load_timeout_secs + ANSWER_SLACK_S,
        )

    def _settings(self) -> FrontEndSettings:
        options = self._options
        return FrontEndSettings(
            server_id=options.id,
            strict_readiness=options.strict_readiness,
            http_max_input_size=options.http_max_input_size,
            max_request_bytes=options.max_request_bytes,
            max_control_bytes=options.max_control_bytes,
            max_expansion=options.max_expansion,
            begun_s=self._begun_s,
            default_max_tokens=options.default_max_tokens,
            max_upload_bytes=self._max_upload_bytes,
            upload_timeout_s=options.upload_timeout_secs,
            min_upload_rate=options.min_upload_rate,
            endpoints=self._endpoints,
            log_file=options.log_file,
            log_access=options.log_access,
            header_forward_pattern=options.http_header_forward_pattern,
            recorded_headers=list(read_settings(options.record_config)[1].headers),
            restrictions=options.http_restricted_api,
            grpc=asdict(GrpcSettings.of(options)),
            model_control_mode=options.model_control_mode,
            allow_remote_admin=options.allow_remote_admin,
            has_page=options.ui,
            timing_share=options.timing_percent / 100,
            grpc_port=self._ports.get("grpc", 0),
            api_keys=self._key_file.rows,
            allow_client_shm=options.allow_client_shm,
            has_gpus=self._has_gpus,
            allow_gpu_metrics=options.allow_gpu_metrics,
            allow_cpu_metrics=options.allow_cpu_metrics,
            metrics_interval_ms=options.metrics_interval_ms,
            metrics_config=asdict(options.metrics_config),
            sagemaker_ping_mode=options.sagemaker_ping_mode,
            sagemaker_default_model=options.sagemaker_default_model,
            sagemaker_inference_type=options.sagemaker_inference_type,
            vertex_ai_default_model=self._vertex_ai_model,
            vertex_ai_predict_route=options.vertex_ai_predict_route,
            vertex_ai_health_route=options.vertex_ai_health_route,
            has_repositories=self._has_repositories,
            torchserve=asdict(options.torchserve),
            torchserve_apis=torchserve_apis(options),
            torchserve_grpc_apis=torchserve_grpc_apis(options),
        )

    def on_client_started(self) -> None:
        """Count a front end that answers now; when all do for the first time, log the lines that scripts wait for."""
        self._num_started += 1
        if self._is_stopping or self._num_started != self.num_front_ends:
            return
        for name, listener in self._listeners.items():
            _log.info("Started %s at %s", SERVICES[name], text_of(listener))
        self._all_started.set_result(None)

    async def stop(self, *, has_sibling: bool = False) -> None:
        """Accept no more requests; returns when the accepted ones have been answered and all front ends have ended.
        The files of Unix sockets are removed; with `has_sibling` not those at which another server listens."""
        self._is_stopping = True
        paths = [str(each.getsockname()) for each in self._listeners.values() if each.family == socket.AF_UNIX]
        for listener in self._listeners.values():
            listener.close()
        if self._arbiter is not None:
            await shared(self._arbiter.stop())
        remove(paths, keeps_served=has_sibling)

    def close(self) -> None:
        """Close the sockets between front ends: the last front end has ended."""
        for each in self._handovers:
            each.close()


def _default_model(wanted: str, models: Collection[str]) -> str:
    """The model for Vertex AI's predictions. Raises InvalidArgumentError, in Triton's words, where there is none."""
    if not wanted and len(models) != 1:
        raise InvalidArgumentError(
            "Expect the model repository contains only a single model if default model is not specified"
        )
    if wanted and wanted not in models:
        raise InvalidArgumentError(f"Expect the default model '{wanted}' is loaded")
    return wanted or next(iter(models))


def _datagram_pair() -> tuple[socket.socket, socket.socket]:
    """A reading and a writing end of a socket on which connections are handed over."""
    reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reading.setblocking(False)
    writing.setblocking(False)
    return reading, writing
