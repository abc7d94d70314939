"""Server reflection, the service from which grpcurl and other clients learn the server's rpcs: a question in, an answer
out. Pure.

The two versions of the protocol have equal messages, in packages of different names. The descriptors lie in a pool of
their own, so that only this server's services are listed, whatever else the process has loaded. gRPC front ends import
this module with the first call of reflection, since it takes 1.5 MiB.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClassesForFiles

from shoal.frontend.grpc import messages

#: Numbers of gRPC's status codes that stand in answers for errors.
_INVALID_ARGUMENT, _NOT_FOUND, _UNIMPLEMENTED = 3, 5, 12
#: The messages of reflection.proto as https://github.com/grpc/grpc-proto has it: fields by their numbers, each with
#: its type, a scalar or another message. "*" marks a repeated field, "?" a member of the message's oneof.
_MESSAGES = {
    "ServerReflectionRequest": {
        1: "string host", 3: "?string file_by_filename", 4: "?string file_containing_symbol",
        5: "?ExtensionRequest file_containing_extension", 6: "?string all_extension_numbers_of_type",
        7: "?string list_services",
    },
    "ExtensionRequest": {1: "string containing_type", 2: "int32 extension_number"},
    "ServerReflectionResponse": {
        1: "string valid_host", 2: "ServerReflectionRequest original_request",
        4: "?FileDescriptorResponse file_descriptor_response",
        5: "?ExtensionNumberResponse all_extension_numbers_response", 6: "?ListServiceResponse list_services_response",
        7: "?ErrorResponse error_response",
    },
    "FileDescriptorResponse": {1: "*bytes file_descriptor_proto"},
    "ExtensionNumberResponse": {1: "string base_type_name", 2: "*int32 extension_number"},
    "ListServiceResponse": {1: "*ServiceResponse service"},
    "ServiceResponse": {1: "string name"},
    "ErrorResponse": {1: "int32 error_code", 2: "string error_message"},
}  # fmt: skip
_ONEOFS = {"ServerReflectionRequest": "message_request", "ServerReflectionResponse": "message_response"}


def _version(version: str) -> FileDescriptorProto:
    """The descriptor of the protocol's own file, in the package of a version (v1, v1alpha)."""
    package = f"grpc.reflection.{version}"
    file = FileDescriptorProto(name=f"grpc_reflection/{version}/reflection.proto", package=package, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONEOFS:
            message.oneof_decl.add(name=_ONEOFS[name])
        for number, text in fields.items():
            kind, _, field_name = text.lstrip("*?").partition(" ")
            field = message.field.add(name=field_name, number=number, label=3 if text[0] == "*" else 1)
            if kind in _MESSAGES:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if text[0] == "?":
                field.oneof_index = 0
    types = {"input_type": f".{package}.ServerReflectionRequest", "output_type": f".{package}.ServerReflectionResponse"}
    service = file.service.add(name="ServerReflection")
    service.method.add(name="ServerReflectionInfo", client_streaming=True, server_streaming=True, **types)
    return file


_pool = DescriptorPool()
for _file in (messages.model_config.DESCRIPTOR, messages.service.DESCRIPTOR, messages.HEALTH_FILE):
    _pool.AddSerializedFile(_file.serialized_pb)
for _name in ("v1", "v1alpha"):
    _pool.Add(_version(_name))

#: The classes of the messages, by the messages' names, which type checkers do not know; below, the classes of a
#: question and of an answer.
_made: Any = GetMessageClassesForFiles(["grpc_reflection/v1alpha/reflection.proto"], _pool)
_messages: Any = {name.rpartition(".")[2]: made for name, made in _made.items()}
Request, Response = _messages["ServerReflectionRequest"], _messages["ServerReflectionResponse"]


def answer(question: bytes | memoryview) -> bytes:
    """The answer to one question of a stream; an error in the question is part of the answer."""
    request = Request()
    try:
        request.ParseFromString(bytes(question))
        response = _answer(request)
    except DecodeError as error:
        response = _error(_INVALID_ARGUMENT, f"this is no question: {error}")
    except KeyError:
        response = _error(_NOT_FOUND, "this server has nothing of that name")
    response.valid_host = request.host
    response.original_request.CopyFrom(request)
    serialised: bytes = response.SerializeToString()
    return serialised


def _answer(request: Any) -> Any:
    """The answer to a parsed question. Raises KeyError for an unknown name."""
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        return Response(list_services_response={"service": [{"name": name} for name in messages.SERVICES]})
    if kind == "file_by_filename":
        return _files(_pool.FindFileByName(request.file_by_filename))
    if kind == "file_containing_symbol":
        return _files(_file_of(request.file_containing_symbol))
    if kind == "file_containing_extension":
        extension = request.file_containing_extension
        containing = _pool.FindMessageTypeByName(extension.containing_type)
        return _files(_pool.FindExtensionByNumber(containing, extension.extension_number))  # KeyError: we have none
    if kind == "all_extension_numbers_of_type":
        _pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
        return Response(all_extension_numbers_response={"base_type_name": request.all_extension_numbers_of_type})
    return _error(_UNIMPLEMENTED, "this question is not known")


def _file_of(symbol: str) -> Any:
    try:
        return _pool.FindFileContainingSymbol(symbol)
    except KeyError:  # grpcurl sends the symbol of an rpc, but a pool finds only services
        service, _, method = symbol.rpartition(".")
        return _pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _files(file: Any) -> Any:
    """The descriptors of a file and of all files that it imports."""
    found: dict[str, bytes] = {}
    waiting = [file]
    for each in waiting:
        if each.name not in found:
            found[each.name] = each.serialized_pb
            waiting += each.dependencies
    return Response(file_descriptor_response={"file_descriptor_proto": list(found.values())})


def _error(code: int, sentence: str) -> Any:
    return Response(error_response={"error_code": code, "error_message": sentence})
