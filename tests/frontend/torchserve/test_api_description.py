"""frontend/torchserve/api_description.py, and the preflight of CORS: what a listener says of itself."""

import json

import pytest

from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.api_description import description, paths_of
from shoal.frontend.torchserve.inference_api import INFERENCE_ROUTES
from shoal.frontend.torchserve.listener import RoadEndpoint, router_of
from shoal.frontend.torchserve.management_api import MANAGEMENT_ROUTES
from shoal.frontend.torchserve.metrics_api import METRICS_ROUTES
from shoal.torchserve_settings import TorchServeSettings

ROUTES = (*INFERENCE_ROUTES, *MANAGEMENT_ROUTES, *METRICS_ROUTES)


def test_an_optional_part_makes_two_paths() -> None:
    assert list(paths_of("/predictions/(?P<name>[^/]+)(?:/(?P<version>[^/]+)(?:/.*)?)?")) == [
        "/predictions/{model_name}",
        "/predictions/{model_name}/{model_version}",
    ]


def test_each_path_that_is_described_is_served_by_its_methods() -> None:
    document = json.loads(b"".join(map(bytes, description("t", "1", ROUTES).chunks)))
    router = router_of(["inference", "management", "metrics"])
    assert "/v1/models/{model_name}:predict" in document["paths"]
    for path, operations in document["paths"].items():
        asked = path.replace("{model_name}", "m").replace("{model_version}", "1.0")
        assert operations, path
        for method, operation in operations.items():
            assert not isinstance(router.resolve(method.upper(), asked), Response), (method, path)
            assert [each["name"] for each in operation["parameters"]] == [
                name for name in ("model_name", "model_version") if f"{{{name}}}" in path
            ]


@pytest.mark.parametrize("origin", ["", "*"])
def test_a_preflight_needs_no_token_where_an_origin_is_allowed(origin: str) -> None:
    settings = TorchServeSettings(token_file="/nowhere", cors_allowed_origin=origin, cors_allowed_methods="POST, PUT")
    state = ServerState(torchserve=settings)
    endpoint = RoadEndpoint(state, ["inference"], lambda _status: None)
    fields = {"origin": "http://a", "access-control-request-method": "POST"}
    found = endpoint.admit(state, "OPTIONS", "/predictions/m", fields)
    assert isinstance(found, Response)
    headers = dict(endpoint.finish(found).headers)
    assert found.status == (200 if origin else 400)
    assert headers.get("Access-Control-Allow-Origin", "") == origin
    assert headers.get("Access-Control-Allow-Methods") == ("POST, PUT" if origin else None)
