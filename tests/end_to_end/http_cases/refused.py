"""Requests that `/infer` refuses as they are: transport, JSON, parameters, tensors, outputs."""

import gzip
import zlib
from typing import Any

from tests.end_to_end.http_cases.case import UNKNOWN, Answer, Case, compact, error, given, infer, inputs

FIXED = given("A", "INT32", [2, 3], [1, 2, 3, 4, 5, 6])
GOOD = compact(inputs(FIXED))
JSON_LENGTH = "Inference-Header-Content-Length"


def of_fixed(id_: str, request: Any, status: int, sentence: str, **more: Any) -> Case:
    return infer(id_, "fixed", request, error(status, sentence), **more)


def text_of(changes: dict[str, Any]) -> dict[str, Any]:
    """A request whose input differs from a good one; None takes a member away."""
    return inputs({key: value for key, value in (FIXED | changes).items() if value is not None})


def with_parameters(**parameters: Any) -> dict[str, Any]:
    return inputs(FIXED, parameters=parameters)


def with_output(parameters: Any = None, name: Any = "OUT_A") -> dict[str, Any]:
    return inputs(FIXED, outputs=[{"name": name, "parameters": parameters}])


def out_of_range(value: str) -> str:
    return f"inference header size should be in range (0, {len(GOOD)}), got: {value}"


ENCODING = error(501, "Unsupported compression type", Accept_Encoding="gzip, deflate")
TRANSPORT = [
    infer("brotli", "fixed", GOOD, ENCODING, headers={"Content-Encoding": "br"}),
    infer("gzip-twice", "fixed", GOOD, ENCODING, headers={"Content-Encoding": "gzip, gzip"}),
    of_fixed("gzip-cut", gzip.compress(GOOD)[:-9], 400,
             "failed to decompress the request body: the compressed stream is incomplete",
             headers={"Content-Encoding": "gzip"}),
    of_fixed("gzip-and-more", gzip.compress(GOOD) + b"junk", 400,
             "failed to decompress the request body: 4 bytes follow the compressed stream",
             headers={"Content-Encoding": "gzip"}),
    of_fixed("gzip-too-large", gzip.compress(bytes(65537)), 400,
             "decompressed request body has a byte_size that exceeds the maximum allowed value of 65536 bytes. "
             "Use --http-max-input-size to increase the limit.", headers={"Content-Encoding": "gzip"}),
    of_fixed("not-gzip", GOOD, 400,
             "failed to decompress the request body: Error -3 while decompressing data: incorrect header check",
             headers={"Content-Encoding": "gzip"}),
    # One layer is undone: what is inside is no JSON.
    of_fixed("deflate-in-gzip", gzip.compress(zlib.compress(b"[]" * 9)), 500,
             "failed to parse the request JSON buffer: Invalid encoding in string. at 1",
             headers={"Content-Encoding": "gzip"}),
    of_fixed("json-length-past-the-end", GOOD, 400, out_of_range(str(len(GOOD) + 1)),
             headers={JSON_LENGTH: str(len(GOOD) + 1)}),
    of_fixed("json-length-huge", GOOD, 400, out_of_range("99999999999"), headers={JSON_LENGTH: "99999999999"}),
    of_fixed("json-length-beyond-64-bits", GOOD, 400, out_of_range("99999999999999999999999"),
             headers={JSON_LENGTH: "99999999999999999999999"}),
    of_fixed("json-length-negative", GOOD, 400, out_of_range("-1"), headers={JSON_LENGTH: "-1"}),
    of_fixed("json-length-no-number", GOOD, 400, f"Unable to parse {JSON_LENGTH}, got: abc",
             headers={JSON_LENGTH: "abc"}),
    of_fixed("json-length-hexadecimal", GOOD, 400, f"Unable to parse {JSON_LENGTH}, got: 0x10",
             headers={JSON_LENGTH: "0x10"}),
    of_fixed("json-too-large", GOOD + b" " * 65536, 400,
             f"request JSON size of {len(GOOD) + 65536} bytes exceeds the maximum allowed input size of 65536 bytes. "
             "Use --http-max-input-size to increase the limit."),
    of_fixed("json-length-one-short", GOOD, 500, "failed to parse the request JSON buffer: "
             f"Missing a comma or '}}' after an object member. at {len(GOOD) - 1}",
             headers={JSON_LENGTH: str(len(GOOD) - 1)}),
    infer("tensor-too-large", "grid", inputs(given("A", "FP32", [1, 16385], [0])), error(400,
          "JSON input 'A' has a byte_size (65540 bytes) that exceeds the maximum allowed value of 65536 bytes. "
          "Use --http-max-input-size to increase the limit.")),
    infer("raw-too-large", "column", bytes(65540), error(400,
          "Raw input has a byte_size (65540 bytes) that exceeds the maximum allowed value of 65536 bytes. "
          "Use --http-max-input-size to increase the limit."), headers={JSON_LENGTH: "0"}),
]  # fmt: skip


def no_json(problem: str) -> str:
    return f"failed to parse the request JSON buffer: {problem}"


def mistyped(field: str, kind: str) -> str:
    return f"Unable to parse '{field}': attempt to access JSON non-{kind} as {kind}"


MISSING_INPUTS = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
SYNTAX = [
    of_fixed("no-body", b"", 500, no_json("The document is empty. at 0")),
    of_fixed("blank", b"  ", 500, no_json("The document is empty. at 2")),
    of_fixed("no-name", b"{,}", 500, no_json("Missing a name for object member. at 1")),
    of_fixed("no-value", b'{"inputs":}', 500, no_json("Invalid value. at 10")),
    of_fixed("word", b"inputs", 500, no_json("Invalid value. at 0")),
    of_fixed("no-comma", b"[1 2]", 500, no_json("Missing a comma or ']' after an array element. at 3")),
    of_fixed("no-colon", b'{"a" 1}', 500, no_json("Missing a colon after a name of object member. at 5")),
    of_fixed("cut", b'{"inputs":[', 500, no_json("Invalid value. at 11")),
    of_fixed("two-values", b"{}{}", 500, no_json("The document root must not be followed by other values. at 2")),
    of_fixed("open-string", b'{"id":"x', 500, no_json("Missing a closing quotation mark in string. at 8")),
    of_fixed("not-utf-8", b'{"id":"\xff"}', 500, no_json("Invalid encoding in string. at 7")),
    of_fixed(
        "byte-order-mark-and-no-colon",
        b'\xef\xbb\xbf{"a" 1}',
        500,
        no_json("Missing a colon after a name of object member. at 8"),
    ),
    of_fixed("two-byte-order-marks", b"\xef\xbb\xbf" * 2 + GOOD, 500, no_json("Invalid value. at 3")),
    of_fixed("lone-surrogate", b'{"id":"\\ud800"}', 500, no_json("The surrogate pair in string is invalid. at 7")),
    *(
        of_fixed(
            f"number-of-{len(digits)}-digits",
            b'{"x":%s}' % digits,
            500,
            no_json("Number too big to be stored in double. at 5"),
        )
        for digits in (b"1e999", b"1" * 5000)
    ),
    of_fixed("deep", b"[" * 120 + b"]" * 120, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    of_fixed("null", b"null", 500, MISSING_INPUTS),
    of_fixed("list", b"[]", 500, MISSING_INPUTS),
    of_fixed("number", b"7", 500, MISSING_INPUTS),
    of_fixed("no-inputs", b"{}", 500, MISSING_INPUTS),
    of_fixed("inputs-object", {"inputs": {}}, 500, mistyped("inputs", "array")),
    of_fixed("inputs-null", {"inputs": None}, 500, mistyped("inputs", "array")),
    *(of_fixed(f"id-{value}", inputs(FIXED, id=value), 500, mistyped("id", "string")) for value in (7, None)),
]


RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
INVALID_PARAMETER = "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."
PARAMETERS = [
    of_fixed("priority-negative", with_parameters(priority=-1), 500, mistyped("priority", "unsigned-integer")),
    of_fixed("priority-string", with_parameters(priority="1"), 500, mistyped("priority", "unsigned-integer")),
    of_fixed("timeout-float", with_parameters(timeout=1.0), 500, mistyped("timeout", "unsigned-integer")),
    *(of_fixed(f"timeout-{value}", with_parameters(timeout=value), 500, mistyped("timeout", "unsigned-integer"))
      for value in (float("inf"), True, 2**64)),
    of_fixed("sequence-id-negative", with_parameters(sequence_id=-1), 500, mistyped("sequence_id", "string")),
    of_fixed("sequence-start-number", with_parameters(sequence_start=1), 500, mistyped("sequence_start", "boolean")),
    of_fixed("sequence-end-null", with_parameters(sequence_end=None), 500, mistyped("sequence_end", "boolean")),
    of_fixed("binary-output-string", with_parameters(binary_data_output="true"), 500,
             mistyped("binary_data_output", "boolean")),
    of_fixed("reserved", with_parameters(triton_enable_empty_final_response=True), 400, RESERVED),
    of_fixed("parameter-list", with_parameters(k=[1]), 400, INVALID_PARAMETER),
    of_fixed("parameter-object", with_parameters(k={}), 400, INVALID_PARAMETER),
    of_fixed("parameter-null", with_parameters(k=None), 400, INVALID_PARAMETER),
    of_fixed("parameter-nan", with_parameters(k=float("nan")), 400, INVALID_PARAMETER),
    of_fixed("parameters-list", inputs(FIXED, parameters=[]), 500,
             "failed to get request params.: attempt to get members for non-object"),
    # The id comes first, then the parameters, then the inputs.
    of_fixed("id-before-parameters", inputs(id=1, parameters={"k": []}), 500, mistyped("id", "string")),
    of_fixed("parameters-before-inputs", {"parameters": {"k": []}}, 400, INVALID_PARAMETER),
]  # fmt: skip

ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
SHM_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
MISCOUNTED = (
    "Unable to parse 'data': Shape does not match true shape of 'data' field. "
    "Input 'A' has 6 elements by its shape, but %d in its data"
)


def no_member(name: str) -> str:
    return f"Unable to parse '{name}': attempt to access non-existing object member '{name}'"


def invalid_shape(shape: str) -> str:
    return f"invalid shape for input 'A': shape {shape} contains one or more invalid dimensions"


def binary(nbytes: Any, tail: bytes | None, id_: str, status: int, sentence: str) -> Case:
    return of_fixed(id_, inputs(given("A", "INT32", [2, 3], binary_data_size=nbytes)), status, sentence, tail=tail)


def of_type(id_: str, name: str, data: list[Any], answer: Answer) -> Case:
    config_name = "STRING" if name == "BYTES" else name
    return infer(id_, "types", inputs(given(config_name, name, [2], data)), answer)


def no_element(kind: str, like: str = "") -> Answer:
    return error(500, f"Unable to parse 'data': attempt to access JSON non-{kind} as {like or kind}")


TENSORS = [
    of_fixed("no-input-name", text_of({"name": None}), 500, no_member("name")),
    of_fixed("no-datatype", text_of({"datatype": None}), 500, no_member("datatype")),
    of_fixed("no-shape", text_of({"shape": None}), 500, no_member("shape")),
    of_fixed("name-number", text_of({"name": 1}), 500, mistyped("name", "string")),
    of_fixed("datatype-number", text_of({"datatype": 3}), 500, mistyped("datatype", "string")),
    of_fixed("shape-number", text_of({"shape": 6}), 500, mistyped("shape", "array")),
    of_fixed("shape-of-strings", text_of({"shape": ["2", 3]}), 500, mistyped("shape", "unsigned-integer")),
    of_fixed("shape-of-floats", text_of({"shape": [2.0, 3]}), 500, mistyped("shape", "unsigned-integer")),
    of_fixed("shape-of-bools", text_of({"shape": [True, 3]}), 500, mistyped("shape", "unsigned-integer")),
    *(of_fixed(f"shape-of-{value}", text_of({"shape": [value]}), 500, mistyped("shape", "unsigned-integer"))
      for value in (None, [1], float("nan"), 2**64)),
    # Ours: the client's mistake, where Triton answers 500.
    of_fixed("shape-negative", text_of({"shape": [2, -3]}), 400, invalid_shape("[2,-3]")),
    of_fixed("shape-beyond-int64", text_of({"shape": [9223372036854775808]}), 400,
             invalid_shape("[9223372036854775808]")),
    of_fixed("shape-product", text_of({"shape": [16, 1152921504606846978]}), 400,
             "invalid shape for input 'A': shape [16,1152921504606846978] causes total element count to exceed "
             "maximum size of 9223372036854775807"),
    of_fixed("shape-bytes", text_of({"shape": [4, 1152921504606846976]}), 400,
             "byte size overflow for input 'A' with shape [4,1152921504606846976]"),
    of_fixed("no-source", text_of({"data": None}), 400, ONE_SOURCE + "no field is set"),
    of_fixed("no-source-number", inputs(1), 400, ONE_SOURCE + "no field is set"),
    of_fixed("no-source-empty", inputs({}), 400, ONE_SOURCE + "no field is set"),
    of_fixed("no-source-parameters-list", text_of({"data": None, "parameters": []}), 400,
             ONE_SOURCE + "no field is set"),
    of_fixed("no-source-parameters-empty", text_of({"data": None, "parameters": {}}), 400,
             ONE_SOURCE + "no field is set"),
    of_fixed("no-source-20000-times", inputs(*[{}] * 20000), 400, ONE_SOURCE + "no field is set"),
    of_fixed("two-sources", text_of({"parameters": {"binary_data_size": 24}}), 400,
             ONE_SOURCE + "set 'data' 'binary_data_size'"),
    of_fixed("three-sources", text_of({"parameters": {"binary_data_size": 24, "shared_memory_region": "r"}}), 400,
             ONE_SOURCE + "set 'data' 'binary_data_size' 'shared_memory_region'"),
    of_fixed("shared-memory", inputs(given("A", "INT32", [2, 3], shared_memory_region="r")), 501, SHM_DISABLED),
    of_fixed("data-string", text_of({"data": "x"}), 500, mistyped("data", "array")),
    of_fixed("too-few-elements", text_of({"data": [1, 2, 3]}), 500, MISCOUNTED % 3),
    of_fixed("too-many-elements", text_of({"data": [1] * 7}), 500, MISCOUNTED % 7),
    of_fixed("unknown-datatype", text_of({"datatype": "INT31"}), 400, "invalid datatype for input A"),
    of_fixed("configuration's-datatype", text_of({"datatype": "TYPE_INT32"}), 400, "invalid datatype for input A"),
    of_fixed("input-twice", inputs(FIXED, FIXED), 400, f"{UNKNOWN}input 'A' already exists in request"),
    of_type("bool-from-number", "BOOL", [1, 0], no_element("boolean")),
    of_type("int-from-float", "INT32", [1.0, 2], no_element("signed-integer")),
    of_type("int-from-string", "INT32", ["1", 2], no_element("signed-integer")),
    of_type("int-from-bool", "INT64", [True, 2], no_element("signed-integer")),
    of_type("int-beyond-int64", "INT32", [9223372036854775808, 0], no_element("signed-integer")),
    of_type("int-from-nan", "INT32", [float("nan"), 0], no_element("signed-integer")),
    of_type("uint-from-negative", "UINT8", [-1, 0], no_element("unsigned-integer")),
    of_type("float-from-string", "FP32", ["1.5", 0], no_element("number", "double")),
    of_type("float-from-null", "FP64", [None, 0], no_element("number", "double")),
    of_type("bytes-from-number", "BYTES", [1, "a"],
            error(500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string")),
    of_type("fp16-from-json", "FP16", [1, 2], error(400,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input FP16")),
    of_type("bf16-from-json", "BF16", [1, 2], error(400,
            "receiving BF16 data via JSON is not supported. Please use the binary data format for input BF16")),
    binary(24, None, "binary-without-header", 400,
           "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing "
           "inputs in binary data format"),
    binary(24, bytes(20), "binary-too-short", 400,
           "unexpected size for input 'A', expecting 4 additional bytes for model 'fixed'"),
    binary(24, bytes(25), "binary-too-long", 400, "unexpected additional input data for model 'fixed'"),
    binary("24", bytes(24), "binary-size-string", 500, mistyped("binary_data_size", "unsigned-integer")),
    binary(-24, bytes(24), "binary-size-negative", 500, mistyped("binary_data_size", "unsigned-integer")),
    binary(2**64 - 1, bytes(24), "binary-size-of-64-bits", 400,
           "unexpected size for input 'A', expecting 18446744073709551591 additional bytes for model 'fixed'"),
    binary(0, None, "binary-of-no-bytes", 400,
           f"{UNKNOWN}input byte size mismatch for input 'A' for model 'fixed'. Expected 24, got 0"),
    of_fixed("binary-of-no-datatype", inputs(given("A", "?", [2, 3], binary_data_size=24)), 400, f"{UNKNOWN}inference "
             "input 'A' data-type is '<invalid>', but model 'fixed' expects 'INT32'", tail=bytes(24)),
    of_fixed("tail-of-nobody", inputs(FIXED), 400, "unexpected additional input data for model 'fixed'", tail=b"x"),
    infer("raw-for-two-inputs", "batched", b"x", error(400, f"{UNKNOWN}Raw request must only have 1 input (found 1) "
          "to be deduced but got 2 inputs in 'batched' model configuration"), headers={JSON_LENGTH: "0"}),
    infer("raw-two-variable", "grid", bytes(8), error(400, f"{UNKNOWN}The shape of the raw input 'A' can not be "
          "deduced because there are more than one variable-sized dimension"), headers={JSON_LENGTH: "0"}),
    infer("raw-bytes-of-other-shape", "simple_identity", b"x", error(400, f"{UNKNOWN}For BYTE datatype raw input "
          "'INPUT0', the model must have input shape [1]"), headers={JSON_LENGTH: "0"}),
    infer("raw-too-short", "fixed", bytes(20), error(400, f"{UNKNOWN}input byte size mismatch for input 'A' for model "
          "'fixed'. Expected 24, got 20"), headers={JSON_LENGTH: "0"}),
]  # fmt: skip

NO_CLASSES = "class result not available for output due to unsupported type '{}'"
UNSIGNED = "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"
OUTPUTS = [
    of_fixed("outputs-object", inputs(FIXED, outputs={}), 500, mistyped("outputs", "array")),
    of_fixed("output-without-name", inputs(FIXED, outputs=[{}]), 500, no_member("name")),
    of_fixed("output-number", inputs(FIXED, outputs=[1]), 500, no_member("name")),
    of_fixed("output-name-number", with_output(name=5), 500, mistyped("name", "string")),
    of_fixed("output-unknown", with_output(name="B"), 400, "unexpected inference output 'B' for model 'fixed'"),
    of_fixed("output-that-is-an-input", with_output(name="A"), 400,
             "unexpected inference output 'A' for model 'fixed'"),
    of_fixed("output-twice", inputs(FIXED, outputs=[{"name": "OUT_A"}] * 2), 400,
             f"{UNKNOWN}output 'OUT_A' already exists in request"),
    of_fixed("output-binary-number", with_output({"binary_data": 1}), 500, mistyped("binary_data", "boolean")),
    of_fixed("output-classes-negative", with_output({"classification": -1}), 500, UNSIGNED),
    *(of_fixed(f"output-classes-{value}", with_output({"classification": value}), 500, UNSIGNED)
      for value in (1.0, 2**64)),
    of_fixed("output-shared-memory", with_output({"shared_memory_region": "r"}), 501, SHM_DISABLED),
    of_fixed("output-two-places", with_output({"shared_memory_region": "r", "binary_data": True}), 400,
             "Output can't set both 'shared_memory_region' and 'binary_data'"),
    of_fixed("output-classes-in-shared-memory", with_output({"shared_memory_region": "r", "classification": 1}), 400,
             "Output can't set both 'shared_memory_region' and 'classification'"),
    infer("bool-to-classes", "types", inputs(given("BOOL", "BOOL", [2], [True, False]),
          outputs=[{"name": "OUT_BOOL", "parameters": {"classification": 1}}]), error(400, NO_CLASSES.format("BOOL"))),
    infer("bytes-to-classes", "word", inputs(given("A", "BYTES", [1], ["x"]),
          outputs=[{"name": "OUT_A", "parameters": {"classification": 1}}]), error(400, NO_CLASSES.format("BYTES"))),
    infer("fp16-to-json", "types",
          inputs(given("FP16", "FP16", [2], binary_data_size=4), outputs=[{"name": "OUT_FP16"}]), error(400,
          "sending FP16 data via JSON is not supported. Please use the binary data format for output"), tail=bytes(4)),
    infer("bf16-to-json", "types",
          inputs(given("BF16", "BF16", [2], binary_data_size=4), outputs=[{"name": "OUT_BF16"}]), error(400,
          "sending BF16 data via JSON is not supported. Please use the binary data format for output"), tail=bytes(4)),
]  # fmt: skip

CASES = TRANSPORT + SYNTAX + PARAMETERS + TENSORS + OUTPUTS
