"""The messages of TorchServe's services, made here from a table that has the number and type of each field.

The messages lie in a descriptor pool of their own, so that a program may still import stubs of its own for the same
services. gRPC front ends.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, empty_pb2, message_factory

from shoal.frontend.grpc.torchserve.methods import INFERENCE

MANAGEMENT = "org.pytorch.serve.grpc.management"
OPEN_INFERENCE = "org.pytorch.serve.grpc.openinference"

#: By package, messages and their fields. "*" marks a repeated field, "?" one whose absence differs from its zero value
#: (proto3's `optional`).
_MESSAGES: Mapping[str, Mapping[str, Mapping[int, str]]] = {
    "google.rpc": {"Status": {1: "int32 code", 2: "string message", 3: "*google.protobuf.Any details"}},
    INFERENCE: {
        "PredictionsRequest": {
            1: "string model_name", 2: "string model_version", 3: "map input", 4: "?string sequenceId",
        },
        "PredictionResponse": {1: "bytes prediction", 2: "?string sequenceId", 3: "?google.rpc.Status status"},
        "TorchServeHealthResponse": {1: "string health"},
    },
    MANAGEMENT: {
        "ManagementResponse": {1: "string msg"},
        "DescribeModelRequest": {1: "string model_name", 2: "string model_version", 3: "bool customized"},
        "ListModelsRequest": {1: "int32 limit", 2: "int32 next_page_token"},
        "RegisterModelRequest": {
            1: "int32 batch_size", 2: "string handler", 3: "int32 initial_workers", 4: "int32 max_batch_delay",
            5: "string model_name", 6: "int32 response_timeout", 7: "string runtime", 8: "bool synchronous",
            9: "string url", 10: "bool s3_sse_kms", 11: "int32 startup_timeout",
        },
        "ScaleWorkerRequest": {
            1: "string model_name", 2: "string model_version", 3: "int32 max_worker", 4: "int32 min_worker",
            5: "int32 number_gpu", 6: "bool synchronous", 7: "int32 timeout",
        },
        "SetDefaultRequest": {1: "string model_name", 2: "string model_version"},
        "UnregisterModelRequest": {1: "string model_name", 2: "string model_version"},
    },
}  # fmt: skip

_Field = descriptor_pb2.FieldDescriptorProto


def _file(package: str, messages: Mapping[str, Mapping[int, str]]) -> descriptor_pb2.FileDescriptorProto:
    imports = ["google/protobuf/any.proto", *(["google.rpc.proto"] if package == INFERENCE else [])]
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3", dependency=imports
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, text in fields.items():
            kind, _, field_name = text.lstrip("*?").partition(" ")
            field = message.field.add(name=field_name, number=number, label=3 if text[0] == "*" else 1)
            if kind == "map":
                _make_map(message, field, f".{package}.{name}")
            elif "." in kind:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{kind}"
            else:
                field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
            if text[0] == "?":  # declared, as by protoc, as the only member of a oneof
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    return file


def _make_map(message: Any, field: Any, scope: str) -> None:
    """Make a field a map of strings to bytes: a repeated message of key and value."""
    entry = message.nested_type.add(name="InputEntry")
    entry.field.add(name="key", number=1, label=1, type=_Field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=1, type=_Field.TYPE_BYTES)
    entry.options.map_entry = True
    field.label, field.type, field.type_name = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE, f"{scope}.InputEntry"


_pool = descriptor_pool.DescriptorPool()
for _known in (any_pb2, empty_pb2):
    _pool.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
for _package, _messages in _MESSAGES.items():
    _pool.Add(_file(_package, _messages))


def _classes(package: str) -> dict[str, Any]:
    found = _pool.FindFileByName(f"{package}.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


#: The classes of the messages by their names, which type checkers do not know.
inference: Mapping[str, Any] = _classes(INFERENCE)
management: Mapping[str, Any] = _classes(MANAGEMENT)
Empty: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("google.protobuf.Empty"))
PredictionsRequest: Any = inference["PredictionsRequest"]
PredictionResponse: Any = inference["PredictionResponse"]
