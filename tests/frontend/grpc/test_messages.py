"""frontend/grpc/messages.py: health's messages, byte for byte as grpc-proto's file has them."""

from shoal.frontend.grpc.messages import HEALTH_FILE, HealthCheckRequest, HealthCheckResponse, service


def test_the_bytes_of_healths_messages() -> None:
    assert HealthCheckRequest(service="ab").SerializeToString() == b"\x0a\x02ab"
    assert HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString() == b"\x08\x02"
    assert HealthCheckResponse.ServingStatus.items() == [
        ("UNKNOWN", 0), ("SERVING", 1), ("NOT_SERVING", 2), ("SERVICE_UNKNOWN", 3),
    ]  # fmt: skip


def test_the_health_service_can_be_described() -> None:
    health = HEALTH_FILE.services_by_name["Health"]
    assert health.full_name == "grpc.health.v1.Health"
    assert [(each.name, each.server_streaming) for each in health.methods] == [("Check", False), ("Watch", True)]


def test_tritons_messages_are_there() -> None:
    assert service.ModelInferRequest.DESCRIPTOR.full_name == "inference.ModelInferRequest"
