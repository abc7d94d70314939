"""frontend/grpc/reflection.py: what grpcurl asks, and what it gets."""

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from shoal.frontend.grpc.reflection import Request, Response, answer


def ask(**question: Any) -> Any:
    request = Request(host="h", **question)
    response = Response.FromString(answer(request.SerializeToString()))
    assert (response.valid_host, response.original_request) == ("h", request)
    return response


def files(response: Any) -> list[str]:
    described = response.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(each).name for each in described]


def test_the_services() -> None:
    assert [each.name for each in ask(list_services="*").list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("inference.GRPCInferenceService", ["grpc_service.proto", "model_config.proto"]),
        ("inference.GRPCInferenceService.ModelInfer", ["grpc_service.proto", "model_config.proto"]),
        ("inference.ModelInferRequest.InferInputTensor", ["grpc_service.proto", "model_config.proto"]),
        ("inference.ModelConfig", ["model_config.proto"]),
        ("grpc.health.v1.Health", ["grpc/health/v1/health.proto"]),
        ("grpc.reflection.v1.ServerReflection", ["grpc_reflection/v1/reflection.proto"]),
        ("grpc.reflection.v1alpha.ServerReflectionRequest", ["grpc_reflection/v1alpha/reflection.proto"]),
    ],
)
def test_a_symbol_comes_with_all_that_its_file_needs(symbol: str, expected: list[str]) -> None:
    assert files(ask(file_containing_symbol=symbol)) == expected


def test_a_file_by_its_name() -> None:
    assert files(ask(file_by_filename="grpc/health/v1/health.proto")) == ["grpc/health/v1/health.proto"]


def test_the_two_versions_differ_in_their_names_only() -> None:
    described = []
    for version in ("v1", "v1alpha"):
        response = ask(file_containing_symbol=f"grpc.reflection.{version}.ServerReflection")
        (file,) = response.file_descriptor_response.file_descriptor_proto
        described.append(str(FileDescriptorProto.FromString(file)))
    assert described[0] == described[1].replace("v1alpha", "v1")


def test_the_protocol_is_the_one_that_grpcio_ships() -> None:
    (file,) = ask(
        file_by_filename="grpc_reflection/v1alpha/reflection.proto"
    ).file_descriptor_response.file_descriptor_proto
    theirs: Any = reflection_pb2
    assert FileDescriptorProto.FromString(file) == FileDescriptorProto.FromString(theirs.DESCRIPTOR.serialized_pb)


def test_there_are_no_extensions() -> None:
    found = ask(all_extension_numbers_of_type="inference.ModelConfig").all_extension_numbers_response
    assert (found.base_type_name, list(found.extension_number)) == ("inference.ModelConfig", [])


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ({"file_by_filename": "google/protobuf/descriptor.proto"}, 5),
        ({"file_containing_symbol": "google.protobuf.FileDescriptorProto"}, 5),  # loaded, but nothing of this server's
        ({"file_containing_symbol": ""}, 5),
        ({"file_containing_symbol": "inference.GRPCInferenceService.None"}, 5),
        ({"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 7}}, 5),
        ({"all_extension_numbers_of_type": "inference.None"}, 5),
        ({}, 12),
    ],
)
def test_what_is_not_there(question: dict[str, Any], code: int) -> None:
    response = ask(**question)
    assert response.error_response.error_code == code
    assert response.error_response.error_message


def test_bytes_that_are_no_question() -> None:
    assert Response.FromString(answer(b"\xff")).error_response.error_code == 3
