"""`/infer`'s refusals: request → status and sentence, in Triton's order of checks; and that nothing else can happen."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.frontend.prepared import block_nbytes, write_block
from shoal.frontend.v2.infer import prepare
from shoal.star.models import ModelEntry

LIMIT = 1 << 20
UNKNOWN = "[request id: <id_unknown>] "
ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
SHM_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
INVALID_PARAMETER = "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."
NO_INPUTS = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"


def given_input(**more: Any) -> dict[str, Any]:
    return {"name": "A", "datatype": "INT32", "shape": [1, 2], "data": [1, 2], **more}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in given_input().items() if name != key}


def binary_input(nbytes: Any) -> dict[str, Any]:
    return {**without("data"), "parameters": {"binary_data_size": nbytes}}


def request(*inputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), **more}


def with_parameters(**parameters: Any) -> dict[str, Any]:
    return request(given_input(), parameters=parameters)


def with_output(*outputs: Any) -> dict[str, Any]:
    return request(given_input(), outputs=list(outputs))


REFUSED: list[tuple[Any, int, str]] = [
    (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    (b'{"inputs":', 500, "failed to parse the request JSON buffer: Invalid value. at 10"),
    (b"[" * 120 + b"]" * 120, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    (None, 500, NO_INPUTS),
    ([], 500, NO_INPUTS),
    ({}, 500, NO_INPUTS),
    ({"inputs": {}}, 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ({"inputs": None}, 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    (request(id=7), 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
    (request(id=None), 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
    # Parameters of the request.
    (request(parameters=[]), 500, "failed to get request params.: attempt to get members for non-object"),
    (with_parameters(priority=-1), 500, f"Unable to parse 'priority': {UINT}"),
    (with_parameters(priority="1"), 500, f"Unable to parse 'priority': {UINT}"),
    (with_parameters(timeout=1.5), 500, f"Unable to parse 'timeout': {UINT}"),
    (with_parameters(timeout=float("inf")), 500, f"Unable to parse 'timeout': {UINT}"),
    (with_parameters(timeout=True), 500, f"Unable to parse 'timeout': {UINT}"),
    (with_parameters(timeout=2**64), 500, f"Unable to parse 'timeout': {UINT}"),
    (
        with_parameters(sequence_id=-1),
        500,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        with_parameters(sequence_start=1),
        500,
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    (
        with_parameters(sequence_end=None),
        500,
        "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean",
    ),
    (
        with_parameters(binary_data_output="true"),
        500,
        "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
    ),
    (
        with_parameters(triton_x=1),
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    (with_parameters(k=[]), 400, INVALID_PARAMETER),
    (with_parameters(k={}), 400, INVALID_PARAMETER),
    (with_parameters(k=None), 400, INVALID_PARAMETER),
    (with_parameters(k=float("nan")), 400, INVALID_PARAMETER),
    # One source of data.
    (request(1), 400, ONE_SOURCE + "no field is set"),
    (request({}), 400, ONE_SOURCE + "no field is set"),
    (request({"parameters": [], **without("data")}), 400, ONE_SOURCE + "no field is set"),
    (request({"parameters": {}, **without("data")}), 400, ONE_SOURCE + "no field is set"),
    (
        request(given_input(parameters={"binary_data_size": 8})),
        400,
        ONE_SOURCE + "set 'data' 'binary_data_size'",
    ),
    (
        request(given_input(parameters={"shared_memory_region": "r", "binary_data_size": 8})),
        400,
        ONE_SOURCE + "set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    (request({**without("data"), "parameters": {"shared_memory_region": "r"}}), 501, SHM_DISABLED),
    # Members of an input.
    (
        request(without("name")),
        500,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (request(given_input(name=1)), 500, "Unable to parse 'name': attempt to access JSON non-string as string"),
    (
        request(without("datatype")),
        500,
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    (
        request(given_input(datatype=3)),
        500,
        "Unable to parse 'datatype': attempt to access JSON non-string as string",
    ),
    (
        request(without("shape")),
        500,
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    (request(given_input(shape={})), 500, "Unable to parse 'shape': attempt to access JSON non-array as array"),
    (request(given_input(shape=[True, 2])), 500, f"Unable to parse 'shape': {UINT}"),
    (request(given_input(shape=[1.0, 2])), 500, f"Unable to parse 'shape': {UINT}"),
    (request(given_input(shape=["1", 2])), 500, f"Unable to parse 'shape': {UINT}"),
    (request(given_input(shape=[None, 2])), 500, f"Unable to parse 'shape': {UINT}"),
    (request(given_input(shape=[[1], 2])), 500, f"Unable to parse 'shape': {UINT}"),
    (request(given_input(shape=[2**64])), 500, f"Unable to parse 'shape': {UINT}"),
    (request(given_input(shape=[float("nan")])), 500, f"Unable to parse 'shape': {UINT}"),
    (
        request(given_input(shape=[2, -5])),
        400,
        "invalid shape for input 'A': shape [2,-5] contains one or more invalid dimensions",
    ),
    (
        request(given_input(shape=[16, 2**60 + 2])),
        400,
        "invalid shape for input 'A': shape [16,1152921504606846978] causes total element count to exceed maximum size "
        "of 9223372036854775807",
    ),
    (
        request(given_input(shape=[4, 2**60 + 2])),
        400,
        "byte size overflow for input 'A' with shape [4,1152921504606846978]",
    ),
    (
        request(given_input(shape=[1 << 18, 2])),
        400,
        "JSON input 'A' has a byte_size (2097152 bytes) that exceeds the maximum allowed value of 1048576 bytes. "
        "Use --http-max-input-size to increase the limit.",
    ),
    (request(given_input(), given_input()), 400, UNKNOWN + "input 'A' already exists in request"),
    (request(given_input(), given_input(), id="x"), 400, "[request id: x] input 'A' already exists in request"),
    (request(given_input(data={})), 500, "Unable to parse 'data': attempt to access JSON non-array as array"),
    (request(given_input(data=5)), 500, "Unable to parse 'data': attempt to access JSON non-array as array"),
    (
        request(given_input(data=[1])),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field. "
        "Input 'A' has 2 elements by its shape, but 1 in its data",
    ),
    (
        request(given_input(data=[1, 2, 3])),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field. "
        "Input 'A' has 2 elements by its shape, but 3 in its data",
    ),
    (
        request(given_input(data=[1, 2.0])),
        500,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (request(given_input(datatype="INT")), 400, "invalid datatype for input A"),
    (
        request(given_input(datatype="FP16")),
        400,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input A",
    ),
    # Binary data without a header length.
    (
        request(binary_input(8)),
        400,
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs "
        "in binary data format",
    ),
    (request(binary_input(-1)), 500, f"Unable to parse 'binary_data_size': {UINT}"),
    (request(binary_input("8")), 500, f"Unable to parse 'binary_data_size': {UINT}"),
    (
        request(binary_input(0)),
        400,
        UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 0",
    ),
    # Outputs.
    (
        request(given_input(), outputs={}),
        500,
        "Unable to parse 'outputs': attempt to access JSON non-array as array",
    ),
    (with_output({}), 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    (with_output(1), 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    (with_output({"name": 1}), 500, "Unable to parse 'name': attempt to access JSON non-string as string"),
    (
        with_output({"name": "OUTA"}, {"name": "OUTA"}),
        400,
        UNKNOWN + "output 'OUTA' already exists in request",
    ),
    (with_output({"name": "NO"}), 400, "unexpected inference output 'NO' for model 'm'"),
    (
        with_output({"name": "OUTA", "parameters": {"binary_data": 1}}),
        500,
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    (
        with_output({"name": "OUTA", "parameters": {"shared_memory_region": "r", "classification": 1}}),
        400,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        with_output({"name": "OUTA", "parameters": {"shared_memory_region": "r", "binary_data": True}}),
        400,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
    (with_output({"name": "OUTA", "parameters": {"shared_memory_region": "r"}}), 501, SHM_DISABLED),
    (
        with_output({"name": "OUTA", "parameters": {"classification": -1}}),
        500,
        f"Unable to set 'classification': {UINT}",
    ),
    (
        with_output({"name": "OUTA", "parameters": {"classification": 1.0}}),
        500,
        f"Unable to set 'classification': {UINT}",
    ),
    (
        with_output({"name": "OUTA", "parameters": {"classification": 2**64}}),
        500,
        f"Unable to set 'classification': {UINT}",
    ),
    # Core validation comes last, whatever else is wrong with the inputs.
    (
        request(given_input(name="X"), outputs=[{"name": "OUTA"}]),
        400,
        "unexpected inference input 'X' for model 'm'",
    ),
    (request(given_input(name="X"), outputs=[{"name": "NO"}]), 400, "unexpected inference output 'NO' for model 'm'"),
    (
        request(id="x"),
        400,
        "[request id: x] expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required "
        "input(s) ['A']. Please provide all required input(s).",
    ),
    (
        request(given_input(shape=[5, 2], data=[0] * 10)),
        400,
        UNKNOWN + "inference request batch-size must be <= 4 for 'm'",
    ),
]


@pytest.mark.parametrize(("body", "status", "sentence"), REFUSED)
def test_refuses(pair: ModelEntry, body: Any, status: int, sentence: str) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ShoalError) as caught:
        prepare(pair, {}, memoryview(text), LIMIT)
    assert (caught.value.http_status, str(caught.value)) == (status, sentence)
    assert (pair.config["name"], len(pair.signature.inputs)) == ("m", 1)


@pytest.mark.parametrize(
    ("length", "inputs", "tail", "status", "sentence"),
    [
        (None, [binary_input(8)], 7, 400, "unexpected size for input 'A', expecting 1 additional bytes for model 'm'"),
        (None, [binary_input(8)], 9, 400, "unexpected additional input data for model 'm'"),
        (None, [given_input()], 1, 400, "unexpected additional input data for model 'm'"),
        (
            None,
            [binary_input(2**64 - 1)],
            8,
            400,
            "unexpected size for input 'A', expecting 18446744073709551607 additional bytes for model 'm'",
        ),
        (
            None,
            [binary_input(7)],
            7,
            400,
            UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 7",
        ),
        (
            None,
            [{**binary_input(8), "datatype": "FP32"}],
            8,
            400,
            UNKNOWN + "inference input 'A' data-type is 'FP32', but model 'm' expects 'INT32'",
        ),
        (
            None,
            [{**binary_input(8), "datatype": "?"}],
            8,
            400,
            UNKNOWN + "inference input 'A' data-type is '<invalid>', but model 'm' expects 'INT32'",
        ),
        ("abc", [], 0, 400, "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("-1", [], 0, 400, "inference header size should be in range (0, 13), got: -1"),
        ("14", [], 0, 400, "inference header size should be in range (0, 13), got: 14"),
        ("99999999999", [], 0, 400, "inference header size should be in range (0, 13), got: 99999999999"),
        ("12", [], 0, 500, "failed to parse the request JSON buffer: "
         "Missing a comma or '}' after an object member. at 12"),
        ("0", [], 0, 400, UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 13"),
    ],
)  # fmt: skip
def test_refuses_binary(
    pair: ModelEntry, length: str | None, inputs: list[Any], tail: int, status: int, sentence: str
) -> None:
    head = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    headers = {"inference-header-content-length": str(len(head)) if length is None else length}
    with pytest.raises(ShoalError) as caught:
        prepare(pair, headers, memoryview(head + bytes(tail)), LIMIT)
    assert (caught.value.http_status, str(caught.value)) == (status, sentence)


KEYS = ["name", "datatype", "shape", "data", "parameters", "binary_data_size", "binary_data", "classification"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["A", "INT32", "BYTES", "FP16"]),
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)
MEMBERS = ["name", "datatype", "shape", "data", "parameters"]


@settings(max_examples=300)
@given(
    changes=st.dictionaries(st.sampled_from(MEMBERS), JSON_VALUES, max_size=2),
    more=st.dictionaries(st.sampled_from(["id", "parameters", "outputs"]), JSON_VALUES, max_size=2),
    tail=st.binary(max_size=9),
    header=st.sampled_from([None, "", "0", "5"]),
)
def test_whatever_comes_is_a_request_or_a_refusal(
    pair: ModelEntry, changes: dict[str, Any], more: dict[str, Any], tail: bytes, header: str | None
) -> None:
    text = json.dumps(request(given_input(**changes), **more)).encode("utf-8", "replace")
    headers = {} if header is None else {"inference-header-content-length": header or str(len(text))}
    try:
        prepared = prepare(pair, headers, memoryview(text + tail), LIMIT)
    except ShoalError as error:
        assert str(error)
    else:
        write_block(prepared, memoryview(bytearray(block_nbytes(prepared))))


@settings(max_examples=200)
@given(body=st.binary(max_size=60))
def test_whatever_bytes_come_are_refused(pair: ModelEntry, body: bytes) -> None:
    with pytest.raises(ShoalError):
        prepare(pair, {}, memoryview(body), LIMIT)
