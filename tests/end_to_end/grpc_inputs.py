"""Inputs of the samples as Triton's client for gRPC sends them; channels in plain text and over TLS."""

from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as client
from numpy.typing import NDArray

from tests.certificates import Certificates
from tests.end_to_end.server import Server


def tls_flags(certificates: Certificates) -> list[str]:
    """Of a server whose clients need no certificate."""
    cert, key = certificates.server_cert, certificates.server_key
    return ["--grpc-use-ssl=true", f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"]


def open_channel(server: Server, certificates: Certificates | None) -> grpc.Channel:
    """To a server with TLS, or, without certificates, in plain text."""
    if certificates is None:
        return grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    credentials = grpc.ssl_channel_credentials(certificates.root.read_bytes())
    return grpc.secure_channel(f"127.0.0.1:{server.grpc_port}", credentials)


def tensor(name: str, array: NDArray[Any], datatype: str) -> client.InferInput:
    made = client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def pair(start: int = 0) -> list[client.InferInput]:
    array = np.arange(start, start + 16, dtype=np.int32).reshape(1, 16)
    return [tensor("INPUT0", array, "INT32"), tensor("INPUT1", array, "INT32")]


def countdown(*delays_ms: int) -> list[client.InferInput]:
    """One answer of `repeat` after each delay, which is its own number."""
    return [
        tensor("IN", np.array(delays_ms, np.int32), "INT32"),
        tensor("DELAY", np.array(delays_ms, np.uint32), "UINT32"),
        tensor("WAIT", np.array([0], np.uint32), "UINT32"),
    ]
