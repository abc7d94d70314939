"""The model repository and shared memory, where nothing can be loaded and clients' shared memory is disabled."""

from typing import Any

from tests.end_to_end.http_cases.case import JSON, Answer, Case, compact, error, get, success

MODEL = "/v2/repository/models/fixed"
NO_CONTROL = error(503, "explicit model load / unload is not allowed if polling is enabled")
NO_REPOSITORY = error(501, "'repository_name' specification is not supported")
NO_JSON = error(500, "failed to parse the request JSON buffer: Missing a name for object member. at 1")
NO_BOOLEAN = error(400, "Invalid value for 'ready': expected a boolean")
NO_STRING = error(500, "attempt to access JSON non-string as string")
NO_OBJECT = error(500, "attempt to get members for non-object")
NO_PARAMETER = error(500, "unexpected error on creating Triton parameter")
TOO_DEEP = error(400, "JSON nesting depth exceeds maximum allowed limit (100)")
NO_NAME = "invalid model name '{}', model name must not contain path traversal characters"


def post(id_: str, path: str, answer: Answer, request: Any = b"", **headers: str) -> Case:
    body = request if isinstance(request, bytes) else compact(request)
    return Case(id_, "POST", path, answer, body, headers)


def load(id_: str, answer: Answer, request: Any = b"") -> Case:
    return post(f"load-{id_}", f"{MODEL}/load", answer, request)


def unload(id_: str, answer: Answer, request: Any = b"") -> Case:
    return post(f"unload-{id_}", f"{MODEL}/unload", answer, request)


NO_BOOLEANS: list[Any] = ["true", 1, None, [], {}]
INDEX = [
    *(post(f"index-ready-{value}", "/v2/repository/index", NO_BOOLEAN, {"ready": value}) for value in NO_BOOLEANS),
    # The repository in the path is not looked at.
    post("index-of-a-repository", "/v2/repository/mine/index", NO_BOOLEAN, {"ready": 0}),
    post("index-no-json", "/v2/repository/index", NO_JSON, b"{1"),
    post("index-too-deep", "/v2/repository/index", TOO_DEEP, b"[" * 101 + b"]" * 101),
]

#: The body is read first, then it is said that nothing may be loaded; files are not even looked at.
CONTROL = [
    load("nothing", NO_CONTROL),
    load("empty-object", NO_CONTROL, {}),
    load("no-object", NO_CONTROL, []),
    load("config", NO_CONTROL, {"parameters": {"config": "no JSON"}}),
    load("files", NO_CONTROL, {"parameters": {"file:../../x": "no base64"}}),
    load("unknown-members", NO_CONTROL, {"config": 1}),
    load("no-json", NO_JSON, b"{1"),
    load("too-deep", TOO_DEEP, b"[" * 101 + b"]" * 101),
    load("parameters-list", NO_OBJECT, {"parameters": []}),
    load("parameters-null", NO_OBJECT, {"parameters": None}),
    load("config-object", NO_STRING, {"parameters": {"config": {}}}),
    load("file-number", NO_STRING, {"parameters": {"file:1/m": 1}}),
    load("parameter-number", NO_STRING, {"parameters": {"x": 1}}),
    load("parameter-unknown", NO_PARAMETER, {"parameters": {"x": "y"}}),
    load("parameter-almost-a-file", NO_PARAMETER, {"parameters": {"files:1/m": ""}}),
    unload("nothing", NO_CONTROL),
    unload("dependents", NO_CONTROL, {"parameters": {"unload_dependents": True}}),
    unload("parameters-list", NO_CONTROL, {"parameters": []}),
    unload("no-json", NO_JSON, b"{1"),
    unload(
        "dependents-number",
        error(500, "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"),
        {"parameters": {"unload_dependents": 1}},
    ),
    # Nor is it said whether there is such a model.
    post("load-nobody", "/v2/repository/models/nobody/load", NO_CONTROL),
    post("load-escaped-name", "/v2/repository/models/odd%2ename%2D1%5F/load", NO_CONTROL),
    post("load-traversal", "/v2/repository/models/..%2f..%2fetc/load", error(400, NO_NAME.format("../../etc"))),
    post("unload-traversal", "/v2/repository/models/../unload", error(400, NO_NAME.format(".."))),
    post("load-repository", "/v2/repository/mine/models/fixed/load", NO_REPOSITORY),
    post("unload-repository", "/v2/repository/mine/models/fixed/unload", NO_REPOSITORY),
    # Whoever speaks for somebody on another machine, or for a page in a browser.
    *(
        post(
            f"load-{name}",
            f"{MODEL}/load",
            error(
                403,
                "models, log settings, trace settings and shared-memory regions are changed by callers on the server's "
                "own machine only. "
                "Start the server with '--allow-remote-admin=true' to let in others",
            ),
            **{name: value},
        )
        for name, value in {"X-Forwarded-For": "192.0.2.1", "Via": "1.1 proxy", "Origin": "http://elsewhere"}.items()
    ),
]

PATHS = [
    get("get-index", "/v2/repository/index", ONLY_POST := error(405, "Method Not Allowed", Allow="POST")),
    get("get-unload", f"{MODEL}/unload", ONLY_POST),
    get("get-load-of-repository", "/v2/repository/mine/models/fixed/load", ONLY_POST),
    get("post-workers", "/models/fixed", error(405, "Method Not Allowed", Allow="PUT")),
    *(
        post(f"no-path-{path}", path, error(404, "Not Found"))
        for path in [
            "/v2/repository",
            "/v2/repository/index/",
            "/v2/repository/a/b/index",
            "/v2/repository/models//load",
            "/v2/repository/models/fixed",
            "/v2/repository/models/fixed/reload",
            "/v2/repository/models/fixed/versions/1/load",
            "/v2/repository/models/fixed/versions/x/instances",
            "/models",
            "/models/fixed/1/set-default",
        ]
    ),
]


def scale(id_: str, request: Any, expected: str, got: str) -> Case:
    answer = error(400, f"cannot scale model 'fixed': expected {expected}, got: {got}")
    return post(f"scale-{id_}", f"{MODEL}/instances", answer, request)


def workers(id_: str, query: str, message: str) -> Case:
    """TorchServe's form, and its errors."""
    body = f'{{\n  "code": 400,\n  "type": "BadRequestException",\n  "message": "{message}"\n}}\n'.encode()
    return Case(f"workers-{id_}", "PUT", f"/models/fixed?{query}", Answer(400, body, JSON))


SCALING = [
    scale("nothing", b"", 'an object with the number of instances, like {"count": 2}', "{}"),
    scale("list", [2], 'an object with the number of instances, like {"count": 2}', "[2]"),
    scale("text", {"count": "2"}, "'count' to be a number of instances", '"2"'),
    scale("negative", {"count": -1}, "'count' to be a number of instances", "-1"),
    scale("wait", {"count": 2, "wait": "no"}, "'wait' to be true or false", '"no"'),
    workers("max-below-min", "min_worker=3&max_worker=2", "max_worker cannot be less than min_worker."),
    workers("negative", "min_worker=-1", "min_worker must be a number of workers, got: -1"),
]

NO_CLIENT_SHM = error(
    501, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
SHARED_MEMORY = [
    get("system-regions", "/v2/systemsharedmemory/status", success([])),
    get("cuda-regions", "/v2/cudasharedmemory/status", success([])),
    get("system-region", "/v2/systemsharedmemory/region/r/status",
        error(404, "Unable to find system shared memory region: 'r'")),
    get("cuda-region", "/v2/cudasharedmemory/region/r/status",
        error(404, "Unable to find cuda shared memory region: 'r'")),
    post("register-system", "/v2/systemsharedmemory/region/r/register", NO_CLIENT_SHM, {"key": "/k", "byte_size": 8}),
    post("register-nothing", "/v2/systemsharedmemory/region/r/register", NO_CLIENT_SHM),
    post("register-cuda", "/v2/cudasharedmemory/region/r/register", NO_CLIENT_SHM,
         {"raw_handle": {"b64": "AA=="}, "device_id": 0, "byte_size": 8}),
    post("unregister-system", "/v2/systemsharedmemory/region/r/unregister", NO_CLIENT_SHM),
    post("unregister-all", "/v2/systemsharedmemory/unregister", NO_CLIENT_SHM),
    post("unregister-all-cuda", "/v2/cudasharedmemory/unregister", NO_CLIENT_SHM),
    get("get-register", "/v2/systemsharedmemory/region/r/register", ONLY_POST),
    post("post-regions", "/v2/systemsharedmemory/status", error(405, "Method Not Allowed", Allow="GET")),
    post("register-slash", "/v2/systemsharedmemory/region/a/b/register", error(404, "Not Found")),
]  # fmt: skip

CASES = INDEX + CONTROL + PATHS + SCALING + SHARED_MEMORY
