"""The trace extension: what it answers, and what it refuses; nothing here changes what is traced."""

from tests.end_to_end.http_cases.case import Answer, Case, error, get, success

ALL, OF_FIXED = "/v2/trace/setting", "/v2/models/fixed/trace/setting"
DEFAULTS = success(
    {
        "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "",
        "trace_mode": "triton",
    }
)  # fmt: skip
NO_FILE = error(400, "Attempting to set invalid trace setting :trace file name is not given")
NO_STRING = error(500, "attempt to access JSON non-string as string")


def post(id_: str, body: bytes, answer: Answer, path: str = ALL) -> Case:
    return Case(id_, "POST", path, answer, body)


CASES = [
    get("trace", ALL, DEFAULTS),
    get("trace-of-model", OF_FIXED, DEFAULTS),
    get("trace-of-nobody", "/v2/models/nobody/trace/setting", error(400, "Request for unknown model : nobody")),
    get("trace-of-version", "/v2/models/fixed/versions/1/trace/setting", error(404, "Not Found")),
    Case("trace-put", "PUT", ALL, error(405, "Method Not Allowed", Allow="GET, POST")),
    post("trace-nothing", b"", DEFAULTS),
    post("trace-nothing-of-model", b"{}", DEFAULTS, OF_FIXED),
    post("trace-cleared", b'{"trace_level":null,"trace_rate":null}', DEFAULTS),
    post("trace-unknown-words", b'{"trace_level":["LOUD"],"color":"red"}', DEFAULTS),
    post(
        "trace-file",
        b'{"trace_file":"/tmp/x"}',
        error(501, "trace file location can not be updated through network protocol"),
    ),
    post("trace-number", b'{"trace_rate":1}', NO_STRING),
    post("trace-level-of-numbers", b'{"trace_level":[1]}', NO_STRING),
    post("trace-level", b'{"trace_level":"OFF"}', error(500, "attempt to access JSON non-array as array")),
    post(
        "trace-off-and-on",
        b'{"trace_level":["OFF","TENSORS"]}',
        error(400, "Expect only one trace level 'OFF' is specified"),
    ),
    post("trace-rate", b'{"trace_rate":"x"}', error(400, "Unable to parse 'trace_rate', got: x")),
    post(
        "trace-large-rate",
        b'{"trace_rate":"4294967296"}',
        error(400, "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296"),
    ),
    post(
        "trace-count",
        b'{"trace_count":"-2"}',
        error(400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    ),
    post("trace-without-file", b'{"trace_level":["TIMESTAMPS"]}', NO_FILE),
    post("trace-model-without-file", b'{"trace_level":["TENSORS"],"trace_rate":"1"}', NO_FILE, OF_FIXED),
]
