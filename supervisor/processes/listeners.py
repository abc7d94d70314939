"""The listening sockets for clients, one for each endpoint in use.

They are bound first, so that a port in use is known before any model loads, and listen last, so that clients are
refused until every model has loaded, as Triton's are.
"""

import logging
import socket
from collections.abc import Mapping

from shoal.options import Endpoint, ServerOptions, endpoints

_log = logging.getLogger(__name__)

#: Time limit of one recv or send on a client's connection: so half-sent requests and unread replies hold no thread.
SOCKET_TIMEOUT_S = 10

#: By endpoint, the service's name in the line that scripts wait for; Triton's.
SERVICES = {
    "http": "HTTPService",
    "grpc": "GRPCInferenceService",
    "metrics": "Metrics Service",
    "sagemaker": "Sagemaker HTTPService",
    "vertex-ai": "Vertex AI HTTPService",
    "torchserve-inference": "TorchServe Inference",
    "torchserve-management": "TorchServe Management",
    "torchserve-metrics": "TorchServe Metrics",
}
Listeners = Mapping[str, socket.socket]


def bind(options: ServerOptions) -> Listeners:
    """A bound socket, not listening yet, for each endpoint in use, by the endpoint's name.

    Raises OSError naming the address and the flag, or the files and the flags where TLS is not to be had with them.
    """
    if options.allow_grpc and options.has_grpc_tls:
        from shoal.tls import server_context  # here: few have TLS, and ssl takes 15 ms

        server_context(*options.grpc_tls)
    return {endpoint.name: _bind(endpoint) for endpoint in endpoints(options)}


def _bind(endpoint: Endpoint) -> socket.socket:
    service, _, address, port, is_shared = endpoint
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
    # Accepted sockets inherit both time limits, for each recv and send, which no worker class has to enforce.
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
