"""The messages of the services that Shoal answers: Triton's, from the modules that tritonclient ships, and those of
gRPC's health service, made here.

grpcio's health package would be a dependency for two messages. The messages made here lie in a descriptor pool of their
own, so that a program may still import that package. gRPC front ends.
"""

from typing import Any

from google.protobuf import descriptor_pool, message_factory

from shoal import triton_messages

#: The modules of Triton's messages, compiled from its .proto files: a ModelInferRequest is a
#: `service.ModelInferRequest`.
service: Any = triton_messages.service()
model_config: Any = triton_messages.model_config()

#: The file grpc/health/v1/health.proto of https://github.com/grpc/grpc-proto, compiled, with the rpcs Check and Watch.
#: As bytes: protobuf's classes for descriptors (descriptor_pb2) take 1 MiB.
_HEALTH_PROTO = (
    b"\n\x1bgrpc/health/v1/health.proto\x12\x0egrpc.health.v1"
    b'"%\n\x12HealthCheckRequest\x12\x0f\n\x07service\x18\x01 \x01(\t'
    b'"\xa9\x01\n\x13HealthCheckResponse'
    b"\x12A\n\x06status\x18\x01 \x01(\x0e21.grpc.health.v1.HealthCheckResponse.ServingStatus"
    b'"O\n\rServingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10\x02'
    b"\x12\x13\n\x0fSERVICE_UNKNOWN\x10\x03"
    b"2\xae\x01\n\x06Health"
    b'\x12P\n\x05Check\x12".grpc.health.v1.HealthCheckRequest\x1a#.grpc.health.v1.HealthCheckResponse'
    b'\x12R\n\x05Watch\x12".grpc.health.v1.HealthCheckRequest\x1a#.grpc.health.v1.HealthCheckResponse0\x01'
    b"b\x06proto3"
)

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_HEALTH_PROTO)
#: The descriptor of the health service's file, for reflection.
HEALTH_FILE: Any = _pool.FindFileByName("grpc/health/v1/health.proto")
HealthCheckRequest: Any = message_factory.GetMessageClass(HEALTH_FILE.message_types_by_name["HealthCheckRequest"])
HealthCheckResponse: Any = message_factory.GetMessageClass(HEALTH_FILE.message_types_by_name["HealthCheckResponse"])

#: The services that reflection lists, and the paths of reflection's own rpcs.
SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
)
REFLECTION_PATHS = frozenset(f"/{service}/ServerReflectionInfo" for service in SERVICES if "reflection" in service)
