"""Serve's direct ingress, with the server's own listener in place of the replica's.

With RAY_SERVE_ENABLE_HA_PROXY=1, Ray Serve puts HAProxy on each node in front of its replicas. Each replica of an
ingress deployment asks the controller for a port and serves HTTP there, by uvicorn. Here the server listens at that
port: a request passes HAProxy and Shoal, and no Python of Ray's.

Serve has no setting for that, so two functions in the module of its replica are replaced: `start_asgi_http_server` and,
where Serve has gRPC, `start_grpc_server`. Each returns the listener and a task that ends with the listener; tests/ray
runs them on Ray itself. The server has both ports from its start: Serve's controller gives a replica the same port when
it is asked again. Where a version of Ray lacks the function, or the application needs what only uvicorn does (TLS,
middleware, a route prefix), Serve's own listener stays.
"""

import asyncio
import importlib
import logging
import socket
from collections.abc import Callable
from typing import Any

from shoal.errors import UnavailableError
from shoal.ray.replica_server import ReplicaServer

_log = logging.getLogger("ray.serve")
_MODULE, _FUNCTION, _GRPC_FUNCTION = "ray.serve._private.replica", "start_asgi_http_server", "start_grpc_server"


class OwnListener:
    """The server's listener, as Serve knows a server of uvicorn's: once `should_exit` is set, it refuses connections,
    answers accepted requests, and ends."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._should_exit = False

    @property
    def should_exit(self) -> bool:
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value:
            self._server.terminate()

    async def serve(self) -> None:
        """Returns once the server has ended; a cancelled call stops it."""
        try:
            await asyncio.to_thread(self._server.wait)
        except asyncio.CancelledError:
            self._server.terminate()
            raise


class OwnGrpcListener:
    """The server's gRPC listener, as Serve knows a server of grpcio's. It ends with the HTTP listener."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server

    async def stop(self, grace_s: float | None = None) -> None:
        """Let the server answer accepted requests, and end; returns after `grace_s` at the latest."""
        self._server.terminate()
        await asyncio.to_thread(self._server.wait, grace_s)


def is_direct() -> bool:
    """Whether Serve lets replicas serve HTTP themselves, by a function that can be replaced."""
    module = importlib.import_module(_MODULE)
    return bool(getattr(module, "RAY_SERVE_ENABLE_DIRECT_INGRESS", False)) and hasattr(module, _FUNCTION)


def listen_in_place_of_serve(server: ReplicaServer, started: Callable[[], None]) -> None:
    """Let this replica's server be started by Serve, at the port that the controller gives; `started` is then called.

    Replaces functions of the process, which is the replica's own.
    """
    module: Any = importlib.import_module(_MODULE)
    original: Any = getattr(module, _FUNCTION)
    original_grpc: Any = getattr(module, _GRPC_FUNCTION, None)
    own_grpc_port = 0

    async def start(
        app: Any, http_options: Any, *, event_loop: asyncio.AbstractEventLoop, **more: Any
    ) -> tuple[Any, Any]:
        if (reason := _needs_uvicorn(app, http_options)) is not None:
            _log.info("requests pass the replica's own listener: %s", reason)
            task, listener = await original(app, http_options, event_loop=event_loop, **more)
            return task, listener
        nonlocal own_grpc_port
        _check_port(http_options.host, http_options.port)
        own_grpc_port = 0 if original_grpc is None else await _grpc_port(app)
        try:
            await asyncio.to_thread(server.start, http_options.host, http_options.port, own_grpc_port)
        except UnavailableError:
            # For a RuntimeError Serve would try a hundred other ports, which is of use only if this port was taken.
            await asyncio.to_thread(_check_port, http_options.host, http_options.port)
            raise
        started()
        own = OwnListener(server)
        return event_loop.create_task(own.serve()), own

    async def start_grpc(
        factory: Any, grpc_options: Any, *, event_loop: asyncio.AbstractEventLoop, **more: Any
    ) -> tuple[Any, Any]:
        if own_grpc_port != grpc_options.port:
            task, listener = await original_grpc(factory, grpc_options, event_loop=event_loop, **more)
            return task, listener
        return event_loop.create_task(OwnListener(server).serve()), OwnGrpcListener(server)

    setattr(module, _FUNCTION, start)
    if original_grpc is not None:
        setattr(module, _GRPC_FUNCTION, start_grpc)


async def _grpc_port(app: Any) -> int:
    """The port of gRPC that Serve's controller gives the replica that has this application; 0 if Serve has none."""
    replica: Any = getattr(app, "__self__", None)
    options = getattr(replica, "_grpc_options", None)
    if options is None or not (options.port > 0 and options.grpc_servicer_functions):
        return 0
    common: Any = importlib.import_module("ray.serve._private.common")
    allocate = replica._controller_handle.allocate_replica_port
    return int(await allocate.remote(replica._node_id, replica._replica_id.unique_id, common.RequestProtocol.GRPC))


def _needs_uvicorn(app: Any, http_options: Any) -> str | None:
    """Why the server itself cannot listen; None if it can."""
    prefix = getattr(getattr(app, "__self__", None), "_route_prefix", None)
    if prefix not in ("/", None):
        return f"the application has the route prefix '{prefix}'"
    if getattr(http_options, "root_path", ""):
        return f"Serve has the root path '{http_options.root_path}'"
    if getattr(http_options, "ssl_certfile", None):
        return "Serve has TLS"
    return None


def _check_port(host: str, port: int) -> None:
    """Raises RuntimeError from the OSError if the port is in use: Serve then tries another port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise RuntimeError(f"cannot listen on {host}:{port}") from error
