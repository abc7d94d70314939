"""The table of doors: every route, rpc and verb by which a client can enter, and the scope that the client needs.

A door that the table lacks needs the scope ADMIN, so that a forgotten row closes its door. A restriction of
--http-restricted-api and --grpc-restricted-protocol holds beside the scope: a group of paths, or of rpcs, needs a
header with a secret value, which is checked before anything else of a request, its method included. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from hmac import compare_digest


class Scope(Enum):
    """The right that a door asks for; the values are the words of docs/security.md. Without --api-keys every client has
    all scopes but ADMIN."""

    OPEN = "open"  # needs no key: health, for what watches the server
    KNOWN = "any key"  # describes the server, not its models
    READ = "read"  # describes models: needs a key for inference or for administration
    INFER = "infer"
    METRICS = "metrics"
    ADMIN = "admin"  # changes the server; without keys only clients on this machine may (authorisation.py)
    SETTINGS = "read, admin with settings"  # rpcs that read settings, and change them if the request has any


_OPEN, _KNOWN, _READ, _INFER, _ADMIN = Scope.OPEN, Scope.KNOWN, Scope.READ, Scope.INFER, Scope.ADMIN
_MODEL, _REPOSITORY = "/v2/models/{name}", "/v2/repository/models/{name}"

#: Doors by API: over HTTP method and path (Route.path), "*" for any method; rpcs by name; verbs of the client socket.
DOORS: Mapping[str, Mapping[str, Scope]] = {
    "http": {
        "GET /v2/health/live": _OPEN,
        "GET /v2/health/ready": _OPEN,
        "GET /v2/health/reasons": _READ,
        "GET /-/healthz": _OPEN,
        f"GET {_MODEL}/ready": _OPEN,
        "GET /v2": _KNOWN,
        "GET /v2/models/stats": _READ,
        f"GET {_MODEL}": _READ,
        f"GET {_MODEL}/config": _READ,
        f"GET {_MODEL}/stats": _READ,
        f"POST {_MODEL}/infer": _INFER,
        f"POST {_MODEL}/generate": _INFER,
        f"POST {_MODEL}/generate_stream": _INFER,
        "GET /v2/trace/setting": _READ,
        "POST /v2/trace/setting": _ADMIN,
        f"GET {_MODEL}/trace/setting": _READ,
        f"POST {_MODEL}/trace/setting": _ADMIN,
        "GET /v2/logging": _READ,
        "POST /v2/logging": _ADMIN,
        "POST /v2/repository/index": _READ,
        f"POST {_REPOSITORY}/load": _ADMIN,
        f"POST {_REPOSITORY}/unload": _ADMIN,
        "POST /v2/repository/{}/models/{}/load": _KNOWN,  # always refused: Triton has no names for repositories
        f"GET {_REPOSITORY}/instances": _READ,
        f"POST {_REPOSITORY}/instances": _ADMIN,
        f"GET {_REPOSITORY}/batches": _READ,
        "PUT /models/{name}": _ADMIN,
        f"GET {_MODEL}/rollout": _READ,
        f"POST {_MODEL}/rollout": _ADMIN,
        "GET /v2/recording": _ADMIN,  # shows where the server's files are
        "POST /v2/recording": _ADMIN,
        "GET /v2/shadow": _ADMIN,  # shows values of clients' tensors, in examples
        "POST /v2/shadow": _ADMIN,
        "GET /v2/debug/requests": _ADMIN,  # shows clients' request ids and models' error texts
        "GET /v2/debug/log": _ADMIN,  # shows the log's lines about clients, models and files
        # The page (frontend/page): its files are the same on every server; its figures describe models.
        "* /": _OPEN,
        "* /ui": _OPEN,
        "* /ui/{name}": _OPEN,
        "* /ui/figures": _READ,
        "* /ui/metrics": _READ,
        "POST /ui/access": _ADMIN,  # changes nothing: the page asks whether its user may change the server
        "* /openapi.json": _READ,
        # OpenAI's API (frontend/openai): bodies name the models, which the handlers check.
        "GET /v1/models": _READ,
        "GET /v1/models/{name}": _READ,
        "POST /v1/chat/completions": _INFER,
        "POST /v1/completions": _INFER,
        "POST /v1/embeddings": _INFER,
        "GET /v2/systemsharedmemory/status": _READ,
        "POST /v2/systemsharedmemory/register": _ADMIN,
        "POST /v2/systemsharedmemory/unregister": _ADMIN,
        "GET /v2/cudasharedmemory/status": _READ,
        "POST /v2/cudasharedmemory/register": _ADMIN,
        "POST /v2/cudasharedmemory/unregister": _ADMIN,
    },
    "metrics": {"GET /metrics": Scope.METRICS},
    "sagemaker": {
        "GET /ping": _OPEN,
        "POST /invocations": _INFER,
        "GET /models": _READ,
        "POST /models": _ADMIN,
        "GET /models/{name}": _READ,
        "DELETE /models/{name}": _ADMIN,
        "POST /models/{name}/invoke": _INFER,
    },
    # Vertex AI's routes lead to those of http and metrics, and need the scopes of those routes (clouds/vertex_ai.py).
    "torchserve": {
        "OPTIONS /": _KNOWN,
        "* /api-description": _KNOWN,
        "* /ping": _OPEN,
        "* /predictions/{name}": _INFER,
        "* /wfpredict/{name}": _INFER,
        "OPTIONS /predictions/{name}": _READ,
        "* /explanations/{name}": _INFER,
        "* /v1/models/{name}:predict": _INFER,
        "* /v1/models/{name}:explain": _INFER,
        "* /v2/models/{name}/infer": _INFER,
        "* /v2/models/{name}/explain": _INFER,
        "* /invocations": _INFER,
        "* /models/{name}/invoke": _INFER,
        "* /{name}/predict": _INFER,
        "* /{name}/{version}/predict": _INFER,
        "GET /models": _READ,
        "POST /models": _ADMIN,
        "PUT /models/{name}/{version}/set-default": _ADMIN,
        "GET /models/{name}": _READ,
        "PUT /models/{name}": _ADMIN,
        "DELETE /models/{name}": _ADMIN,
        "GET /v1/models/{name}": _READ,
        "GET /token": _KNOWN,  # the handler checks TorchServe's token
        "GET /workflows": _READ,
        "POST /workflows": _ADMIN,
        "GET /workflows/{name}": _READ,
        "DELETE /workflows/{name}": _ADMIN,
        "GET /metrics": Scope.METRICS,
    },
    "grpc": {
        "ServerLive": _OPEN,
        "ServerReady": _OPEN,
        "ModelReady": _OPEN,
        "Check": _OPEN,
        "Healthz": _OPEN,
        "ServerMetadata": _KNOWN,
        "ServerReflectionInfo": _KNOWN,
        "ModelMetadata": _READ,
        "ModelConfig": _READ,
        "ModelStatistics": _READ,
        "ModelInfer": _INFER,
        "ModelStreamInfer": _INFER,
        "RepositoryIndex": _READ,
        "RepositoryModelLoad": _ADMIN,
        "RepositoryModelUnload": _ADMIN,
        "SystemSharedMemoryStatus": _READ,
        "SystemSharedMemoryRegister": _ADMIN,
        "SystemSharedMemoryUnregister": _ADMIN,
        "CudaSharedMemoryStatus": _READ,
        "CudaSharedMemoryRegister": _ADMIN,
        "CudaSharedMemoryUnregister": _ADMIN,
        "TraceSetting": Scope.SETTINGS,
        "LogSettings": Scope.SETTINGS,
    },
    "torchserve-grpc": {
        "Ping": _OPEN,
        "Predictions": _INFER,
        "StreamPredictions": _INFER,
        "StreamPredictions2": _INFER,
        "DescribeModel": _READ,
        "ListModels": _READ,
        "RegisterModel": _ADMIN,
        "ScaleWorker": _ADMIN,
        "SetDefault": _ADMIN,
        "UnregisterModel": _ADMIN,
        # The open inference protocol, under TorchServe's name for its service.
        "ServerLive": _OPEN,
        "ServerReady": _OPEN,
        "ServerMetadata": _KNOWN,
        "ModelReady": _OPEN,
        "ModelMetadata": _READ,
        "ModelInfer": _INFER,
    },
    # The client socket needs no key: the socket file's permissions admit the server's own user alone
    # (docs/security.md). No verb changes the server (supervisor/questions/guest_questions.py).
    "socket": {
        "server_metadata": _KNOWN,
        "ready": _OPEN,
        "is_ready": _OPEN,
        "model_metadata": _READ,
        "statistics": _READ,
        "infer": _INFER,
    },
}


def scope_of(api: str, door: str) -> Scope:
    """The scope of a door of an API; ADMIN for a door that is not in the table."""
    doors = DOORS[api]
    anyhow = f"* {door.partition(' ')[2]}"
    return doors.get(door) or doors.get(anyhow) or Scope.ADMIN


def scopes_of(api: str, path: str, methods: Iterable[str]) -> dict[str, Scope]:
    """The scopes of a path's methods."""
    return {method: scope_of(api, f"{method} {path}") for method in methods}


#: Group → the name of the header and the value it must have.
Restrictions = Mapping[str, Sequence[str]]


def missing(restrictions: Restrictions, group: str, headers: Mapping[str, str]) -> str:
    """The name of the header that the group needs, if the request lacks it or has another value in it; else "".

    `headers` have names in lower case. The comparison takes the same time for every value of a length, so that timing
    does not reveal the secret.
    """
    restriction = restrictions.get(group)
    if restriction is None:
        return ""
    name, value = restriction
    sent = headers.get(name.lower())
    # Servers decode header values as latin-1, so this gives back the bytes that were sent.
    if sent is not None and compare_digest(sent.encode("latin-1", "replace"), value.encode()):
        return ""
    return name
