"""Requests that `/infer` answers: JSON, binary, mixed and raw tensors of every datatype, outputs, ids, parameters."""

import gzip
import zlib
from typing import Any

from tests.end_to_end.http_cases.case import Case, compact, given, infer, inputs, mixed, outputs, success

SIX = [1, 2, 3, 4, 5, 6]
FIXED = given("A", "INT32", [2, 3], SIX)
FIXED_OUT = given("OUT_A", "INT32", [2, 3], SIX)
REPEATED = success(outputs("fixed", FIXED_OUT))
SIX_BYTES = bytes.fromhex("010000000200000003000000040000000500000006000000")
FIXED_BINARY = given("A", "INT32", [2, 3], binary_data_size=24)
FIXED_BINARY_OUT = given("OUT_A", "INT32", [2, 3], binary_data_size=24)
ALL_BINARY = {"parameters": {"binary_data_output": True}}


def ask(*names: str, **parameters: Any) -> dict[str, Any]:
    """The request's `outputs`."""
    return {"outputs": [{"name": name} | ({"parameters": parameters} if parameters else {}) for name in names]}


def of_type(name: str, data: list[Any], printed: list[Any] | None = None, raw: str = "") -> list[Case]:
    """A pair of `name` through `types`: as JSON and as binary where `raw` says its bytes."""
    config_name = "STRING" if name == "BYTES" else name
    output = given(f"OUT_{config_name}", name, [2], data if printed is None else printed)
    cases = [
        infer(
            f"json-{name}-{data[0]}",
            "types",
            inputs(given(config_name, name, [2], data), **ask(f"OUT_{config_name}")),
            success(outputs("types", output)),
        )
    ]
    return cases + (of_binary(name, raw) if raw else [])


def of_binary(name: str, raw: str, what: str = "") -> list[Case]:
    config_name = "STRING" if name == "BYTES" else name
    data = bytes.fromhex(raw)
    sent = given(config_name, name, [2], binary_data_size=len(data))
    got = given(f"OUT_{config_name}", name, [2], binary_data_size=len(data))
    request = inputs(sent, **ask(f"OUT_{config_name}", binary_data=True))
    return [infer(f"binary-{name}{what}", "types", request, mixed(outputs("types", got), data), tail=data)]


TYPES = [
    *of_type("BOOL", [True, False], raw="0100"),
    *of_type("UINT8", [0, 255], raw="00ff"),
    *of_type("UINT16", [1, 65535], raw="0100ffff"),
    *of_type("UINT32", [1, 4294967295], raw="01000000ffffffff"),
    *of_type("UINT64", [1, 18446744073709551615], raw="0100000000000000ffffffffffffffff"),
    *of_type("INT8", [-128, 127], raw="807f"),
    *of_type("INT16", [-32768, 32767], raw="0080ff7f"),
    *of_type("INT32", [-2147483648, 2147483647], raw="00000080ffffff7f"),
    *of_type("INT64", [-9223372036854775808, 9223372036854775807], raw="0000000000000080ffffffffffffff7f"),
    *of_type("FP32", [1.5, -0.25], raw="0000c03f000080be"),
    *of_type("FP64", [0.1, -2.5], raw="9a9999999999b93f00000000000004c0"),
    *of_type("BYTES", ["", 'é\n"€'], raw="000000000900000022c3a90a5ce282ac21"),
    *of_binary("FP16", "003c00c0"),
    *of_binary("BF16", "803f00c0"),
    # Integers wrap to the tensor's width, integers become floats, floats lose what FP32 cannot hold.
    *of_type("UINT8", [256, 511], [0, 255]),
    *of_type("INT8", [128, -129], [-128, 127]),
    *of_type("INT32", [2147483648, 4294967297], [-2147483648, 1]),
    *of_type("FP32", [3, 1e300], [3.0, float("inf")]),
    *of_type("FP32", [float("nan"), float("-inf")]),
    *of_type("FP64", [-7, 9007199254740993], [-7.0, 9007199254740992.0]),
    # Not UTF-8: only binary can carry it.
    *of_binary("BYTES", "01000000ff0200000000fe", "not-utf-8"),
]

JSON_TENSORS = [
    infer("flat-data", "fixed", inputs(FIXED), REPEATED),
    infer("nested", "fixed", inputs(given("A", "INT32", [2, 3], [[1, 2, 3], [4, 5, 6]])), REPEATED),
    infer("nested-otherwise", "fixed", inputs(given("A", "INT32", [2, 3], [[[1], [2]], 3, [4, [5, 6]]])), REPEATED),
    infer("unknown-keys", "fixed", inputs(FIXED | {"color": 1}, model_name="x", model_version="7"), REPEATED),
    # As Windows' tools write files.
    infer("byte-order-mark", "fixed", b"\xef\xbb\xbf" + compact(inputs(FIXED)), REPEATED),
    infer("white-space", "fixed", b" \r\n\t" + compact(inputs(FIXED)) + b"\n ", REPEATED),
    infer("variable", "grid", inputs(given("A", "FP32", [2, 1], [1, 2])),
          success(outputs("grid", given("OUT_A", "FP32", [2, 1], [1.0, 2.0])))),
    infer("no-elements", "grid", inputs(given("A", "FP32", [0, 3], [])),
          success(outputs("grid", given("OUT_A", "FP32", [0, 3], [])))),
    # Data of no elements are not looked at.
    infer("no-elements-but-data", "grid", inputs(given("A", "FP32", [0, 3], ["x", 1])),
          success(outputs("grid", given("OUT_A", "FP32", [0, 3], [])))),
    infer("names-of-infinity", "grid",
          b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,4],"data":[NaN,Infinity,-Infinity,-Inf]}]}',
          success(outputs("grid", given("OUT_A", "FP32", [1, 4],
                                        [float("nan"), float("inf"), float("-inf"), float("-inf")])))),
    infer("batch-of-two", "reshaped", inputs(given("A", "INT32", [2, 4], [1, 2, 3, 4, 5, 6, 7, 8])),
          success(outputs("reshaped", given("OUT_A", "INT32", [2, 4], [1, 2, 3, 4, 5, 6, 7, 8])))),
    infer("order-of-inputs-is-free", "batched",
          inputs(given("B", "INT32", [1, 3], [1, 2, 3]), given("A", "FP32", [1, 1, 2], [0.5, 1.5])),
          success(outputs("batched", given("OUT_A", "FP32", [1, 1, 2], [0.5, 1.5]),
                          given("OUT_B", "INT32", [1, 3], [1, 2, 3])))),
    infer("optional-left-out", "choosy", inputs(given("A", "INT32", [2], [1, 2]), **ask("OUT_A")),
          success(outputs("choosy", given("OUT_A", "INT32", [2], [1, 2])))),
    infer("optional-given", "choosy", inputs(given("B", "INT32", [2], [3, 4]), given("A", "INT32", [2], [1, 2])),
          success(outputs("choosy", given("OUT_A", "INT32", [2], [1, 2]), given("OUT_B", "INT32", [2], [3, 4])))),
    infer("simple", "simple",
          inputs(given("INPUT0", "INT32", [1, 16], list(range(16))), given("INPUT1", "INT32", [1, 16], [1] * 16)),
          success(outputs("simple", given("OUTPUT0", "INT32", [1, 16], list(range(1, 17))),
                          given("OUTPUT1", "INT32", [1, 16], list(range(-1, 15)))))),
]  # fmt: skip

IDS_AND_PARAMETERS = [
    infer("id", "fixed", inputs(FIXED, id="7"), success(outputs("fixed", FIXED_OUT, id="7"))),
    infer("id-escapes", "fixed", inputs(FIXED, id='a"\\é€'), success(outputs("fixed", FIXED_OUT, id='a"\\é€'))),
    infer("id-empty", "fixed", inputs(FIXED, id=""), REPEATED),
    infer("parameters-empty", "fixed", inputs(FIXED, parameters={}), REPEATED),
    # Forwarded to the model; the identity backend has no use for them, and they do not come back.
    infer("parameters-of-every-type", "fixed",
          inputs(FIXED, parameters={"a": "x", "b": 1, "c": True, "d": 0.5, "e": -1}), REPEATED),
    infer("priority-and-timeout", "fixed", inputs(FIXED, parameters={"priority": 1, "timeout": 1000000}), REPEATED),
    infer("binary-output-false", "fixed", inputs(FIXED, parameters={"binary_data_output": False}), REPEATED),
]  # fmt: skip

BOTH = inputs(given("A", "FP32", [1, 1, 2], [0.5, 1.5]), given("B", "INT32", [1, 3], [1, 2, 3]))
A_JSON = given("OUT_A", "FP32", [1, 1, 2], [0.5, 1.5])
B_JSON = given("OUT_B", "INT32", [1, 3], [1, 2, 3])
A_BINARY = given("OUT_A", "FP32", [1, 1, 2], binary_data_size=8)
B_BINARY = given("OUT_B", "INT32", [1, 3], binary_data_size=12)
A_BYTES, B_BYTES = bytes.fromhex("0000003f0000c03f"), bytes.fromhex("010000000200000003000000")
OUTPUTS = [
    infer("both-by-default", "batched", BOTH, success(outputs("batched", A_JSON, B_JSON))),
    infer("none-listed", "batched", BOTH | {"outputs": []}, success(outputs("batched", A_JSON, B_JSON))),
    infer("one", "batched", BOTH | ask("OUT_B"), success(outputs("batched", B_JSON))),
    # In the model's order, not in the request's.
    infer("two-turned-round", "batched", BOTH | ask("OUT_B", "OUT_A"), success(outputs("batched", A_JSON, B_JSON))),
    infer("both-binary", "batched", BOTH | ALL_BINARY, mixed(outputs("batched", A_BINARY, B_BINARY), A_BYTES, B_BYTES)),
    infer("one-of-each", "batched",
          BOTH | {"outputs": [{"name": "OUT_B", "parameters": {"binary_data": True}}, {"name": "OUT_A"}]},
          mixed(outputs("batched", A_JSON, B_BINARY), B_BYTES)),
    # The request's own default is for outputs that it does not list.
    infer("listed-is-json", "batched", BOTH | ALL_BINARY | ask("OUT_A"), success(outputs("batched", A_JSON))),
    infer("classification-of-none", "batched", BOTH | ask("OUT_A", classification=0),
          success(outputs("batched", A_JSON))),
]  # fmt: skip

#: Largest first, of equals the one that stands first; each row of a batch for itself.
TWO_ROWS = inputs(given("A", "FP32", [2, 1, 2], [0.5, 1.5, 9, 9]), given("B", "INT32", [2, 3], [1, 3, 2, -5, 4, 0]))
CLASSES = [
    infer("classes", "fixed", inputs(FIXED, **ask("OUT_A", classification=2)),
          success(outputs("fixed", given("OUT_A", "BYTES", [2], ["6:5", "5:4"])))),
    infer("classes-of-rows", "batched", TWO_ROWS | ask("OUT_B", classification=2),
          success(outputs("batched", given("OUT_B", "BYTES", [2, 2], ["3:1", "2:2", "4:1", "0:2"])))),
    infer("classes-of-floats", "batched", TWO_ROWS | ask("OUT_A", classification=1),
          success(outputs("batched", given("OUT_A", "BYTES", [2, 1], ["1.500000:1", "9.000000:0"])))),
    infer("more-classes-than-elements", "versions",
          inputs(given("A", "INT32", [1], [8]), **ask("OUT_A", classification=99)),
          success(outputs("versions", given("OUT_A", "BYTES", [1], ["8:0"]), version="3"))),
    infer("classes-binary", "fixed", inputs(FIXED, **ask("OUT_A", classification=1, binary_data=True)),
          mixed(outputs("fixed", given("OUT_A", "BYTES", [1], binary_data_size=7)), b"\3\0\0\x006:5")),
]  # fmt: skip

EMPTY_FP32 = given("A", "FP32", [0, 3], binary_data_size=0)
BINARY = [
    infer("binary-in", "fixed", inputs(FIXED_BINARY), REPEATED, tail=SIX_BYTES),
    infer("binary-in-behind-byte-order-mark", "fixed", b"\xef\xbb\xbf" + compact(inputs(FIXED_BINARY)), REPEATED,
          tail=SIX_BYTES),
    infer("binary-in-and-out", "fixed", inputs(FIXED_BINARY, **ALL_BINARY),
          mixed(outputs("fixed", FIXED_BINARY_OUT), SIX_BYTES), tail=SIX_BYTES),
    infer("binary-out", "fixed", inputs(FIXED, **ALL_BINARY), mixed(outputs("fixed", FIXED_BINARY_OUT), SIX_BYTES)),
    infer("header-without-tail", "fixed", inputs(FIXED), REPEATED, tail=b""),
    # Bytes are taken in the order of the request's inputs.
    infer("tail-in-order", "batched",
          inputs(given("B", "INT32", [1, 3], binary_data_size=12), given("A", "FP32", [1, 1, 2], binary_data_size=8)),
          success(outputs("batched", A_JSON, B_JSON)), tail=B_BYTES + A_BYTES),
    infer("json-and-binary", "batched",
          inputs(given("A", "FP32", [1, 1, 2], [0.5, 1.5]), given("B", "INT32", [1, 3], binary_data_size=12)),
          success(outputs("batched", A_JSON, B_JSON)), tail=B_BYTES),
    # No byte to send: no header, and JSON is the type.
    infer("binary-no-elements", "grid", inputs(EMPTY_FP32, **ALL_BINARY),
          success(outputs("grid", given("OUT_A", "FP32", [0, 3], binary_data_size=0))), tail=b""),
]  # fmt: skip

RAW = {"Inference-Header-Content-Length": "0"}
RAW_REQUESTS = [
    infer("raw-fixed", "fixed", SIX_BYTES, mixed(outputs("fixed", FIXED_BINARY_OUT), SIX_BYTES), headers=RAW),
    # The one variable dimension is what the size leaves for it.
    infer("raw-variable", "column", bytes(12),
          mixed(outputs("column", given("OUT_A", "INT16", [3, 2], binary_data_size=12)), bytes(12)), headers=RAW),
    infer("raw-batch-of-one", "reshaped", SIX_BYTES[:16],
          mixed(outputs("reshaped", given("OUT_A", "INT32", [1, 4], binary_data_size=16)), SIX_BYTES[:16]),
          headers=RAW),
    infer("raw-bytes", "word", b"hello",
          mixed(outputs("word", given("OUT_A", "BYTES", [1], binary_data_size=9)), b"\5\0\0\0hello"), headers=RAW),
]  # fmt: skip

PLAIN = compact(inputs(FIXED))
FIXED_HEAD = compact(inputs(FIXED_BINARY))
COMPRESSED = [
    infer("gzip", "fixed", gzip.compress(PLAIN), REPEATED, headers={"Content-Encoding": "gzip"}),
    infer("deflate", "fixed", zlib.compress(PLAIN), REPEATED, headers={"Content-Encoding": "deflate"}),
    # Which of the two it is, is seen from the stream.
    infer("gzip-called-deflate", "fixed", gzip.compress(PLAIN), REPEATED, headers={"Content-Encoding": "deflate"}),
    infer("identity-encoding", "fixed", PLAIN, REPEATED, headers={"Content-Encoding": "identity"}),
    # The header counts the bytes of the body as it was before compression.
    infer("gzip-with-tail", "fixed", gzip.compress(FIXED_HEAD + SIX_BYTES), REPEATED,
          headers={"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(FIXED_HEAD))}),
    infer("accept-identity", "fixed", PLAIN, REPEATED, headers={"Accept-Encoding": "identity"}),
    infer("accept-what-is-not-known", "fixed", PLAIN, REPEATED, headers={"Accept-Encoding": "br, zstd;q=1"}),
    infer("accept-gzip-never", "fixed", PLAIN, REPEATED, headers={"Accept-Encoding": "gzip;q=0, identity;q=0.5"}),
    # What a body says of its type is not looked at.
    infer("any-content-type", "fixed", PLAIN, REPEATED, headers={"Content-Type": "application/x-www-form-urlencoded"}),
]  # fmt: skip

CASES = TYPES + JSON_TENSORS + IDS_AND_PARAMETERS + OUTPUTS + CLASSES + BINARY + RAW_REQUESTS + COMPRESSED
