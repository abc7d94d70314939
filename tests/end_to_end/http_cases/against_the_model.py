"""Well-formed requests that do not fit the model: Triton's core validation, in its order and words."""

from typing import Any

from tests.end_to_end.http_cases.case import UNKNOWN, Case, error, given, infer, inputs

A = given("A", "FP32", [1, 1, 2], [0.5, 1.5])
B = given("B", "INT32", [1, 3], [1, 2, 3])
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def refused(id_: str, model: str, request: Any, sentence: str, tail: bytes | None = None) -> Case:
    return infer(id_, model, request, error(400, sentence), tail=tail)


def strings(raw: str, shape: list[int]) -> tuple[dict[str, Any], bytes]:
    """A request for `simple_identity` and its tail."""
    data = bytes.fromhex(raw)
    return inputs(given("INPUT0", "BYTES", shape, binary_data_size=len(data))), data


def of_strings(id_: str, raw: str, shape: list[int], sentence: str) -> Case:
    request, tail = strings(raw, shape)
    return refused(id_, "simple_identity", request, UNKNOWN + sentence, tail)


WHERE = "for inference input 'INPUT0' for model 'simple_identity'"
PROVIDE = "Please provide all required input(s)."

NAMES = [
    refused("none", "batched", inputs(), f"{UNKNOWN}expected 2 inputs but got 0 inputs for model 'batched'. "
            f"Got input(s) [], but missing required input(s) ['A','B']. {PROVIDE}"),
    refused("one-missing", "batched", inputs(B), f"{UNKNOWN}expected 2 inputs but got 1 inputs for model 'batched'. "
            f"Got input(s) ['B'], but missing required input(s) ['A']. {PROVIDE}"),
    refused("one-too-many", "batched", inputs(A, B, B | {"name": "C"}),
            f"{UNKNOWN}expected 2 inputs but got 3 inputs for model 'batched'. "
            f"Got input(s) ['A','B','C'], but missing required input(s) []. {PROVIDE}"),
    refused("with-id", "batched", inputs(A, id="r 1"),
            "[request id: r 1] expected 2 inputs but got 1 inputs for model 'batched'. "
            f"Got input(s) ['A'], but missing required input(s) ['B']. {PROVIDE}"),
    refused("required-missing", "choosy", inputs(), f"{UNKNOWN}expected number of inputs between 1 and 2 but got 0 "
            f"inputs for model 'choosy'. Got input(s) [], but missing required input(s) ['A']. {PROVIDE}"),
    refused("only-the-optional", "choosy", inputs(given("B", "INT32", [2], [1, 2])),
            f"{UNKNOWN}expected number of inputs between 1 and 2 but got 1 inputs for model 'choosy'. "
            f"Got input(s) ['B'], but missing required input(s) ['A']. {PROVIDE}"),
    refused("unknown-name", "batched", inputs(A, B | {"name": "C"}),
            "unexpected inference input 'C' for model 'batched'"),
    refused("output-before-input", "batched", inputs(A, outputs=[{"name": "X"}]),
            "unexpected inference output 'X' for model 'batched'"),
]  # fmt: skip

BATCH = [
    refused("no-batch-dimension", "batched", inputs(A | {"shape": [], "data": [1]}, B),
            f"{UNKNOWN}input 'A' has no shape but model requires batch dimension for 'batched'"),
    refused("batches-differ", "batched", inputs(A, given("B", "INT32", [2, 3], [0] * 6)),
            f"{UNKNOWN}input 'B' batch size does not match other inputs for 'batched'"),
    refused("batch-too-large", "batched",
            inputs(given("A", "FP32", [5, 1, 2], [0] * 10), given("B", "INT32", [5, 3], [0] * 15)),
            f"{UNKNOWN}inference request batch-size must be <= 4 for 'batched'"),
    refused("batch-too-large-with-id", "simple",
            inputs(given("INPUT0", "INT32", [9, 16], [0] * 144), given("INPUT1", "INT32", [9, 16], [0] * 144), id="é"),
            "[request id: é] inference request batch-size must be <= 8 for 'simple'"),
]  # fmt: skip

DATATYPES = [
    refused("another-datatype", "fixed", inputs(given("A", "INT64", [2, 3], [0] * 6)),
            f"{UNKNOWN}inference input 'A' data-type is 'INT64', but model 'fixed' expects 'INT32'"),
    refused("another-datatype-of-one-size", "fixed", inputs(given("A", "FP32", [2, 3], [0] * 6)),
            f"{UNKNOWN}inference input 'A' data-type is 'FP32', but model 'fixed' expects 'INT32'"),
    refused("bytes-for-numbers", "fixed", inputs(given("A", "BYTES", [2, 3], ["0"] * 6)),
            f"{UNKNOWN}inference input 'A' data-type is 'BYTES', but model 'fixed' expects 'INT32'"),
    refused("numbers-for-bytes", "word", inputs(given("A", "INT32", [1], [0])),
            f"{UNKNOWN}inference input 'A' data-type is 'INT32', but model 'word' expects 'BYTES'"),
    # The datatype is looked at before the shape.
    refused("datatype-before-shape", "fixed", inputs(given("A", "INT64", [6], [0] * 6)),
            f"{UNKNOWN}inference input 'A' data-type is 'INT64', but model 'fixed' expects 'INT32'"),
]  # fmt: skip


def misshapen(name: str, model: str, expected: str, got: str, note: str = "") -> str:
    return f"{UNKNOWN}unexpected shape for input '{name}' for model '{model}'. Expected {expected}, got {got}. {note}"


SHAPES = [
    refused("turned-round", "fixed", inputs(given("A", "INT32", [3, 2], [0] * 6)),
            misshapen("A", "fixed", "[2,3]", "[3,2]")),
    refused("flat", "fixed", inputs(given("A", "INT32", [6], [0] * 6)), misshapen("A", "fixed", "[2,3]", "[6]")),
    refused("no-dimension", "fixed", inputs(given("A", "INT32", [], [0])), misshapen("A", "fixed", "[2,3]", "[]")),
    refused("no-dimension-and-no-data", "fixed", inputs(given("A", "INT32", [], [])),
            misshapen("A", "fixed", "[2,3]", "[]")),
    refused("no-dimension-and-other-data", "fixed", inputs(given("A", "INT32", [], ["x", 1, 2])),
            misshapen("A", "fixed", "[2,3]", "[]")),
    refused("too-many-dimensions", "grid", inputs(given("A", "FP32", [1, 1, 1], [0])),
            misshapen("A", "grid", "[-1,-1]", "[1,1,1]")),
    refused("fixed-beside-variable", "column", inputs(given("A", "INT16", [2, 3], [0] * 6)),
            misshapen("A", "column", "[-1,2]", "[2,3]")),
    refused("batch-dimension-forgotten", "reshaped", inputs(given("A", "INT32", [4], [0] * 4)),
            misshapen("A", "reshaped", "[-1,4]", "[4]", NOTE)),
    refused("shape-of-the-reshape", "reshaped", inputs(given("A", "INT32", [1, 2, 2], [0] * 4)),
            misshapen("A", "reshaped", "[-1,4]", "[1,2,2]", NOTE)),
    refused("second-input", "batched", inputs(A, given("B", "INT32", [1, 4], [0] * 4)),
            misshapen("B", "batched", "[-1,3]", "[1,4]", NOTE)),
]  # fmt: skip

SIZES = [
    refused("fewer-bytes", "fixed", inputs(given("A", "INT32", [2, 3], binary_data_size=20)),
            f"{UNKNOWN}input byte size mismatch for input 'A' for model 'fixed'. Expected 24, got 20", bytes(20)),
    refused("more-bytes", "fixed", inputs(given("A", "INT32", [2, 3], binary_data_size=28)),
            f"{UNKNOWN}input byte size mismatch for input 'A' for model 'fixed'. Expected 24, got 28", bytes(28)),
    refused("strings-too-few-json", "word", inputs(given("A", "BYTES", [1], [])),
            f"{UNKNOWN}expected 1 string elements for inference input 'A' for model 'word', got 0"),
    refused("strings-too-many-json", "word", inputs(given("A", "BYTES", [1], ["a", "b"])),
            f"{UNKNOWN}unexpected number of string elements 2 for inference input 'A' for model 'word', expecting 1"),
    of_strings("strings-too-few", "0100000061", [1, 2], f"expected 2 string elements {WHERE}, got 1"),
    of_strings("strings-too-many", "0100000061" * 2, [1, 1], f"unexpected number of string elements 2 {WHERE}, "
               "expecting 1"),
    of_strings("string-length-cut", "010000", [1, 1], f"incomplete string length indicator {WHERE}, expecting 4 bytes "
               "but only 3 bytes available. Please make sure the string length indicator is in one buffer."),
    of_strings("string-cut", "0500000061", [1, 1], f"incomplete string data {WHERE}, expecting string of length 5 "
               "but only 1 bytes available."),
    of_strings("string-of-4-gib", "ffffffff", [1, 1], f"incomplete string data {WHERE}, expecting string of length "
               "4294967295 but only 0 bytes available."),
]  # fmt: skip

CASES = NAMES + BATCH + DATATYPES + SHAPES + SIZES
