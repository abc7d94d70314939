"""frontend/access/doors.py: every route, rpc and verb is in the table, and no other door is open.

A new one fails here until its scope has been decided on.
"""

from typing import Any

import pytest

from shoal.frontend.access.doors import DOORS, Scope, scope_of
from shoal.frontend.call import BLOCKING, Route
from shoal.frontend.clouds import sagemaker
from shoal.frontend.clouds.sagemaker import SAGEMAKER
from shoal.frontend.grpc.service import METHODS
from shoal.frontend.grpc.torchserve import service as torchserve
from shoal.frontend.router import HTTP, RouteMatch
from shoal.frontend.routes import ROUTES
from shoal.frontend.torchserve.inference_api import INFERENCE_ROUTES
from shoal.frontend.torchserve.listener import router_of
from shoal.frontend.torchserve.management_api import MANAGEMENT_ROUTES
from shoal.frontend.torchserve.metrics_api import METRICS_ROUTES
from shoal.options import TORCHSERVE_APIS
from shoal.supervisor.questions.guest_questions import GuestQuestions

TORCHSERVE_ROUTES = (*INFERENCE_ROUTES, *MANAGEMENT_ROUTES, *METRICS_ROUTES)
#: Those that each listener of TorchServe's has, whatever its API.
DESCRIBED = {"OPTIONS /", "* /api-description"}
ALL = {"http": ROUTES, "sagemaker": sagemaker.ROUTES, "torchserve": TORCHSERVE_ROUTES}


def doors_of(api: str, routes: tuple[Route, ...]) -> set[str]:
    """The rows of the table that these routes use; a route without one is named as it would be there."""
    found = set()
    for route in routes:
        for method in route.methods:
            door, anyhow = f"{method} {route.path}", f"* {route.path}"
            found.add(anyhow if door not in DOORS[api] and anyhow in DOORS[api] else door)
    return found


@pytest.mark.parametrize("api", ALL)
def test_every_route_is_in_the_table(api: str) -> None:
    described = DESCRIBED if api == "torchserve" else set()
    assert doors_of(api, ALL[api]) | described == set(DOORS[api]), "decide who may use it: frontend/access/doors.py"


def test_every_verb_of_the_socket_is_in_the_table() -> None:
    unused: Any = None
    assert {*GuestQuestions(unused, unused, unused, unused).verbs, "infer"} == set(DOORS["socket"])


def test_every_rpc_is_in_the_table() -> None:
    assert {method.name for method in METHODS.values()} == set(DOORS["grpc"])
    assert {method.name for method in torchserve.ALL.values()} == set(DOORS["torchserve-grpc"])
    assert {method.api for method in torchserve.ALL.values()} == {"torchserve-grpc"}


@pytest.mark.parametrize(
    ("method", "target", "scope", "model"),
    [
        ("GET", "/v2/health/live", Scope.OPEN, ""),
        ("HEAD", "/v2/health/live", Scope.OPEN, ""),
        ("GET", "/v2", Scope.KNOWN, ""),
        ("HEAD", "/v2/models/m/versions/3", Scope.READ, "m"),
        ("POST", "/v2/models/m%2Dn/versions/3/infer", Scope.INFER, "m-n"),
        ("POST", "/v2/repository/r/index", Scope.READ, ""),
        ("POST", "/v2/repository/models/m/load?x=/v2/health/live", Scope.ADMIN, "m"),
        ("POST", "http://h/v2/logging", Scope.ADMIN, ""),
        ("GET", "/v2/logging", Scope.READ, ""),
        # A region's name is no model's: a key for the model "r" must not open it.
        ("POST", "/v2/systemsharedmemory/region/r/unregister", Scope.ADMIN, ""),
        ("GET", "/v2/cudasharedmemory/region/r/status", Scope.READ, ""),
        ("PUT", "/models/m/2", Scope.ADMIN, "m"),
    ],
)
def test_a_request_has_the_scope_of_its_door(method: str, target: str, scope: Scope, model: str) -> None:
    found = HTTP.resolve(method, target)
    assert isinstance(found, RouteMatch)
    assert (found.scope, found.model) == (scope, model)


@pytest.mark.parametrize(
    ("method", "target", "scope"),
    [
        ("GET", "/ping", Scope.OPEN),
        ("DELETE", "/ping", Scope.OPEN),
        ("GET", "/ping/", Scope.OPEN),
        ("POST", "/predictions/m/", Scope.INFER),
        ("GET", "/models//", Scope.READ),
        ("PATCH", "/predictions/m/1.0/rest/of/it", Scope.INFER),
        ("OPTIONS", "/predictions/m", Scope.READ),
        ("POST", "/models?url=x.mar", Scope.ADMIN),
        ("POST", "/models/?url=x.mar", Scope.ADMIN),
        ("DELETE", "/models/m/1.0", Scope.ADMIN),
        ("PUT", "/models/m/1.0/set-default", Scope.ADMIN),
        ("GET", "/metrics", Scope.METRICS),
    ],
)
def test_torchserves_doors(method: str, target: str, scope: Scope) -> None:
    found = router_of(TORCHSERVE_APIS).resolve(method, target)
    assert isinstance(found, RouteMatch)
    assert found.scope is scope


@pytest.mark.parametrize("api", DOORS)
def test_what_is_not_in_the_table_is_administrative(api: str) -> None:
    for door in ("POST /v2/new", "GET /v2/models/{name}/new", "NewRpc", "", "* /v2"):
        assert scope_of(api, door) is Scope.ADMIN


def test_the_road_answers_all_that_is_administrative() -> None:
    """The road alone knows where a request comes from, and writes the audit log."""
    for router, routes in ((HTTP, ROUTES), (SAGEMAKER, sagemaker.ROUTES)):
        for route in routes:
            for method, handler in route.methods.items():
                path = route.path.replace("{name}", "m.js" if route.group == "page" else "m").replace("{}", "x")
                found = router.resolve(method, path)
                assert isinstance(found, RouteMatch), path
                assert found.scope is not Scope.ADMIN or (found.is_blocking and handler in BLOCKING), path
