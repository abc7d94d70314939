"""Defaults that clients and start scripts rely on, and options that exclude each other."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.options import ServerOptions, check, largest_request_bytes
from shoal.shared_settings import MAX_OVERSIZE_BYTES
from shoal.shm.layout import MAX_SLAB_BYTES

GOOD = ServerOptions(model_repository=(Path("models"),))


def test_defaults_are_those_of_the_documentation() -> None:
    assert (GOOD.id, GOOD.exit_timeout_secs, GOOD.log_format, GOOD.model_load_thread_count) == (
        "triton",
        30,
        "default",
        4,
    )
    assert (GOOD.http_address, GOOD.http_port, GOOD.metrics_port, GOOD.http_thread_count) == (
        "127.0.0.1",
        8000,
        8002,
        8,
    )
    assert (GOOD.http_max_input_size, GOOD.max_request_bytes) == (67108864, 2147483648)
    assert (GOOD.max_in_flight, GOOD.default_max_queue_size, GOOD.request_timeout_secs) == (1024, 1024, 300)
    check(GOOD)


def test_a_repository_is_required() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^--model-repository must be specified$"):
        check(ServerOptions())


@pytest.mark.parametrize(
    ("http_address", "metrics_address"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "10.0.0.1"), ("10.0.0.1", "::")]
)
def test_two_listeners_cannot_share_a_port(http_address: str, metrics_address: str) -> None:
    options = replace(
        GOOD, http_address=http_address, metrics_address=metrics_address, http_port=9000, metrics_port=9000
    )
    with pytest.raises(InvalidArgumentError) as refusal:
        check(options)
    assert str(refusal.value) == (
        "The server cannot listen to HTTP requests and metrics requests at the same address and port "
        f"{http_address}:9000"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics_port": 9001},
        {"metrics_address": "10.0.0.1"},
        {"allow_metrics": False},
        {"allow_http": False},
        {"http_port": 0, "metrics_port": 0},
    ],
    ids=str,
)
def test_listeners_that_do_not_meet_may_share_a_port(changes: dict[str, object]) -> None:
    check(replace(GOOD, **{"http_port": 9000, "metrics_port": 9000, **changes}))  # type: ignore[arg-type]  # many fields


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grpc_port": 8000}, "HTTP requests and GRPC requests at the same address and port 127.0.0.1:8000"),
        ({"grpc_port": 8002}, "GRPC requests and metrics requests at the same address and port 127.0.0.1:8002"),
    ],
    ids=str,
)
def test_the_port_of_grpc(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^The server cannot listen to {sentence}$"):
        check(replace(GOOD, **changes))  # type: ignore[arg-type]  # many fields
    check(replace(GOOD, **changes, allow_grpc=False))  # type: ignore[arg-type]  # many fields


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grpc_use_ssl": True}, "--grpc-use-ssl needs --grpc-server-cert, a file in PEM format"),
        (
            {"grpc_use_ssl": True, "grpc_server_cert": "c"},
            "--grpc-use-ssl needs --grpc-server-key, a file in PEM format",
        ),
        (
            {"grpc_use_ssl_mutual": True, "grpc_server_cert": "c", "grpc_server_key": "k"},
            "--grpc-use-ssl-mutual needs --grpc-root-cert, a file in PEM format",
        ),
    ],
    ids=str,
)
def test_tls_needs_its_files(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{sentence}$"):
        check(replace(GOOD, **changes))  # type: ignore[arg-type]  # many fields
    check(replace(GOOD, **changes, allow_grpc=False))  # type: ignore[arg-type]  # many fields


CLOUD = replace(
    GOOD, allow_grpc=False, allow_sagemaker=True, allow_vertex_ai=True, vertex_ai_port=8081,
    vertex_ai_predict_route="/p", vertex_ai_health_route="/h",
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vertex_ai_port": 8080},
         "SageMaker requests and Vertex AI requests at the same address and port 127.0.0.1:8080"),
        ({"sagemaker_port": 8000}, "HTTP requests and SageMaker requests at the same address and port 127.0.0.1:8000"),
        ({"metrics_port": 8080}, "metrics requests and SageMaker requests at the same address and port 127.0.0.1:8080"),
        ({"sagemaker_safe_port_range": (8001, 9000)}, "HTTP requests at port 8000, allowed port range is [8001, 9000]"),
        ({"sagemaker_safe_port_range": (1, 8001)}, "metrics requests at port 8002, allowed port range is [1, 8001]"),
        ({"vertex_ai_port": 0, "sagemaker_safe_port_range": (1, 9000)},
         "Vertex AI requests at port 0, allowed port range is [1, 9000]"),
    ],
    ids=str,
)  # fmt: skip
def test_ports_of_cloud_endpoints(changes: dict[str, object], sentence: str) -> None:
    check(CLOUD)
    check(replace(CLOUD, sagemaker_safe_port_range=(8000, 8081)))
    with pytest.raises(InvalidArgumentError) as refusal:
        check(replace(CLOUD, **changes))  # type: ignore[arg-type]  # many fields
    assert str(refusal.value) == f"The server cannot listen to {sentence}"


def test_a_range_means_nothing_for_other_addresses_or_without_sagemaker() -> None:
    check(replace(CLOUD, sagemaker_safe_port_range=(1, 2), sagemaker_address="10.0.0.2"))
    check(replace(CLOUD, sagemaker_safe_port_range=(1, 2), allow_sagemaker=False))


@pytest.mark.parametrize(
    ("slab_mib", "oversize_mib", "largest"),
    [(1, 0, 262144), (65, 0, 16777216), (65, 15, 16777216), (64, 17, 17825792), (1, 4096, 4294963200)],
)
def test_a_request_fits_into_a_shared_block_or_a_segment_of_its_own(
    slab_mib: int, oversize_mib: int, largest: int
) -> None:
    options = replace(GOOD, shm_client_slab_mib=slab_mib, shm_oversize_mib=oversize_mib, max_request_bytes=largest)
    assert largest_request_bytes(options) == largest
    check(options)
    with pytest.raises(InvalidArgumentError, match=f"^--max-request-bytes is {largest + 1}[,;].*at most {largest} b"):
        check(replace(options, max_request_bytes=largest + 1))


def test_the_largest_payload_is_the_largest_that_shared_memory_can_name() -> None:
    assert MAX_OVERSIZE_BYTES == MAX_SLAB_BYTES == 4294963200
