"""The listening sockets for clients, one for each endpoint in use.

They are bound first, so that a port in use is known before any model loads, and listen last, so that clients are
refused until every model has loaded, as Triton's are. Sockets that systemd has passed (sd_listen_fds(3)) listen already
and outlive the server: what connects during a restart waits, and is not refused.
"""

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from shoal.options import Endpoint, ServerOptions, endpoints
from shoal.shared_settings import UNIX

_log = logging.getLogger(__name__)

#: Time limit of one recv or send on a client's connection: so half-sent requests and unread replies hold no thread.
SOCKET_TIMEOUT_S = 10

#: The number of the first descriptor that systemd passes (SD_LISTEN_FDS_START).
FIRST_PASSED_FD = 3

#: By endpoint, the service's name in the line that scripts wait for; Triton's.
SERVICES = {
    "http": "HTTPService",
    "openai": "OpenAI HTTPService",
    "grpc": "GRPCInferenceService",
    "metrics": "Metrics Service",
    "sagemaker": "Sagemaker HTTPService",
    "vertex-ai": "Vertex AI HTTPService",
    "torchserve-inference": "TorchServe Inference",
    "torchserve-management": "TorchServe Management",
    "torchserve-metrics": "TorchServe Metrics",
    "torchserve-grpc-inference": "TorchServe gRPC Inference",
    "torchserve-grpc-management": "TorchServe gRPC Management",
}
Listeners = Mapping[str, socket.socket]


def passed_sockets(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """The TCP sockets that systemd has passed to this process, whose variables must not have been removed yet; other
    descriptors are left alone."""
    number = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(pid) or not number.isdecimal():
        return []
    passed = []
    for fd in range(FIRST_PASSED_FD, FIRST_PASSED_FD + int(number)):
        os.set_inheritable(fd, False)
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            continue
        found = socket.socket(fileno=fd)
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            passed.append(found)
        else:
            found.detach()
    return passed


def bind(
    options: ServerOptions, passed: Sequence[socket.socket] = (), inherited: Mapping[str, socket.socket] | None = None
) -> Listeners:
    """A bound socket for each endpoint in use, by the endpoint's name: one of those `passed` by systemd if it has the
    endpoint's port, or the one `inherited` at an upgrade, else a new one, not listening yet.

    Raises OSError naming the address and the flag, or the files and the flags where TLS cannot be set up from them.
    """
    for protocol, files in options.tls.items():
        from shoal.tls import server_context  # imported here: few servers have TLS, and importing ssl takes 15 ms

        server_context(*files, protocol)
    by_port = {each.getsockname()[1]: each for each in passed}
    by_name = dict(inherited or {})
    found = {endpoint.name: _taken(endpoint, by_port, by_name) or _bind(endpoint) for endpoint in endpoints(options)}
    for unused in by_name.values():
        unused.close()
    for port, unused in by_port.items():
        _log.warning("the socket of port %d that systemd has passed is for none of the server's endpoints", port)
        unused.close()
    for name, listener in found.items():
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # of each recv and send: accepted sockets inherit them
            listener.setsockopt(socket.SOL_SOCKET, option, SOCKET_TIMEOUT_S.to_bytes(8, "little") + bytes(8))
        is_listening = listener in passed or listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        when = "connections wait until" if is_listening else "it accepts connections once"
        _log.info("%s is bound for %s; %s the models have loaded", text_of(listener), name, when)
    return found


def address_of(listener: socket.socket) -> tuple[str, int]:
    """The address and port of a listener; of a Unix socket its path behind "unix:", and 0."""
    name = listener.getsockname()
    return (f"{UNIX}{name}", 0) if listener.family == socket.AF_UNIX else (name[0], name[1])


def text_of(listener: socket.socket) -> str:
    """The address of a listener as the log has it."""
    address, port = address_of(listener)
    return address if address.startswith(UNIX) else f"{address}:{port}"


def remove(listener_paths: Iterable[str], *, keeps_served: bool = False) -> None:
    """Remove the files of Unix sockets that are closed; with `keeps_served`, a file stays if another server listens
    there."""
    for path in listener_paths:
        with suppress(OSError):  # gunicorn has removed it, or its directory is gone
            if not (keeps_served and _is_served(path)):
                os.unlink(path)


def _bind_unix(endpoint: Endpoint) -> socket.socket:
    """A bound Unix socket; the file of a server that has ended is replaced. Raises OSError as `bind` does."""
    path = endpoint.address.removeprefix(UNIX)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if stat.S_ISSOCK(_mode(path)) and not _is_served(path):
            os.unlink(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise OSError(
            f"cannot listen on {endpoint.address}: {error.strerror or error}. Choose another "
            f"--{endpoint.name}-address, or stop what listens there"
        ) from error
    return listener


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True  # its backlog is full
    return True


def _taken(
    endpoint: Endpoint, by_port: dict[int, socket.socket], by_name: dict[str, socket.socket]
) -> socket.socket | None:
    """The socket that is there for an endpoint: systemd's or, unless the endpoint has another port or path now, the old
    server's."""
    if endpoint.port in by_port:
        return by_port.pop(endpoint.port)
    inherited = by_name.get(endpoint.name)
    if inherited is None:
        return None
    address, port = address_of(inherited)
    if endpoint.address.startswith(UNIX) or address.startswith(UNIX):
        return by_name.pop(endpoint.name) if endpoint.address == address else None
    return by_name.pop(endpoint.name) if endpoint.port in (0, port) else None


def _bind(endpoint: Endpoint) -> socket.socket:
    if endpoint.address.startswith(UNIX):
        return _bind_unix(endpoint)
    service, _, address, port, is_shared = endpoint
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {address}:{port}: {error.strerror}. {_remedy(error, service)}") from error
    return listener


def _remedy(error: OSError, service: str) -> str:
    """What to do where a TCP socket cannot be bound."""
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"Choose another --{service}-address: no network interface of this machine, or container, has this one "
            "(`ip address` lists them)"
        )
    if error.errno == errno.EACCES:
        return (
            f"Choose a --{service}-port from 1024 on: lower ones are for root, or for a process with the capability "
            "CAP_NET_BIND_SERVICE"
        )
    return f"Choose another --{service}-port or --{service}-address, or stop what listens there"
