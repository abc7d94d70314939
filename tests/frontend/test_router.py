"""frontend/router.py: every path, method and refusal, asked of the handlers straight and through Flask."""

from typing import Any

import pytest

from shoal.frontend.access.doors import Scope
from shoal.frontend.response import Response
from shoal.frontend.router import HTTP, RouteMatch, path_of
from shoal.frontend.routes import PAGE, ROUTES
from shoal.frontend.state import ServerState
from shoal.options import RESTRICTED_APIS

ASK = ". POST /v2/repository/index says why"

JSON = [("Content-Type", "application/json")]


def allow(methods: str) -> list[tuple[str, str]]:
    return [*JSON, ("Allow", methods)]


def error(sentence: str) -> bytes:
    return b'{"error":"' + sentence.encode() + b'"}'


NOT_FOUND = error("Not Found")
NOT_ALLOWED = error("Method Not Allowed")
TRAVERSAL = "invalid model name '{}', model name must not contain path traversal characters"
UNKNOWN = "Request for unknown model: "
EMPTY: list[tuple[str, str]] = []
NO_CONTROL = error("explicit model load / unload is not allowed if polling is enabled")
NO_REPOSITORY = error("'repository_name' specification is not supported")
NO_CLIENT_SHM = error("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
UNABLE = "Unable to find system shared memory region: 'r 1'"
VERSION_2 = error(UNKNOWN + "'simple' version 2 is not at ready state" + ASK)


#: What the table of the end-to-end tests (`tests/end_to_end/http_cases`) cannot ask: models in states that a server
#: cannot be held in, paths that no client sends; and of each kind there an example, through Flask.
CASES: list[tuple[str, str, int, list[tuple[str, str]], bytes]] = [
    ("GET", "/v2/health/live", 200, EMPTY, b""),
    ("GET", "/v2/health/ready", 400, EMPTY, b""),
    ("GET", "/v2/models/simple/versions/0001/ready", 200, EMPTY, b""),
    ("GET", "/v2/models/asleep/ready", 400, JSON, error("Model version not ready")),
    ("GET", "/v2/models/simple/versions/2/ready", 503, JSON, VERSION_2),
    ("GET", "/v2/models/gone/ready", 404, JSON, error(UNKNOWN + "'gone' has no available versions" + ASK)),
    (
        "GET",
        "/v2/models/%C3%A9cho%20b",
        200,
        JSON,
        '{"name":"écho b","versions":["1"],"platform":"identity",'
        '"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[-1,2]}],'
        '"outputs":[{"name":"TEXT","datatype":"BYTES","shape":[-1,2]}]}'.encode(),
    ),
    ("GET", "/v2/models/broken/config", 404, JSON, error(UNKNOWN + "'broken' is not found")),
    # paths that are none
    ("GET", "", 404, JSON, NOT_FOUND),
    ("GET", "/v2/health%2Flive", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models//ready", 404, JSON, NOT_FOUND),
    ("DELETE", "/v2/nothing", 404, JSON, NOT_FOUND),
    # wrong methods, before anything about the model is said
    ("BREW", "/v2/models/simple/config", 405, allow("GET"), NOT_ALLOWED),
    ("GET", "/v2/models/%00/infer", 405, allow("POST"), NOT_ALLOWED),
    ("DELETE", "/v2/logging", 405, allow("GET, POST"), NOT_ALLOWED),
    ("PUT", "/v2/repository/models/simple/instances", 405, allow("GET, POST"), NOT_ALLOWED),
    # names
    ("POST", "/v2/models/./infer", 400, JSON, error(TRAVERSAL.format("."))),
    ("POST", "/v2/models/..%2f..%2fetc%2fpasswd/infer", 400, JSON, error(TRAVERSAL.format("../../etc/passwd"))),
    ("GET", "/v2/models/%252e%252e", 404, JSON, error(UNKNOWN + "'%2e%2e' is not found")),
    ("GET", "/v2/models/simple%31", 404, JSON, error(UNKNOWN + "'simple1' is not found")),
    ("GET", "/v2/models/a+b", 404, JSON, error(UNKNOWN + "'a+b' is not found")),
    ("GET", "/v2/models/versions", 404, JSON, error(UNKNOWN + "'versions' is not found")),
    ("POST", "/v2/repository/models/models/load", 503, JSON, NO_CONTROL),
    ("POST", "/v2/repository/mine/models/../unload", 501, JSON, NO_REPOSITORY),
    # infer, as far as it comes without a body
    ("POST", "/v2/models/simple/versions/2/infer", 503, JSON, VERSION_2),
    (
        "POST",
        "/v2/models/stream/infer",
        501,
        JSON,
        error("HTTP end point doesn't support models with decoupled transaction policy"),
    ),
    # shared memory of clients, which is disabled
    ("GET", "/v2/systemsharedmemory/region/r%201/status", 404, JSON, error(UNABLE)),
    ("POST", "/v2/cudasharedmemory/region/r/unregister", 501, JSON, NO_CLIENT_SHM),
    ("POST", "/v2/cudasharedmemory/register", 501, JSON, NO_CLIENT_SHM),
    ("GET", "/v2/systemsharedmemory/region//status", 404, JSON, NOT_FOUND),
]


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_table(
    client: Any, transport: Any, method: str, path: str, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    assert client.ask(method, path) == (status, headers, body)
    assert transport.num_asked == 0


@pytest.mark.parametrize(
    "name", ["%00", "a%0ab", "%7f", "%c0%ae", "%ff", "x" * 300, "%C3%A9" * 128], ids=lambda name: name[:12]
)
def test_names_that_no_directory_has(client: Any, name: str) -> None:
    status, headers, body = client.ask("POST", f"/v2/models/{name}/infer")
    assert (status, headers) == (400, JSON)
    assert body.startswith(b'{"error":"invalid model name ')


def test_statistics_of_all_models_come_before_a_model_called_stats(client: Any) -> None:
    status, _, body = client.ask("GET", "/v2/models/stats")
    assert (status, body[:16]) == (200, b'{"model_stats":[')


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/simple", "/v2/nowhere"])
def test_head_is_answered_as_get_without_its_body(client: Any, path: str) -> None:
    asked, got = client.ask("HEAD", path), client.ask("GET", path)
    assert asked[:2] == got[:2]
    assert asked[2] == (got[2] if client.way == "dispatch" else b"")


def test_head_is_refused_where_get_is(client: Any) -> None:
    status, headers, body = client.ask("HEAD", "/v2/models/simple/infer")
    assert (status, headers) == (405, allow("POST"))
    assert body == (NOT_ALLOWED if client.way == "dispatch" else b"")


def test_while_exiting(client: Any, state: ServerState) -> None:
    state.exiting = True
    for path, sentence in (
        ("/v2/health/live", "Server exiting"),
        ("/v2/health/ready", "Server exiting"),
        ("/v2/models/simple/ready", "Server not ready"),
        ("/v2/models/stats", "Server not ready"),
    ):
        assert client.ask("GET", path) == (503, JSON, error(sentence))
    assert client.ask("GET", "/v2")[0] == 200


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v2/health/live?a=/v2", "/v2/health/live"),
        ("/v2?", "/v2"),
        ("http://host:8000/v2/health/live?x", "/v2/health/live"),
        ("http://host", "/"),
        ("*", "*"),
        ("", ""),
    ],
)
def test_the_path_of_a_target(target: str, path: str) -> None:
    assert path_of(target) == path


M = "/v2/repository/models/m"


@pytest.mark.parametrize(
    ("method", "target", "name", "version", "query"),
    [
        ("GET", "/v2/models/m?a=/b?c", "m", None, "a=/b?c"),
        ("GET", f"{M}/versions/2/instances", "m", "2", ""),
        ("POST", "/v2/repository/models/index", "", "", ""),
        ("PUT", "/models/m/1.0?min_worker=2", "m", "1.0", "min_worker=2"),
        ("PUT", "http://host/models/m?min_worker=2", "m", None, "min_worker=2"),
    ],
)
def test_what_a_target_names(method: str, target: str, name: str, version: str | None, query: str) -> None:
    found = HTTP.resolve(method, target)
    assert isinstance(found, RouteMatch)
    assert (found.name, found.version, found.query) == (name, version, query)


@pytest.mark.parametrize(
    ("method", "target", "is_blocking", "is_administrative"),
    [
        ("GET", "/v2/health/live", False, False),
        ("POST", "/v2/models/m/infer", False, False),
        ("POST", "/v2/models/m/generate", False, False),
        ("POST", "/v2/models/m/generate_stream", False, False),
        ("GET", "/v2/systemsharedmemory/status", False, False),
        ("POST", "/v2/repository/index", True, False),
        ("GET", f"{M}/instances", True, False),
        ("POST", f"{M}/instances", True, True),
        ("POST", f"{M}/versions/1/instances", True, True),
        ("POST", f"{M}/load", True, True),
        ("POST", f"{M}/unload", True, True),
        ("PUT", "/models/m", True, True),
        ("GET", "/v2/logging", False, False),
        ("POST", "/v2/logging", True, True),
        ("GET", "/v2/trace/setting", True, False),
        ("POST", "/v2/trace/setting", True, True),
        ("POST", "/v2/systemsharedmemory/region/r/register", True, True),
        ("POST", "/v2/cudasharedmemory/unregister", True, True),
    ],
)
def test_which_requests_wait_and_which_change_the_server(
    method: str, target: str, is_blocking: bool, is_administrative: bool
) -> None:
    found = HTTP.resolve(method, target)
    assert not isinstance(found, Response)
    assert (found.is_blocking, found.scope is Scope.ADMIN) == (is_blocking, is_administrative)


def test_every_route_has_a_group_by_which_it_can_be_restricted() -> None:
    assert {route.group for route in ROUTES} - {PAGE} == set(RESTRICTED_APIS)  # the page's files tell nothing


def test_a_ready_probe_waits_for_a_model_that_has_a_word_in_it(make_message: Any) -> None:
    state = ServerState(started=True)
    state.models.apply(make_message("plain", 1, 1, None))
    state.models.apply(make_message("checked", 1, 2, None, has_ready_check=True))
    waits = {"/v2/models/checked/ready", "/v2/models/checked/versions/1/ready"}
    for path in (*waits, "/v2/models/plain/ready", "/v2/models/no/ready", "/v2/models/checked", "/v2/health/ready"):
        found = HTTP.resolve("GET", path)
        assert isinstance(found, RouteMatch)
        assert found.asks_model(state) == (path in waits)
        assert not found.is_blocking
