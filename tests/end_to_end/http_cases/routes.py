"""Paths and methods: health, what is not found, what is not allowed, not there yet, and which model is meant."""

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

ASK = ". POST /v2/repository/index says why"

NOT_FOUND = error(404, "Not Found")
ONLY_GET = error(405, "Method Not Allowed", Allow="GET")
ONLY_POST = error(405, "Method Not Allowed", Allow="POST")


def openai_s(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    """An error in the form of OpenAI's API."""
    said = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return Answer(status, compact({"error": said}), JSON | headers)


def unknown(reason: str, status: int = 404) -> Answer:
    return error(status, f"Request for unknown model: {reason}")


BROKEN = {
    "name": "broken",
    "version": "1",
    "state": "UNAVAILABLE",
    "reason": "Invalid argument: expected input and output datatype to match, got TYPE_FP32 and TYPE_INT32",
    "instances_up": 0,
    "instances": 1,
}
HEALTH = [
    get("live", "/v2/health/live", success()),
    # `broken` did not load, and readiness is strict.
    get("not-ready", "/v2/health/ready", Answer(400, b"", {})),
    get("reasons", "/v2/health/reasons", Answer(503, compact({"ready": False, "reasons": [BROKEN]}), JSON)),
    get("not-ready-of-ray-serve", "/-/healthz", Answer(400, b"", {})),
    get("model-ready", "/v2/models/fixed/ready", success()),
    get("version-ready", "/v2/models/versions/versions/3/ready", success()),
    get("sample-ready", "/v2/models/mlp/ready", success()),
    get("query-is-ignored", "/v2/health/live?probe=kubelet&x=%2f", success()),
]

NO_SUCH_PATH = [
    get(f"no-path-{path}", path, NOT_FOUND)
    for path in [
        "/",
        "/v2/",
        "/v3",
        "/V2",
        "//v2",
        "/v2/health",
        "/v2/health/live/",
        "/v2/health/alive",
        "/v2/models",
        "/v2/models/",
        "/v2/models/fixed/",
        "/v2/models/fixed/versions",
        "/v2/models/fixed/versions/",
        "/v2/models/fixed/versions/x",
        "/v2/models/fixed/versions/-1",
        "/v2/models/fixed/versions/1.0",
        "/v2/models/fixed/versions/1/",
        "/v2/models/fixed/metadata",
        "/v2/models/fixed/versions/1/trace/setting",
        "/v2/models/a/b/infer",
        "/v2/models//infer",
        "/metrics",
        "/ui",
        "/ui/figures",
        "/ui/app.js",
        "/openapi.json",
    ]
]
NO_SUCH_PATH.append(
    get("kserve-v1", "/v1/models/fixed:predict", openai_s(404, "Invalid URL: there is no /v1/models/fixed:predict"))
)
NO_SUCH_PATH += [Case(f"post-{path}", "POST", path, NOT_FOUND) for path in ("/", "/ui", "/ui/access", "/openapi.json")]

WRONG_METHOD = [
    get(
        "get-chat",
        "/v1/chat/completions",
        openai_s(405, "Not allowed on /v1/chat/completions: use POST", "method_not_supported", Allow="POST"),
    ),
    Case("post-reasons", "POST", "/v2/health/reasons", ONLY_GET),
    Case("post-live", "POST", "/v2/health/live", ONLY_GET),
    Case("post-healthz", "POST", "/-/healthz", ONLY_GET),
    Case("delete-v2", "DELETE", "/v2", ONLY_GET),
    Case("post-metadata", "POST", "/v2/models/fixed", ONLY_GET),
    Case("put-config", "PUT", "/v2/models/fixed/config", ONLY_GET),
    Case("post-ready", "POST", "/v2/models/fixed/ready", ONLY_GET),
    Case("post-stats", "POST", "/v2/models/stats", ONLY_GET),
    Case("options-stats", "OPTIONS", "/v2/models/fixed/stats", ONLY_GET),
    Case("patch-index", "PATCH", "/v2/repository/index", ONLY_POST),
    get("get-infer", "/v2/models/fixed/infer", ONLY_POST),
    # The method is looked at before the model.
    get("get-infer-of-nobody", "/v2/models/nobody/infer", ONLY_POST),
    get("get-load", "/v2/repository/models/fixed/load", ONLY_POST),
    # A body that nobody read: what follows it on the connection cannot be found.
    Case("post-live-with-body", "POST", "/v2/health/live", ONLY_GET, b'{"a":1}', closes=True),
    Case("no-path-with-body", "POST", "/v2/nowhere", NOT_FOUND, b'{"a":1}', closes=True),
]

ANY = inputs(given("A", "INT32", [1], [5]))
FIVE = given("OUT_A", "INT32", [1], [5])
MISSING = unknown("'nobody' is not found")
NO_VERSION = unknown("'versions' version 2 is not found")

LOOKUP = [
    get("unknown-model-metadata", "/v2/models/nobody", MISSING),
    get("unknown-model-ready", "/v2/models/nobody/ready", MISSING),
    get("unknown-model-config", "/v2/models/nobody/config", MISSING),
    get("unknown-model-version", "/v2/models/nobody/versions/1", MISSING),
    infer("unknown-model-infer", "nobody", ANY, MISSING),
    # Before the body: it need not even be JSON.
    infer("unknown-model-before-json", "nobody", b"{", MISSING),
    infer("unknown-model-before-encoding", "nobody", b"{", MISSING, headers={"Content-Encoding": "br"}),
    # The router takes the path for a model's.
    get("model-called-models", "/v2/models/models", unknown("'models' is not found")),
    get("version-not-served-metadata", "/v2/models/versions/versions/2", NO_VERSION),
    get("version-not-served-ready", "/v2/models/versions/versions/2/ready", NO_VERSION),
    get("version-not-served-config", "/v2/models/versions/versions/2/config", NO_VERSION),
    infer("version-not-served-infer", "/v2/models/versions/versions/2/infer", ANY, NO_VERSION),
    get("version-0", "/v2/models/versions/versions/0", unknown("'versions' version 0 is not found")),
    get("version-with-zeros", "/v2/models/versions/versions/003/ready", success()),
    get(
        "version-beyond-64-bits",
        "/v2/models/versions/versions/9223372036854775808",
        error(
            400,
            "failed to get model version from specified version string '9223372036854775808' (details: stol), "
            "version should be an integral value > 0",
        ),
    ),
    infer("version-1", "/v2/models/versions/versions/1/infer", ANY, success(outputs("versions", FIVE, version="1"))),
    infer("version-3", "/v2/models/versions/versions/3/infer", ANY, success(outputs("versions", FIVE, version="3"))),
    infer("highest-version", "versions", ANY, success(outputs("versions", FIVE, version="3"))),
    # The model that failed to load.
    get("broken-metadata", "/v2/models/broken", unknown("'broken' has no available versions" + ASK)),
    get("broken-ready", "/v2/models/broken/ready", unknown("'broken' has no available versions" + ASK)),
    get(
        "broken-version-ready",
        "/v2/models/broken/versions/1/ready",
        unknown("'broken' version 1 is not at ready state" + ASK, 503),
    ),
    infer("broken-infer", "broken", ANY, unknown("'broken' has no available versions" + ASK)),
    infer(
        "broken-version-infer",
        "/v2/models/broken/versions/1/infer",
        ANY,
        unknown("'broken' version 1 is not at ready state" + ASK, 503),
    ),
    get("broken-version-2", "/v2/models/broken/versions/2", unknown("'broken' version 2 is not found")),
    get("broken-stats", "/v2/models/broken/stats", error(400, "requested model 'broken' is not available")),
    get("unknown-stats", "/v2/models/nobody/stats", error(400, "requested model 'nobody' is not available")),
    get(
        "version-not-served-stats",
        "/v2/models/versions/versions/2/stats",
        error(400, "requested model version is not available for model 'versions'"),
    ),
    # tritonclient writes names with percent escapes.
    infer("escaped-name", "odd%2ename%2D1%5F", ANY, success(outputs("odd.name-1_", FIVE))),
    get("escaped-slash", "/v2/models/fixed%2Fx/ready", error(400, traversal := (
        "invalid model name 'fixed/x', model name must not contain path traversal characters"
    ))),
    get("two-dots", "/v2/models/../ready", error(400, traversal.replace("fixed/x", ".."))),
    get("escaped-dots", "/v2/models/%2e%2e/ready", error(400, traversal.replace("fixed/x", ".."))),
]  # fmt: skip


def described(name: str, versions: list[str], tensors: list[tuple[str, str, list[int]]], platform: str) -> Answer:
    """A model's metadata; the tensors are inputs, then as many outputs."""
    half = len(tensors) // 2
    listed = [{"name": tensor, "datatype": datatype, "shape": shape} for tensor, datatype, shape in tensors]
    return success(
        {"name": name, "versions": versions, "platform": platform, "inputs": listed[:half], "outputs": listed[half:]}
    )


INT32_1 = [("A", "INT32", [1]), ("OUT_A", "INT32", [1])]
METADATA = [
    get(
        "server",
        "/v2",
        success(
            {
                "name": "triton",
                "version": "2.73.0",
                "extensions": [
                    "classification",
                    "sequence",
                    "model_repository",
                    "model_repository(unload_dependents)",
                    "schedule_policy",
                    "model_configuration",
                    "binary_tensor_data",
                    "parameters",
                    "statistics",
                    "trace",
                    "logging",
                ],
            }
        ),
    ),
    get("all-versions", "/v2/models/versions", described("versions", ["1", "3"], INT32_1, "identity")),
    get("one-version", "/v2/models/versions/versions/1", described("versions", ["1"], INT32_1, "identity")),
    get(
        "batched",
        "/v2/models/batched",
        described(
            "batched",
            ["1"],
            [
                ("A", "FP32", [-1, -1, 2]),
                ("B", "INT32", [-1, 3]),
                ("OUT_A", "FP32", [-1, -1, 2]),
                ("OUT_B", "INT32", [-1, 3]),
            ],
            "identity",
        ),
    ),
    # `dims`, not `reshape`.
    get(
        "reshaped",
        "/v2/models/reshaped",
        described("reshaped", ["1"], [("A", "INT32", [-1, 4]), ("OUT_A", "INT32", [-1, 4])], "identity"),
    ),
    get(
        "bytes", "/v2/models/word", described("word", ["1"], [("A", "BYTES", [1]), ("OUT_A", "BYTES", [1])], "identity")
    ),
    get(
        "platform",
        "/v2/models/simple",
        described(
            "simple",
            ["1"],
            [(name, "INT32", [-1, 16]) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")],
            "onnxruntime_onnx",
        ),
    ),
]

IDENTITY_CONFIG = compact(
    {
        "name": "versions",
        "platform": "",
        "backend": "identity",
        "runtime": "",
        "version_policy": {"specific": {"versions": [1, 3]}},
        "max_batch_size": 0,
        "input": [
            {
                "name": "A",
                "data_type": "TYPE_INT32",
                "format": "FORMAT_NONE",
                "dims": [1],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [
            {
                "name": "OUT_A",
                "data_type": "TYPE_INT32",
                "dims": [1],
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "instance_group": [
            {
                "name": "versions_0",
                "kind": "KIND_CPU",
                "count": 1,
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }
)
CONFIG = [
    get("config", "/v2/models/versions/config", Answer(200, IDENTITY_CONFIG, {"Content-Type": "application/json"})),
    get(
        "config-of-version",
        "/v2/models/versions/versions/1/config",
        Answer(200, IDENTITY_CONFIG, {"Content-Type": "application/json"}),
    ),
]

CASES = HEALTH + NO_SUCH_PATH + WRONG_METHOD + LOOKUP + METADATA + CONFIG
