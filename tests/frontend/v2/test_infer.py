"""`/infer` from body to block and from block to body, with tritonclient's own writer and reader as the other side."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import np_to_triton_dtype

from shoal.errors import InternalError, ShoalError
from shoal.frontend.prepared import PreparedRequest, block_nbytes, write_block
from shoal.frontend.response import Response
from shoal.frontend.v2.infer import prepare, render
from shoal.request import InferResponse, TensorRef, unpack_request
from shoal.star.models import ModelEntry
from tests.region_bytes import bytes_of

Make = Callable[..., ModelEntry]
LIMIT = 1 << 20


def given_input(**more: Any) -> dict[str, Any]:
    return {"name": "A", "datatype": "INT32", "shape": [1, 2], "data": [1, 2], **more}


def binary_input(nbytes: int) -> dict[str, Any]:
    return {"name": "A", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": nbytes}}


def request(*inputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), **more}


def test_the_size_limit_is_on_the_json_alone(pair: ModelEntry, make_entry: Make) -> None:
    large = make_entry("m", 0, [("A", "TYPE_UINT8", [-1])])
    head = json.dumps(request({**binary_input(1000), "datatype": "UINT8", "shape": [1000]})).encode()
    headers = {"inference-header-content-length": str(len(head))}
    body = memoryview(head + bytes(1000))
    assert prepare(large, headers, body, len(head)).inputs[0].data.nbytes == 1000
    with pytest.raises(ShoalError, match=f"^request JSON size of {len(head)} bytes exceeds"):
        prepare(large, headers, body, len(head) - 1)


def test_reads_the_parameters_of_a_request(pair: ModelEntry) -> None:
    body = request(
        given_input(),
        id="7",
        model_name="ignored",
        parameters={
            "priority": 2, "timeout": 2**64 - 1, "sequence_id": 9, "sequence_start": True, "sequence_end": True,
            "binary_data_output": True, "s": "é", "i": -5, "b": False, "d": 0.5, "u": 2**63,
        },
    )  # fmt: skip
    prepared = prepare(pair, {}, memoryview(json.dumps(body).encode()), LIMIT)
    assert prepared.id == "7"
    assert (prepared.priority, prepared.timeout_us, prepared.correlation_id, prepared.flags) == (2, 2**64 - 1, 9, 3)
    assert prepared.binary_data_output is True
    assert prepared.parameters == {"s": "é", "i": -5, "b": False, "d": 0.5, "u": 2.0**63}
    assert isinstance(prepared.parameters["u"], float)
    named = json.dumps(request(given_input(), parameters={"sequence_id": "s"})).encode()
    assert prepare(pair, {}, memoryview(named), LIMIT).correlation_id == "s"


def test_nan_and_infinity_are_floats(make_entry: Make) -> None:
    entry = make_entry("m", 0, [("A", "TYPE_FP32", [3])])
    body = b'{"inputs":[{"name":"A","datatype":"FP32","shape":[3],"data":[NaN,-Infinity,1]}]}'
    assert bytes_of(prepare(entry, {}, memoryview(body), LIMIT).inputs[0].data)[4:] == b"\0\0\x80\xff\0\0\x80\x3f"


def test_a_raw_request_wants_binary_back(pair: ModelEntry) -> None:
    body = memoryview(b"\1\0\0\0\2\0\0\0")
    prepared = prepare(pair, {"inference-header-content-length": "0"}, body, LIMIT)
    assert (prepared.inputs[0].shape, prepared.binary_data_output, prepared.outputs) == ((1, 2), True, ())


# ---------------------------------------------------------------------------------------------------------------
# Blocks


def test_the_block_as_drawn(make_entry: Make) -> None:
    entry = make_entry("m", 0, [("A", "TYPE_UINT8", [-1]), ("B", "TYPE_UINT8", [-1])])
    inputs = [{"name": n, "datatype": "UINT8", "shape": [len(d)], "data": d} for n, d in (("A", [1, 2]), ("B", [3]))]
    body = json.dumps(request(*inputs, outputs=[{"name": "OUTB"}], id="7", parameters={"k": 1})).encode()
    prepared = prepare(entry, {}, memoryview(body), LIMIT)
    block = bytearray(b"\xee" * 4096)
    span = write_block(prepared, memoryview(block))
    offset, nbytes = span >> 32, span & 0xFFFFFFFF
    assert (bytes(block[:3]), bytes(block[64:66]), offset) == (b"\1\2\xee", b"\3\xee", 128)
    header = unpack_request(memoryview(block)[offset : offset + nbytes], len(block))
    assert header.inputs == (TensorRef("A", 2, (2,), 0, 2), TensorRef("B", 2, (1,), 64, 1))
    assert (header.id, header.requested_outputs, header.parameters) == ("7", ("OUTB",), {"k": 1})
    assert block[offset + nbytes :] == b"\xee" * (4096 - offset - nbytes)


def test_a_binary_input_is_not_copied_before_the_block(pair: ModelEntry) -> None:
    head = json.dumps(request(binary_input(8))).encode()
    body = head + b"\1\0\0\0\2\0\0\0"
    prepared = prepare(pair, {"inference-header-content-length": str(len(head))}, memoryview(body), LIMIT)
    (given,) = prepared.inputs
    assert isinstance(given.data, memoryview)
    assert given.data.obj is body


@settings(max_examples=60)
@given(
    id_=st.text(st.characters(codec="utf-8"), max_size=40),
    values=st.lists(st.integers(0, 255), max_size=300),
    parameters=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=9).map("k".__add__),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(st.characters(codec="utf-8"), max_size=70),
        ),
        max_size=20,
    ),
)
def test_block_nbytes_is_enough(make_entry: Make, id_: str, values: list[int], parameters: dict[str, Any]) -> None:
    name = "Ⱥ" * 30
    entry = make_entry("m", 0, [(name, "TYPE_UINT8", [-1])])
    tensor = {"name": name, "datatype": "UINT8", "shape": [len(values)], "data": values}
    body = json.dumps(request(tensor, id=id_, parameters=parameters, outputs=[{"name": "OUT" + name}])).encode()
    prepared = prepare(entry, {}, memoryview(body), LIMIT)
    memory = memoryview(bytearray(block_nbytes(prepared)))
    span = write_block(prepared, memory)
    offset, nbytes = span >> 32, span & 0xFFFFFFFF
    header = unpack_request(memory[offset : offset + nbytes], len(memory))
    assert (header.id, header.parameters) == (id_, parameters)
    assert bytes(memory[: len(values)]) == bytes(values)


# ---------------------------------------------------------------------------------------------------------------
# Responses


def rendered(
    prepared: PreparedRequest, *outputs: tuple[str, int, tuple[int, ...], bytes], **parameters: Any
) -> Response:
    """A worker's block with these (name, datatype, shape, bytes), rendered."""
    block, refs = bytearray(), []
    for name, datatype, shape, data in outputs:
        refs.append(TensorRef(name, datatype, shape, len(block), len(data)))
        block += data + bytes(-len(data) % 64)
    return render(prepared, InferResponse(tuple(refs), parameters), memoryview(block))


def prepared_for(entry: ModelEntry, **more: Any) -> PreparedRequest:
    return prepare(entry, {}, memoryview(json.dumps(request(given_input(), **more)).encode()), LIMIT)


OUTA = ("OUTA", 8, (1, 2), b"\1\0\0\0\2\0\0\0")
OUTB = ("OUTB", 11, (1, 1), b"\0\0\x80\x7f")


def test_renders_json(pair: ModelEntry) -> None:
    status, headers, chunks, close, *_ = rendered(prepared_for(pair, id="7é"), OUTA, OUTB, p=1, q="x")
    assert (status, headers, close) == (200, (("Content-Type", "application/json"),), None)
    assert b"".join(chunks).decode() == (
        '{"id":"7é","model_name":"m","model_version":"1","parameters":{"p":1,"q":"x"},"outputs":'
        '[{"name":"OUTA","datatype":"INT32","shape":[1,2],"data":[1,2]},'
        '{"name":"OUTB","datatype":"FP32","shape":[1,1],"data":[Infinity]}]}'
    )
    bare = rendered(prepared_for(pair))
    assert bare.chunks == (b'{"model_name":"m","model_version":"1","outputs":[]}',)


def test_renders_binary_beside_json_without_a_copy(pair: ModelEntry) -> None:
    prepared = prepared_for(pair, outputs=[{"name": "OUTB"}, {"name": "OUTA", "parameters": {"binary_data": True}}])
    response = rendered(prepared, OUTA, OUTB)
    head = (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"OUTA","datatype":"INT32","shape":[1,2],'
        b'"parameters":{"binary_data_size":8}},{"name":"OUTB","datatype":"FP32","shape":[1,1],"data":[Infinity]}]}'
    )
    assert response.headers == (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(head))),
    )
    assert response.chunks == (head, b"\1\0\0\0\2\0\0\0")
    assert isinstance(response.chunks[1], memoryview)


@pytest.mark.parametrize(
    ("more", "sent"),
    [
        ({}, [("OUTA", False), ("OUTB", False)]),
        ({"parameters": {"binary_data_output": True}}, [("OUTA", True), ("OUTB", True)]),
        ({"outputs": []}, [("OUTA", False), ("OUTB", False)]),
        ({"outputs": [{"name": "OUTB"}]}, [("OUTB", False)]),
        # An output that is listed is JSON unless it says otherwise, whatever binary_data_output says.
        ({"outputs": [{"name": "OUTB"}], "parameters": {"binary_data_output": True}}, [("OUTB", False)]),
        ({"outputs": [{"name": "OUTB", "parameters": {"binary_data": True}}]}, [("OUTB", True)]),
    ],
)
def test_which_outputs_are_sent_and_how(pair: ModelEntry, more: dict[str, Any], sent: list[tuple[str, bool]]) -> None:
    response = rendered(prepared_for(pair, **more), OUTA, OUTB)
    head = json.loads(bytes(response.chunks[0]))
    assert [(output["name"], "data" not in output) for output in head["outputs"]] == sent
    assert len(response.chunks) == 1 + sum(binary for _, binary in sent)


def test_empty_binary_outputs_have_a_size_but_no_header(pair: ModelEntry) -> None:
    response = rendered(prepared_for(pair, parameters={"binary_data_output": True}), ("OUTA", 8, (0, 2), b""))
    assert response.headers == (("Content-Type", "application/json"),)
    assert json.loads(bytes(response.chunks[0]))["outputs"][0]["parameters"] == {"binary_data_size": 0}


@pytest.mark.parametrize("binary", [False, True])
def test_an_output_that_does_not_fill_its_shape_is_refused(pair: ModelEntry, binary: bool) -> None:
    prepared = prepared_for(pair, parameters={"binary_data_output": binary})
    with pytest.raises(InternalError) as caught:
        rendered(prepared, ("OUTA", 8, (1, 2), bytes(4)))
    assert str(caught.value) == "output tensor shape does not match size of output for 'OUTA'"


def test_an_outputs_reshape_is_undone(make_entry: Make) -> None:
    outputs = [("OUT", "TYPE_UINT8", [2, -1], {"reshape": {"shape": [-1, 1, 2]}})]
    entry = make_entry("m", 4, [("A", "TYPE_INT32", [2])], outputs)
    response = rendered(prepared_for(entry), ("OUT", 2, (1, 3, 1, 2), bytes(6)))
    assert json.loads(bytes(response.chunks[0]))["outputs"][0]["shape"] == [1, 2, 3]
    with pytest.raises(InternalError) as caught:
        rendered(prepared_for(entry), ("OUT", 2, (1, 6), bytes(6)))
    assert str(caught.value) == (
        "output 'OUT' of model 'm' has shape [1, 6], which does not fit the reshape [-1, 1, 2] of its configuration"
    )


# ---------------------------------------------------------------------------------------------------------------
# With tritonclient on the other side

CONFIG_NAMES = {"BYTES": "TYPE_STRING"}
ARRAYS: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-(2**7), 2**7 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT16": st.integers(0, 2**16 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32),
    "FP64": st.floats(),
    "BYTES": st.text(st.characters(codec="utf-8")).map(str.encode),
}
DTYPES = {"FP32": np.float32, "FP64": np.float64, "BYTES": np.object_, "BOOL": np.bool_}


@st.composite
def arrays(draw: st.DrawFn) -> "tuple[str, np.ndarray[Any, Any]]":
    datatype = draw(st.sampled_from(sorted(ARRAYS)))
    values = draw(st.lists(ARRAYS[datatype], max_size=12))
    rows = draw(st.sampled_from([n for n in (1, 2, 3) if len(values) % n == 0]))
    return datatype, np.array(values, DTYPES.get(datatype, datatype.lower())).reshape(rows, -1)


def sent_by_triton(array: "np.ndarray[Any, Any]", binary: bool, binary_out: bool) -> tuple[dict[str, str], bytes]:
    tensor = triton.InferInput("IN", list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput("OUTIN", binary_data=binary_out)]
    body, length = triton.InferenceServerClient.generate_request_body([tensor], outputs=outputs, request_id="7")
    return ({} if length is None else {"inference-header-content-length": str(length)}), bytes(body)


@settings(max_examples=150)
@given(case=arrays(), binary_out=st.booleans())
def test_two_encodings_one_answer(make_entry: Make, case: Any, binary_out: bool) -> None:
    datatype, array = case
    entry = make_entry("m", 4, [("IN", CONFIG_NAMES.get(datatype, f"TYPE_{datatype}"), [-1])])
    prepared = []
    for binary in (False, True):
        headers, body = sent_by_triton(array, binary, binary_out)
        prepared.append(prepare(entry, headers, memoryview(body), LIMIT))
    first, second = prepared
    if not (datatype.startswith("FP") and np.isnan(array).any()):  # JSON cannot say which NaN
        assert bytes_of(first.inputs[0].data) == bytes_of(second.inputs[0].data)
    assert first.inputs[0][:3] == second.inputs[0][:3]
    assert replace(first, inputs=()) == replace(second, inputs=())
    assert (second.rows, second.shape_key != 0) == (len(array), True)

    # An identity model: the inputs' block is the outputs' block.
    memory = memoryview(bytearray(block_nbytes(second)))
    span = write_block(second, memory)
    (ref,) = unpack_request(memory[span >> 32 :][: span & 0xFFFFFFFF], len(memory)).inputs
    response = render(second, InferResponse((ref._replace(name="OUTIN"),), {}), memory)
    length = dict(response.headers).get("Inference-Header-Content-Length")
    body = b"".join(response.chunks)
    result = triton.InferResult.from_response_body(body, header_length=None if length is None else int(length))
    got = result.as_numpy("OUTIN")
    assert got is not None
    if datatype == "BYTES":
        decoded = [each.encode() if isinstance(each, str) else each for each in got.ravel().tolist()]
        assert (decoded, got.shape) == (array.ravel().tolist(), array.shape)
    else:
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


# ---------------------------------------------------------------------------------------------------------------
# Refusals; their sentences are in tests/end_to_end/http_cases/refused.py and against_the_model.py

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
