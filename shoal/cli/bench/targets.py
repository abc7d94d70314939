"""The server and model that a load is for, over HTTP, gRPC or shared memory: its configuration, its statistics, and the
transport of the requests to it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlsplit

from shoal.cli.bench.http_exchange import HttpExchange, http_request
from shoal.cli.bench.transport import SocketTransport, Transport
from shoal.cli.operate import client_at
from shoal.cli.remote import RemoteServer, Row
from shoal.cli.run_inputs import RunRequest
from shoal.datatypes import BYTES, Datatype, encode_bytes_tensor
from shoal.model_config.signature import Signature
from shoal.passwords import shown_url
from shoal.server_url import split_url

if TYPE_CHECKING:
    from shoal import Client

HTTP, GRPC, MEMORY = "http", "grpc", "shm"
_PORTS = {HTTP: 8000, GRPC: 8001}
_SERVICE = "/inference.GRPCInferenceService/ModelInfer"
_JSON_BYTES = "Inference-Header-Content-Length"


#: Makes the transport for requests to a model with this signature.
Connect: TypeAlias = Callable[[Signature, Sequence[RunRequest]], Transport]


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a server. Each call of `connect` makes a new transport for requests to the model."""

    url: str
    protocol: str
    config: Callable[[], dict[str, Any]]
    statistics: Callable[[], Row]
    connect: Connect
    close: Callable[[], None]


def target(url: str | None, protocol: str | None, model: str, version: str, timeout_s: float) -> Target:
    """The model at a URL, http://… or grpc://…, at host:port by HTTP, or at the path of a socket. Raises ValueError
    for any other text.

    Without a URL, `protocol` names a server of this machine at its default place.
    """
    kind = _protocol_of(url) if url is not None else (protocol or HTTP)
    if protocol is not None and protocol != kind:
        raise ValueError(f"--protocol {protocol} does not fit --url {shown_url(url or '')}: leave out one of the two")
    if kind == HTTP:
        return _by_http(url or f"http://127.0.0.1:{_PORTS[HTTP]}", model, version, timeout_s)
    if kind == GRPC:
        return _by_grpc(url or f"grpc://127.0.0.1:{_PORTS[GRPC]}", model, version, timeout_s)
    return _by_memory(url, model, version)


def _protocol_of(url: str) -> str:
    scheme, mark, _ = url.lower().partition("://")
    if not mark:
        return MEMORY if "/" in url else HTTP
    if scheme not in (HTTP, GRPC):
        raise ValueError(
            f"bench asks http://host:port, grpc://host:port or the path of a socket, not '{shown_url(url)}'"
        )
    return scheme


def _by_http(url: str, model: str, version: str, timeout_s: float) -> Target:
    server = RemoteServer(url, timeout_s=timeout_s, headers={})
    parts = urlsplit(server.url)
    path = f"{parts.path}/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version)}" if version else "")

    def connect(signature: Signature, requests: Sequence[RunRequest]) -> Transport:
        made = [http_body(f"{path}/infer", parts.netloc, signature, each) for each in requests]
        return SocketTransport(str(parts.hostname), parts.port or 80, partial(HttpExchange, made))

    return Target(
        server.url,
        HTTP,
        partial(server.model_config, model, version),
        partial(server.model_statistics, model, version),
        connect,
        server.close,
    )


def http_body(path: str, host: str, signature: Signature, request: RunRequest) -> bytes:
    """A request of HTTP with binary tensors, which asks for binary outputs, too, as perf_analyzer's requests do."""
    tensors = [(name, *_wire(signature, name, array)) for name, array in request.inputs.items()]
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "shape": list(request.inputs[name].shape),
                "datatype": datatype.name,
                "parameters": {"binary_data_size": len(data)},
            }
            for name, datatype, data in tensors
        ],
        "parameters": {"binary_data_output": True, **request.parameters},
    }
    if request.outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
        del head["parameters"]["binary_data_output"]
    text = json.dumps(head, separators=(",", ":")).encode()
    headers = [("Content-Type", "application/octet-stream"), (_JSON_BYTES, str(len(text)))]
    return http_request(path, host, headers, text + b"".join(data for *_, data in tensors))


def _by_grpc(url: str, model: str, version: str, timeout_s: float) -> Target:
    from shoal.cli.bench.grpc_exchange import GrpcExchange, grpc_message

    parts = split_url(url, (GRPC,), url)

    def connect(signature: Signature, requests: Sequence[RunRequest]) -> Transport:
        made = [grpc_message(_grpc_body(model, version, signature, each)) for each in requests]
        exchange = partial(GrpcExchange, parts.netloc, _SERVICE, made)
        return SocketTransport(parts.host, parts.port or _PORTS[GRPC], exchange)

    return _by_client(client_at(url, {}, timeout_s), f"{GRPC}://{parts.netloc}", GRPC, model, version, connect)


def _grpc_body(model: str, version: str, signature: Signature, request: RunRequest) -> bytes:
    from shoal.triton_messages import service

    messages = service()
    message = messages.ModelInferRequest(model_name=model, model_version=version)
    for name, array in request.inputs.items():
        datatype, data = _wire(signature, name, array)
        message.inputs.add(name=name, datatype=datatype.name, shape=array.shape)
        message.raw_input_contents.append(data)
    for name in request.outputs:
        message.outputs.add(name=name)
    for key, value in request.parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value), "string_param")
        setattr(message.parameters[key], kind, value)
    serialized: bytes = message.SerializeToString()
    return serialized


def _by_memory(path: str | None, model: str, version: str) -> Target:
    from shoal import Client
    from shoal.cli.bench.memory_transport import MemoryTransport

    def connect(_: Signature, requests: Sequence[RunRequest]) -> Transport:
        return MemoryTransport(path, model, version, [each.inputs for each in requests])

    return _by_client(Client(path), path or "this user's server on this machine", MEMORY, model, version, connect)


def _by_client(client: "Client", url: str, protocol: str, model: str, version: str, connect: Connect) -> Target:
    return Target(
        url,
        protocol,
        lambda: client.model_config(model, version=version),
        lambda: client.statistics(model, version=version)[0],
        connect,
        client.close,
    )


def _wire(signature: Signature, name: str, array: Any) -> tuple[Datatype, bytes]:
    """Datatype and bytes of an array as a tensor."""
    spec = signature.inputs[name]
    if spec.datatype is BYTES:
        elements = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
        return BYTES, encode_bytes_tensor(elements)
    return spec.datatype, array.astype(spec.datatype.dtype, order="C").tobytes()


def rows_of(signature: Signature, request: Mapping[str, Any]) -> int:
    """The rows of a request: its batch's size, or 1 for a model without batches."""
    if signature.max_batch_size == 0:
        return 1
    return max((array.shape[0] for array in request.values()), default=1)
