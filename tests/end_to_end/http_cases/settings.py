"""The logging endpoint, as far as nothing changes, and the response's encoding; changes are test_settings.py's."""

import gzip

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

PATH = "/v2/logging"
DEFAULTS = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
    "log_format": "default",
}  # fmt: skip
NO_FILE = error(501, "log file location can not be updated through network protocol")


def post(id_: str, request: object, answer: Answer) -> Case:
    return Case(f"logging-{id_}", "POST", PATH, answer, compact(request))


LOGGING = [
    get("logging", PATH, success(DEFAULTS)),
    post("nothing", {}, success(DEFAULTS)),
    post("nulls", {"log_file": None, "log_info": None, "log_verbose_level": None}, success(DEFAULTS)),
    post("unknown", {"log_colour": "red"}, success(DEFAULTS)),
    post("same", {"log_info": True, "log_verbose_level": 0, "log_format": "default"}, success(DEFAULTS)),
    post("file", {"log_file": "x"}, NO_FILE),
    post("file-first", {"log_info": 1, "log_file": 1}, NO_FILE),
    post("format", {"log_format": "iso"}, error(503, "invalid argument for --log_format, got: iso")),
    post("boolean", {"log_info": 1}, error(500, "attempt to access JSON non-boolean as boolean")),
    post("string", {"log_format": 1}, error(500, "attempt to access JSON non-string as string")),
    post("level", {"log_verbose_level": -1}, error(500, "attempt to access JSON non-unsigned-integer as "
         "unsigned-integer")),
    Case("logging-empty", "POST", PATH,
         error(500, "failed to parse the request JSON buffer: The document is empty. at 0")),
    Case("logging-put", "PUT", PATH, error(405, "Method Not Allowed", Allow="GET, POST"), b"{}", closes=True),
    get("logging-unchanged", PATH, success(DEFAULTS)),
]  # fmt: skip

ASKED = inputs(given("A", "INT32", [2, 3], [1, 2, 3, 4, 5, 6]))
PLAIN = compact(outputs("fixed", given("OUT_A", "INT32", [2, 3], [1, 2, 3, 4, 5, 6])))


def accepted(encodings: str) -> Case:
    return infer(
        f"accept {encodings}", "fixed", ASKED, Answer(200, PLAIN, JSON), headers={"Accept-Encoding": encodings}
    )


#: Whatever is accepted, a short response goes as it is.
ENCODINGS = [accepted(each) for each in ("gzip", "deflate", "DEFLATE", "br", "", "gzip, deflate", "*", "gzip;q=0")]

#: The answer to a body that is compressed itself, and a refusal, which never is.
BOTH_WAYS = [
    infer("gzip-both-ways", "fixed", gzip.compress(compact(ASKED)), Answer(200, PLAIN, JSON),
          headers={"Content-Encoding": "gzip", "Accept-Encoding": "deflate"}),
    infer("refusal-is-not-compressed", "nobody", ASKED, error(404, "Request for unknown model: 'nobody' is not found"),
          headers={"Accept-Encoding": "gzip"}),
]  # fmt: skip

CASES = [*LOGGING, *ENCODINGS, *BOTH_WAYS]
