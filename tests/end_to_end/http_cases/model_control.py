"""Loading and unloading under --model-control-mode=explicit, in one order: each case finds what those before it left.

The first and the last find the same, so that all can be asked again.
"""

import base64
from typing import Any

from tests.end_to_end.http_cases.case import (
    JSON,
    Answer,
    Case,
    compact,
    error,
    get,
    given,
    infer,
    inputs,
    outputs,
    success,
)
from tests.end_to_end.http_cases.repository import post

ASK = ". POST /v2/repository/index says why"

#: What is served at first: `fixed` alone, of a repository with `fixed`, `versions` (1, 2, 3) and `broken`.
FLAGS = ("--model-control-mode=explicit", "--load-model=fixed")

DONE = Answer(200, b"", JSON)
ONE = inputs(given("A", "INT32", [1], [5]))
BROKEN = "Invalid argument: expected input and output datatype to match, got TYPE_FP32 and TYPE_INT32"
NO_MATCH = "Invalid argument: expected input and output datatype to match, got TYPE_INT32 and TYPE_FP32"
BASE64 = base64.b64encode(b"anything").decode()


def config(name: str, **more: Any) -> str:
    """A configuration as JSON in a string: an identity model of one INT32."""
    tensor = {"data_type": "TYPE_INT32", "dims": [1]}
    value = {
        "name": name,
        "backend": "identity",
        "input": [{"name": "A", **tensor}],
        "output": [{"name": "OUT_A", **tensor}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }
    return compact(value | more).decode()


def load(id_: str, model: str, answer: Answer = DONE, **parameters: Any) -> Case:
    body: Any = {"parameters": parameters} if parameters else b""
    return post(f"load-{id_}", f"/v2/repository/models/{model}/load", answer, body)


def unload(id_: str, model: str, answer: Answer = DONE, **parameters: Any) -> Case:
    body: Any = {"parameters": parameters} if parameters else b""
    return post(f"unload-{id_}", f"/v2/repository/models/{model}/unload", answer, body)


def answers(id_: str, model: str, version: str) -> Case:
    """The model is served, and by this version where none is asked for."""
    return infer(id_, model, ONE, success(outputs(model, given("OUT_A", "INT32", [1], [5]), version=version)))


def unknown(id_: str, path: str, status: int, reason: str) -> Case:
    return get(id_, path, error(status, f"Request for unknown model: {reason}"))


def index(id_: str, *rows: dict[str, str], only_ready: bool = False) -> Case:
    return post(f"index-{id_}", "/v2/repository/index", success(list(rows)), {"ready": True} if only_ready else b"")


def row(name: str, version: str, state: str = "READY", reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": state} | ({"reason": reason} if reason else {})


FIXED = row("fixed", "1")
AT_FIRST = [
    index("ready-at-first", FIXED, only_ready=True),
    get("ready", "/v2/health/ready", success()),
]

LOADING = [
    unknown("not-loaded", "/v2/models/versions", 404, "'versions' is not found"),
    load("all-versions", "versions"),
    answers("highest-answers", "versions", "3"),
    get("lower-answers", "/v2/models/versions/versions/1/ready", success()),
    unknown("not-of-the-policy", "/v2/models/versions/versions/2", 404, "'versions' version 2 is not found"),
    index("ready", FIXED, row("versions", "1"), row("versions", "3"), only_ready=True),
    # Nothing is newer: nothing to do.
    load("again", "versions"),
    load("nobody", "nobody", error(500, "failed to load 'nobody', failed to poll from model repository")),
    load(
        "broken",
        "broken",
        error(400, f"load failed for model 'broken': version 1 is at UNAVAILABLE state: {BROKEN};\n"),
    ),
    unknown("broken", "/v2/models/broken/versions/1", 503, "'broken' version 1 is not at ready state" + ASK),
    get("not-all-are-ready", "/v2/health/ready", Answer(400, b"", {})),
    unload("broken", "broken"),
    get("all-are-ready", "/v2/health/ready", success()),
    load("parameter", "versions", error(500, "unexpected error on creating Triton parameter"), x="y"),
]

OVERRIDES = [
    load("config", "versions", config=config("versions", version_policy={"specific": {"versions": [2]}})),
    answers("config-counts", "versions", "2"),
    unknown(
        "version-of-the-file", "/v2/models/versions/versions/3", 503, "'versions' version 3 is not at ready state" + ASK
    ),
    # What fails leaves what there was.
    load(
        "config-that-fails",
        "versions",
        error(400, f"load failed for model 'versions': version 3 is at UNAVAILABLE state: {NO_MATCH};\n"),
        config=config(
            "versions",
            version_policy={"specific": {"versions": [3]}},
            output=[{"name": "OUT_A", "data_type": "TYPE_FP32", "dims": [1]}],
        ),
    ),
    load(
        "config-without-a-version",
        "versions",
        error(
            400,
            "load failed for model 'versions': at least one version must be available under the version policy of "
            "model 'versions'\n",
        ),
        config=config("versions", version_policy={"specific": {"versions": [9]}}),
    ),
    answers("config-still-counts", "versions", "2"),
    # Without one it still counts, until the model is unloaded.
    load("file", "versions"),
    answers("config-counts-on", "versions", "2"),
    unload("file", "versions"),
    load("file-again", "versions"),
    answers("file-counts", "versions", "3"),
    load(
        "files-without-config",
        "fresh",
        error(400, "Load parameter 'config' must be specified for model file override"),
        **{"file:1/model": BASE64},
    ),
    load(
        "file-outside",
        "fresh",
        error(
            400,
            "Invalid file parameter 'file:1/../../x' with normalized path '../x' must stay within model directory.",
        ),
        **{"config": config("fresh"), "file:1/../../x": BASE64},
    ),
    load(
        "file-of-no-base64",
        "fresh",
        error(400, "Invalid file parameter 'file:1/model': expected base64, Only base64 data is allowed"),
        **{"config": config("fresh"), "file:1/model": "****"},
    ),
    unknown("fresh-before", "/v2/models/fresh", 404, "'fresh' is not found"),
    # In no repository: all of it comes with the request.
    load("files", "fresh", DONE, **{"config": config("fresh"), "file:7/model": BASE64}),
    answers("files-count", "fresh", "7"),
]

UNLOADING = [
    unload("fresh", "fresh", unload_dependents=True),
    unknown("unloaded", "/v2/models/fresh", 404, "'fresh' has no available versions" + ASK),
    unknown("unloaded-version", "/v2/models/fresh/versions/7", 503, "'fresh' version 7 is not at ready state" + ASK),
    unload("again", "fresh"),
    unload("versions", "versions"),
    infer("unloaded-infer", "versions", ONE, error(
        404, "Request for unknown model: 'versions' has no available versions" + ASK)),
    unload("nobody", "nobody"),
    load("unloaded", "versions"),
    answers("loaded-anew", "versions", "3"),
    unload("versions-at-last", "versions"),
    index("ready-at-last", FIXED, only_ready=True),
]  # fmt: skip

CASES = AT_FIRST + LOADING + OVERRIDES + UNLOADING
