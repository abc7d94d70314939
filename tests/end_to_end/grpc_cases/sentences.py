"""The cases that gRPC refuses in words of its own, by their names; `None`: it does not refuse them.

The words are those of Triton's grpc/infer_handler.h and grpc/grpc_server.cc, or of its core where HTTP finds the fault
first.
"""

from grpc import StatusCode

from tests.end_to_end.http_cases.against_the_model import PROVIDE, misshapen
from tests.end_to_end.http_cases.case import UNKNOWN

_TYPE = "invalid value type for '{}' parameter, expected {}."
_EXPLICIT = (
    "unexpected explicit tensor data for input tensor '{}' for model '{}' of type 'INT64', expected datatype '{}'"
)
_NO_DATATYPE = _EXPLICIT.format("A", "fixed", "<invalid>")
_NO_BYTE_SIZE = (
    "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{}'"
)
_TOO_LARGE_SHAPES = {"shape-product": "[16,1152921504606846978]", "shape-bytes": "[4,1152921504606846976]"}

_INVALID_ARGUMENT = {
    # Parameters have types, of which JSON's are not these.
    "priority-negative": "invalid value for 'priority', expected value >= 0.",
    "priority-string": _TYPE.format("priority", "int64_param or uint64_param"),
    "timeout-float": _TYPE.format("timeout", "int64_param"),
    "sequence-start-number": _TYPE.format("sequence_start", "bool_param"),
    # A field that is left out is empty, which is no fault by itself.
    "no-inputs": f"{UNKNOWN}expected 1 inputs but got 0 inputs for model 'fixed'. Got input(s) [], but missing "
    f"required input(s) ['A']. {PROVIDE}",
    "no-input-name": "unexpected inference input '' for model 'fixed'",
    "no-datatype": _NO_DATATYPE,
    "no-shape": misshapen("A", "fixed", "[2,3]", "[]"),
    "no-source": "unable to find data for input tensor 'A' for model 'fixed' in request.",
    "output-without-name": "unexpected inference output '' for model 'fixed'",
    # Contents are held to their datatype, and the shape to the configuration, before the two meet.
    "unknown-datatype": _NO_DATATYPE,
    "configuration's-datatype": _NO_DATATYPE,
    "bool-from-number": _EXPLICIT.format("BOOL", "types", "BOOL"),
    "fp16-from-json": _EXPLICIT.format("FP16", "types", "FP16"),
    "bf16-from-json": _EXPLICIT.format("BF16", "types", "BF16"),
    "too-few-elements": f"{UNKNOWN}input byte size mismatch for input 'A' for model 'fixed'. Expected 24, got 12",
    "too-many-elements": f"{UNKNOWN}input byte size mismatch for input 'A' for model 'fixed'. Expected 24, got 28",
    "shape-negative": f"{UNKNOWN}All input dimensions should be specified for input 'A' for model 'fixed', got [2,-3]",
    **{id_: misshapen("A", "fixed", "[2,3]", shape) for id_, shape in _TOO_LARGE_SHAPES.items()},
    # No number of classes is no wish for none.
    "classification-of-none": (no_classes := "invalid value for 'classification' parameter, expected >= 0"),
    "output-classes-negative": no_classes,
    # A region needs a size, before anything is said of regions.
    "shared-memory": _NO_BYTE_SIZE.format("A"),
    "output-shared-memory": _NO_BYTE_SIZE.format("OUT_A"),
    "output-classes-in-shared-memory": _NO_BYTE_SIZE.format("OUT_A"),
    "logging-boolean": "expect boolean for 'log_info'",
    "logging-string": "expect string for 'log_format'",
    "logging-format": "invalid argument for log_format, got: iso",
    "load-parameter": "unrecognized load parameter 'x'.",
    "load-parameter-number": "unrecognized load parameter 'x'.",
    "load-parameter-unknown": "unrecognized load parameter 'x'.",
    "load-parameter-almost-a-file": "unrecognized load parameter 'files:1/m'.",
    "load-file-number": "invalid value type for load parameter 'file:1/m', expected bytes_param.",
    "unload-dependents-number": _TYPE.format("unload_dependents", "bool_param"),
}

SENTENCES: dict[str, tuple[StatusCode, str] | None] = {
    **{id_: (StatusCode.INVALID_ARGUMENT, sentence) for id_, sentence in _INVALID_ARGUMENT.items()},
    "reserved": None,  # triton_enable_empty_final_response
    "sequence-id-negative": None,
    "parameter-nan": None,
}

#: Refused when a version has answered already: which it was.
LATE = {"bool-to-classes": "1", "bytes-to-classes": "1"}
