"""The messages of the services that Shoal answers: Triton's, as tritonclient ships them, and health's, made here.

grpcio's health package would be a dependency for two messages. These lie in a descriptor pool of their own, so that the
package may still be imported. gRPC front ends.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from shoal import triton_messages

#: The compiled modules: ModelInferRequest is `service.ModelInferRequest`.
service: Any = triton_messages.service()
model_config: Any = triton_messages.model_config()

_PACKAGE = "grpc.health.v1"
_SERVING_STATUS = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def _health_proto() -> descriptor_pb2.FileDescriptorProto:
    """The file grpc/health/v1/health.proto, as in https://github.com/grpc/grpc-proto."""
    file = descriptor_pb2.FileDescriptorProto(name="grpc/health/v1/health.proto", package=_PACKAGE, syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    label, string = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL, descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    request.field.add(name="service", number=1, label=label, type=string)
    response = file.message_type.add(name="HealthCheckResponse")
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(_SERVING_STATUS):
        status.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        label=label,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_ENUM,
        type_name=f".{_PACKAGE}.HealthCheckResponse.ServingStatus",
    )
    health = file.service.add(name="Health")
    types = {"input_type": f".{_PACKAGE}.HealthCheckRequest", "output_type": f".{_PACKAGE}.HealthCheckResponse"}
    health.method.add(name="Check", **types)
    health.method.add(name="Watch", server_streaming=True, **types)
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_health_proto().SerializeToString())
#: The file of the health service, for reflection.
HEALTH_FILE: Any = _pool.FindFileByName("grpc/health/v1/health.proto")
HealthCheckRequest: Any = message_factory.GetMessageClass(HEALTH_FILE.message_types_by_name["HealthCheckRequest"])
HealthCheckResponse: Any = message_factory.GetMessageClass(HEALTH_FILE.message_types_by_name["HealthCheckResponse"])
