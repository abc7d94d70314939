"""Every door of the server is in a class: open to all callers, or to administrators alone (local_callers.py).

A new route or rpc is in neither table here, and fails the test until its class has been decided on.
"""

from collections.abc import Sequence

import pytest

from shoal.frontend.call import ADMINISTRATIVE as ADMINISTRATIVE_HANDLERS
from shoal.frontend.call import Handler, Route
from shoal.frontend.clouds import sagemaker
from shoal.frontend.clouds.sagemaker import SAGEMAKER
from shoal.frontend.grpc.service import METHODS, Access
from shoal.frontend.router import HTTP, RouteMatch, Router
from shoal.frontend.routes import ROUTES

Door = tuple[str, str]

_MODEL = "/v2/models/m"
#: Method and path of everything over HTTP that changes the server.
ADMINISTRATIVE = {
    ("POST", "/v2/trace/setting"),
    ("POST", f"{_MODEL}/trace/setting"),
    ("POST", "/v2/logging"),
    ("POST", "/v2/repository/models/m/load"),
    ("POST", "/v2/repository/models/m/unload"),
    ("POST", "/v2/repository/models/m/instances"),
    ("PUT", "/models/m"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("POST", "/v2/systemsharedmemory/region/r/unregister"),
    ("POST", "/v2/cudasharedmemory/region/r/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
    ("POST", "/v2/cudasharedmemory/region/r/unregister"),
    ("POST", "/ui/access"),  # changes nothing: the page asks whether its reader may
}
#: What is not a GET, and yet only reads or infers.
OPEN = {
    ("POST", f"{_MODEL}/infer"),
    ("POST", f"{_MODEL}/generate"),
    ("POST", f"{_MODEL}/generate_stream"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/r/models/m/load"),  # always refused: Triton has no names for repositories
    ("POST", "/ui"),  # always refused, at each path of the page
}
SAGEMAKER_ADMINISTRATIVE = {("POST", "/models"), ("DELETE", "/models/m")}
SAGEMAKER_OPEN = {("POST", "/invocations"), ("POST", "/models/m/invoke")}

GRPC_ADMINISTRATIVE = {
    "RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
}  # fmt: skip
GRPC_WITH_SETTINGS = {"TraceSetting", "LogSettings"}
GRPC_OPEN = {
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelStreamInfer",
    "ModelConfig", "ModelStatistics", "RepositoryIndex", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus", "Check",
    "ServerReflectionInfo",
}  # fmt: skip


@pytest.mark.parametrize(
    ("routes", "router", "administrative", "open_to_all"),
    [(ROUTES, HTTP, ADMINISTRATIVE, OPEN), (sagemaker.ROUTES, SAGEMAKER, SAGEMAKER_ADMINISTRATIVE, SAGEMAKER_OPEN)],
    ids=["http", "sagemaker"],
)
def test_every_route_is_in_a_class(
    routes: Sequence[Route], router: Router, administrative: set[Door], open_to_all: set[Door]
) -> None:
    classes: dict[Handler, bool] = {}
    for door in administrative | open_to_all:
        found = router.resolve(*door)
        assert isinstance(found, RouteMatch), door
        assert found.is_administrative is (door in administrative), door
        classes[found.handler] = found.is_administrative
    for route in routes:
        for method, handler in route.methods.items():
            if method == "GET":
                assert handler not in ADMINISTRATIVE_HANDLERS, f"{route.pattern} changes the server on a GET"
            else:
                assert handler in classes, f"who may {method} {route.pattern}? Add it to a table of this file"


def test_every_rpc_is_in_a_class() -> None:
    expected = {
        **dict.fromkeys(GRPC_ADMINISTRATIVE, Access.ADMINISTRATORS),
        **dict.fromkeys(GRPC_WITH_SETTINGS, Access.ADMINISTRATORS_WITH_SETTINGS),
        **dict.fromkeys(GRPC_OPEN, Access.ALL),
    }
    assert {path.rpartition("/")[2]: method.access for path, method in METHODS.items()} == expected
