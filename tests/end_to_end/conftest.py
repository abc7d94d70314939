"""Servers that tests share: of the samples, of models of every kind, for model control, and for `shoal.Client`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import Client
from tests.end_to_end.client_server import client_server
from tests.end_to_end.http_cases.models import FLAGS, write_models
from tests.end_to_end.server import SAMPLES, Server, serving_to_the_end


@pytest.fixture(scope="session")
def samples() -> Iterator[Server]:
    """The sample repository, served."""
    with serving_to_the_end(SAMPLES, "--grpc-port=0") as server:
        yield server


@pytest.fixture(params=["shared memory", "http", "grpc"])
def place(request: pytest.FixtureRequest, samples: Server) -> str:
    """The server of the samples, as --url names it."""
    urls = {"http": samples.url, "grpc": f"grpc://127.0.0.1:{samples.grpc_port}"}
    return urls.get(request.param, samples.client_socket)


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The samples beside identity models of every kind and one model that does not load; small limits; gRPC, too."""
    with serving_to_the_end(
        [SAMPLES, write_models(tmp_path_factory.mktemp("models"))], *FLAGS, "--grpc-port=0"
    ) as server:
        yield server


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of `explicit`, empty at first."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def explicit(shared: Path) -> Iterator[Server]:
    """A server for tests that load and unload: each has models of its own."""
    with serving_to_the_end(shared, "--model-control-mode=explicit", "--grpc-port=0") as server:
        yield server


@pytest.fixture(scope="module")
def client_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the server of `client_served` has its socket."""
    return str(tmp_path_factory.mktemp("client") / "sock")


@pytest.fixture(scope="module")
def client_served(client_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that clients find there."""
    with client_server(client_path, tmp_path_factory.mktemp("models")) as server:
        yield server


@pytest.fixture
def client(client_served: Server, client_path: str) -> Iterator[Client]:
    """One of them."""
    with Client(client_path) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def remote(request: pytest.FixtureRequest, client_served: Server) -> Iterator[Client]:
    """A client over the network of the same server."""
    port = client_served.grpc_port if request.param == "grpc" else client_served.http_port
    with Client(f"{request.param}://127.0.0.1:{port}") as remote:
        yield remote
