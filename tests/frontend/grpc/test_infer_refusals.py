"""frontend/grpc/infer.py: what is refused, in Triton's words (grpc/infer_handler.cc, grpc/grpc_utils.h).

Beside what tests/end_to_end/grpc_cases/sentences.py says.
"""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, ShoalError, UnsupportedError
from shoal.frontend.grpc.messages import service
from shoal.star.models import ModelEntry
from tests.frontend.grpc.messages import RAWS, message_of, prepare

ID = "[request id: 7] "
REGION: dict[str, dict[str, Any]] = {
    "shared_memory_region": {"string_param": "r"},
    "shared_memory_byte_size": {"int64_param": 8},
}
EXPLICIT = "unexpected explicit tensor data for input tensor 'A' for model 'm'"
NO_SHM = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
TYPE = "invalid value type for '{}' parameter, expected {}."
OF_TENSOR = "invalid value type for '{}' parameter for tensor 'A', expected {}."
ALONE = "'{}' can not be specified without 'shared_memory_region' parameter for tensor '{}'"
FINAL = "triton_enable_empty_final_response"
SIMPLE_TYPES = "int64_param, bool_param, or string_param"

#: Of a parameter: its key, what is wrong about it, and the sentence.
PARAMETERS: list[tuple[str, dict[str, Any], str]] = [
    ("sequence_id", {"double_param": 1}, TYPE.format("sequence_id", "int64_param or string_param")),
    ("sequence_end", {"string_param": ""}, TYPE.format("sequence_end", "bool_param")),
    ("priority", {"bool_param": True}, TYPE.format("priority", "int64_param or uint64_param")),
    ("timeout", {"uint64_param": 1}, TYPE.format("timeout", "int64_param")),
    (FINAL, {"int64_param": 1}, TYPE.format(FINAL, "bool_param")),
    (
        "triton_x",
        {"int64_param": 1},
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        f"'triton_' are allowed: {FINAL}",
    ),
    ("k", {"uint64_param": 1}, TYPE.format("k", SIMPLE_TYPES)),
    ("k", {}, TYPE.format("k", SIMPLE_TYPES)),
]

#: Of input A: its parameters, and the sentence.
OF_INPUT: list[tuple[dict[str, dict[str, Any]], str]] = [
    (REGION, NO_SHM),
    ({"shared_memory_region": {"int64_param": 1}}, OF_TENSOR.format("shared_memory_region", "string_param")),
    (
        {**REGION, "shared_memory_byte_size": {"bool_param": True}},
        OF_TENSOR.format("shared_memory_byte_size", "int64_param"),
    ),
    ({**REGION, "shared_memory_offset": {}}, OF_TENSOR.format("shared_memory_offset", "int64_param")),
    (
        {"shared_memory_region": {"string_param": "r"}},
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'A'",
    ),
    ({"shared_memory_byte_size": {"int64_param": 1}}, ALONE.format("shared_memory_byte_size", "A")),
]

#: Of output OUTA: its parameters, and the sentence.
OF_OUTPUT: list[tuple[dict[str, dict[str, Any]], str]] = [
    (REGION, NO_SHM),
    ({"shared_memory_offset": {"int64_param": 1}}, ALONE.format("shared_memory_offset", "OUTA")),
    (
        {"classification": {"string_param": "1"}},
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    (
        {**REGION, "classification": {"int64_param": 1}},
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
]

#: What input A has in place of its raw tensor, and the sentence.
CONTENTS: list[tuple[dict[str, Any], str]] = [
    ({"fp32_contents": [1]}, f"{EXPLICIT} of type 'FP32', expected datatype 'INT32'"),
    ({"uint_contents": [1, 2]}, f"{EXPLICIT} of type 'UINT32', expected datatype 'INT32'"),
    ({"int_contents": [1, 2], "fp32_contents": [1]}, f"{EXPLICIT}, binary data was already supplied."),
    ({"int_contents": [1]}, f"{ID}input byte size mismatch for input 'A' for model 'm'. Expected 8, got 4"),
]

#: What else may be wrong.
OTHERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "id": (
        lambda r: setattr(r, "id", "x" * 1025),
        "the request's 'id' has 1025 characters, more than the maximum of 1024; send what is longer as a request "
        "parameter",
    ),
    "a raw tensor too few": (
        lambda r: r.raw_input_contents.pop(),
        "unable to find data for input tensor 'B' for model 'm' in request.",
    ),
    "no data": (
        lambda r: r.ClearField("raw_input_contents"),
        "unable to find data for input tensor 'A' for model 'm' in request.",
    ),
    "contents and raw tensors": (
        lambda r: r.inputs[1].contents.SetInParent(),
        "contents field must not be specified when using raw_input_contents for 'B' for model 'm'",
    ),
}


def check_refused(entry: ModelEntry, request: Any, sentence: str) -> None:
    with pytest.raises(ShoalError) as caught:
        prepare(entry, request)
    assert str(caught.value) == sentence
    assert type(caught.value) is (UnsupportedError if sentence == NO_SHM else InvalidArgumentError)


@pytest.mark.parametrize(("key", "choice", "sentence"), PARAMETERS)
def test_refuses_a_parameter(pair: ModelEntry, key: str, choice: dict[str, Any], sentence: str) -> None:
    request = message_of(RAWS)
    request.parameters[key].CopyFrom(service.InferParameter(**choice))
    check_refused(pair, request, sentence)


@pytest.mark.parametrize(
    ("is_output", "parameters", "sentence"),
    [(False, *each) for each in OF_INPUT] + [(True, *each) for each in OF_OUTPUT],
)
def test_refuses_a_tensors_parameters(
    pair: ModelEntry, is_output: bool, parameters: dict[str, dict[str, Any]], sentence: str
) -> None:
    request = message_of(RAWS)
    tensor = request.outputs.add(name="OUTA") if is_output else request.inputs[0]
    for key, choice in parameters.items():
        tensor.parameters[key].CopyFrom(service.InferParameter(**choice))
    check_refused(pair, request, sentence)


@pytest.mark.parametrize(("fields", "sentence"), CONTENTS)
def test_refuses_contents(pair: ModelEntry, fields: dict[str, Any], sentence: str) -> None:
    request = message_of()
    request.inputs[0].contents.CopyFrom(service.InferTensorContents(**fields))
    request.inputs[1].contents.bytes_contents.append(b"")
    check_refused(pair, request, sentence)
    if "mismatch" not in sentence:
        request.inputs[0].datatype = "X"
        kind = {"fp32_contents": "FP32", "uint_contents": "UINT32", "int_contents": "INT32"}[next(iter(fields))]
        check_refused(pair, request, f"{EXPLICIT} of type '{kind}', expected datatype '<invalid>'")
    for key, choice in REGION.items():
        request.inputs[0].parameters[key].CopyFrom(service.InferParameter(**choice))
    sentence = "unexpected 'content' provided when using shared memory for input tensor 'A' for model 'm'"
    check_refused(pair, request, sentence)


@pytest.mark.parametrize("case", OTHERS)
def test_refuses_in_tritons_words(pair: ModelEntry, case: str) -> None:
    change, sentence = OTHERS[case]
    request = message_of(RAWS)
    change(request)
    check_refused(pair, request, sentence)
