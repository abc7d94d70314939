"""Server reflection, from which grpcurl and others learn the server's rpcs: a question in, an answer out. Pure.

Both versions of the protocol have equal messages under two names. The descriptors lie in a pool of their own, so that
only this server's services are listed, whatever else the process has loaded. gRPC front ends.
"""

from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2

from shoal.frontend.grpc import messages

pb: Any = reflection_pb2
#: The message classes of a question and its answer, untyped like all messages in frontend/grpc.
Request: Any = pb.ServerReflectionRequest
Response: Any = pb.ServerReflectionResponse
#: Numbers of gRPC's status codes, which the protocol uses in its answers.
_INVALID_ARGUMENT, _NOT_FOUND, _UNIMPLEMENTED = 3, 5, 12


def _version(version: str) -> FileDescriptorProto:
    """The protocol's own file under the name of a version."""
    text = text_format.MessageToString(FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb))
    return text_format.Parse(text.replace("v1alpha", version), FileDescriptorProto())


_pool = DescriptorPool()
for _file in (messages.model_config.DESCRIPTOR, messages.service.DESCRIPTOR, messages.HEALTH_FILE):
    _pool.AddSerializedFile(_file.serialized_pb)
for _name in ("v1", "v1alpha"):
    _pool.Add(_version(_name))

SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
)
PATHS = frozenset(f"/{service}/ServerReflectionInfo" for service in SERVICES if "reflection" in service)


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
        services = [pb.ServiceResponse(name=name) for name in SERVICES]
        return Response(list_services_response=pb.ListServiceResponse(service=services))
    if kind == "file_by_filename":
        return _files(_pool.FindFileByName(request.file_by_filename))
    if kind == "file_containing_symbol":
        return _files(_file_of(request.file_containing_symbol))
    if kind == "file_containing_extension":
        extension = request.file_containing_extension
        containing = _pool.FindMessageTypeByName(extension.containing_type)
        return _files(_pool.FindExtensionByNumber(containing, extension.extension_number))  # raises: there are none
    if kind == "all_extension_numbers_of_type":
        _pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
        numbers = pb.ExtensionNumberResponse(base_type_name=request.all_extension_numbers_of_type)
        return Response(all_extension_numbers_response=numbers)
    return _error(_UNIMPLEMENTED, "this question is not known")


def _file_of(symbol: str) -> Any:
    try:
        return _pool.FindFileContainingSymbol(symbol)
    except KeyError:  # the symbol of an rpc, as grpcurl sends it: a pool finds only services
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
    return Response(file_descriptor_response=pb.FileDescriptorResponse(file_descriptor_proto=found.values()))


def _error(code: int, sentence: str) -> Any:
    return Response(error_response=pb.ErrorResponse(error_code=code, error_message=sentence))
