"""The stubs of TorchServe's gRPC services, from what protoc makes of their files (torchserve_protos/)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.end_to_end.server import DEADLINE_S

_COMPILED = Path(__file__).parent / "torchserve_protos" / "services.binpb"
INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"
_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(_COMPILED.read_bytes()).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """The class of a message by its full name."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


Prediction = message("org.pytorch.serve.grpc.inference.PredictionsRequest")


class Stub:
    """A service at a port: its rpcs by name."""

    def __init__(self, port: int, service: str, metadata: Mapping[str, str] | None = None) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._service: Any = _pool.FindServiceByName(service)
        self._metadata = tuple((metadata or {}).items())

    def __enter__(self) -> "Stub":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, rpc: str, /, **fields: Any) -> Any:
        """The response of a unary rpc. Raises grpc.RpcError."""
        method = self._service.methods_by_name[rpc]
        request = message_factory.GetMessageClass(method.input_type)(**fields)
        return self._of(self._channel.unary_unary, method)(request, timeout=DEADLINE_S, metadata=self._metadata)

    def stream(self, rpc: str, /, **fields: Any) -> Iterator[Any]:
        """The responses of an rpc with one request. Iterating raises grpc.RpcError."""
        method = self._service.methods_by_name[rpc]
        request = message_factory.GetMessageClass(method.input_type)(**fields)
        call = self._of(self._channel.unary_stream, method)(request, timeout=DEADLINE_S, metadata=self._metadata)
        return iter(call)

    def converse(self, rpc: str, requests: Iterable[Any]) -> Iterator[Any]:
        """The responses of an rpc with many requests, which ends with the requests."""
        method = self._service.methods_by_name[rpc]
        call = self._of(self._channel.stream_stream, method)(iter(requests), timeout=DEADLINE_S)
        return iter(call)

    def refusal(self, rpc: str, /, **fields: Any) -> tuple[str, str]:
        """The status and the details of a unary rpc that is refused."""
        try:
            told = self.ask(rpc, **fields)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{rpc} answered: {told}")

    def _of(self, kind: Callable[..., Any], method: Any) -> Callable[..., Any]:
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        return kind(  # type: ignore[no-any-return]
            f"/{self._service.full_name}/{method.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
