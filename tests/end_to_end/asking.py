"""Questions to a server, each over a connection of its own: HTTP as it is, and inferences by Triton's clients."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from tests.end_to_end.server import DEADLINE_S, Server

Array = np.ndarray[Any, np.dtype[Any]]


class Reply(NamedTuple):
    """The answer to an HTTP request, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)


def fetch(
    port: int,
    path: str,
    body: Any = None,
    method: str = "",
    headers: Mapping[str, str] | None = None,
    address: str = "127.0.0.1",
    deadline_s: float = DEADLINE_S,
) -> Reply:
    """Ask over HTTP: GET without a body, POST with one, unless `method` says otherwise; a dictionary goes as JSON."""
    connection = http.client.HTTPConnection(address, port, timeout=deadline_s)
    try:
        sent = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method or ("GET" if body is None else "POST"), path, sent, dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def tensors(inputs: Mapping[str, Array], *, binary: bool = True, api: Any = tritonclient.http) -> list[Any]:
    """The inputs of a request, of the datatypes and shapes of these arrays."""
    more = {"binary_data": binary} if api is tritonclient.http else {}
    return [
        api.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(array, **more)
        for name, array in inputs.items()
    ]


def infer(
    server: Server, model: str, inputs: Mapping[str, Array], api: Any = tritonclient.http, **more: Any
) -> dict[str, Array]:
    """The outputs of one inference by name; `api` is tritonclient.http or tritonclient.grpc."""
    if api is tritonclient.http:
        opened = api.InferenceServerClient(server.url, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S)
    else:
        opened = api.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        more = {"client_timeout": DEADLINE_S, **more}
    with opened as client:
        return outputs(client.infer(model, tensors(inputs, api=api), **more))


def outputs(result: Any) -> dict[str, Array]:
    """The arrays of a tritonclient's result by name."""
    response = result.get_response()
    told = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [each["name"] if isinstance(each, dict) else each.name for each in told]
    return {name: result.as_numpy(name) for name in names}
