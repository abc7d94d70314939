"""frontend/v2/classification.py by the protocol's table, and through requests and answers with tritonclient's own."""

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.datatypes import BY_NAME, decode_bytes_tensor
from shoal.errors import InternalError, InvalidArgumentError
from shoal.frontend.prepared import RequestedOutput
from shoal.frontend.v2.classification import classify
from shoal.frontend.v2.infer import prepare, render
from shoal.request import InferResponse, TensorRef
from shoal.star.models import ModelEntry

Make = Callable[..., ModelEntry]
NO_LABELS: tuple[str, ...] = ()


def classes(
    datatype: str, shape: tuple[int, ...], data: bytes, count: int, labels: tuple[str, ...] = (), batch: bool = True
) -> tuple[tuple[int, ...], list[str]]:
    found = classify("O", BY_NAME[datatype], shape, memoryview(data), count, labels, has_batch=batch)
    return found[0], [element.decode() for element in decode_bytes_tensor(memoryview(found[1]))]


FLOATS = struct.pack("<4f", 0.05, 0.9, -0.0, 1e9)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "count", "batch", "result_shape", "strings"),
    [
        ("FP32", (1, 4), FLOATS, 3, True, (1, 3), ["1000000000.000000:3", "0.900000:1", "0.050000:0"]),
        ("FP32", (4,), FLOATS, 1, False, (1,), ["1000000000.000000:3"]),
        # Every dimension but the batch belongs to the row, and each row of a batch has indices of its own.
        ("FP32", (1, 2, 2), FLOATS, 2, True, (1, 2), ["1000000000.000000:3", "0.900000:1"]),
        ("FP32", (2, 2), FLOATS, 1, True, (2, 1), ["0.900000:1", "1000000000.000000:1"]),
        ("FP32", (2, 2), FLOATS, 1, False, (1,), ["1000000000.000000:3"]),
        # More classes than there are: as many as there are.
        ("FP32", (2, 2), FLOATS, 2**64 - 1, True, (2, 2),
         ["0.900000:1", "0.050000:0", "1000000000.000000:1", "-0.000000:0"]),
        ("FP32", (4,), FLOATS, 4, True, (4, 1), ["0.050000:0", "0.900000:0", "-0.000000:0", "1000000000.000000:0"]),
        ("FP64", (2,), struct.pack("<2d", 2 / 3, -1e-9), 2, False, (2,), ["0.666667:0", "-0.000000:1"]),
        ("UINT8", (1, 3), b"\x00\xff\x80", 3, True, (1, 3), ["255:1", "128:2", "0:0"]),
        ("UINT16", (1, 2), b"\x00\x01\xff\xff", 2, True, (1, 2), ["65535:1", "256:0"]),
        ("UINT32", (1, 2), struct.pack("<2I", 7, 2**32 - 1), 2, True, (1, 2), ["4294967295:1", "7:0"]),
        ("UINT64", (1, 2), struct.pack("<2Q", 0, 2**64 - 1), 2, True, (1, 2), ["18446744073709551615:1", "0:0"]),
        ("INT8", (1, 3), b"\x80\x00\x7f", 3, True, (1, 3), ["127:2", "0:1", "-128:0"]),
        ("INT16", (1, 2), b"\x00\x80\x01\x00", 2, True, (1, 2), ["1:1", "-32768:0"]),
        ("INT32", (1, 2), struct.pack("<2i", -(2**31), -1), 2, True, (1, 2), ["-1:1", "-2147483648:0"]),
        ("INT64", (1, 2), struct.pack("<2q", -(2**63), 2**63 - 1), 2, True, (1, 2),
         ["9223372036854775807:1", "-9223372036854775808:0"]),
        # Equal values by index; what is no number comes last.
        ("INT8", (1, 5), b"\1\2\1\2\1", 4, True, (1, 4), ["2:1", "2:3", "1:0", "1:2"]),
        ("FP32", (1, 4), struct.pack("<4f", math.nan, -math.inf, math.inf, 0), 4, True, (1, 4),
         ["inf:2", "0.000000:3", "-inf:1", "nan:0"]),
        # Nothing to rank.
        ("FP32", (0, 4), b"", 3, True, (0, 3), []),
        ("FP32", (2, 0), b"", 3, True, (2, 0), []),
        ("FP32", (2**40, 0), b"", 3, True, (2**40, 0), []),
        # A batching model that answered without a batch dimension.
        ("INT8", (), b"\5", 3, True, (1,), ["5:0"]),
    ],
)  # fmt: skip
def test_classes(
    datatype: str, shape: tuple[int, ...], data: bytes, count: int, batch: bool, result_shape: Any, strings: Any
) -> None:
    assert classes(datatype, shape, data, count, batch=batch) == (result_shape, strings)


def test_labels_stand_where_there_are_some() -> None:
    labels = ("zero", "", "deux: é")
    shape, strings = classes("UINT8", (2, 4), b"\0\1\2\3\3\2\1\0", 4, labels)
    assert shape == (2, 4)
    assert strings == ["3:3", "2:2:deux: é", "1:1", "0:0:zero", "3:0:zero", "2:1", "1:2:deux: é", "0:3"]


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16", "BF16"])
def test_types_that_cannot_be_ranked(datatype: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        classes(datatype, (1, 2), b"\0\0\0\0", 1)
    assert str(caught.value) == f"class result not available for output due to unsupported type '{datatype}'"


@pytest.mark.parametrize(
    ("shape", "count", "too_large"),
    [
        ((1, 1_000_000), 1, False),
        ((1, 1_000_001), 1, True),
        ((2, 1_000_000), 1, False),
        # Ours: not more strings in all than Triton allows for one row.
        ((4, 250_001), 250_000, False),
        ((4, 250_001), 250_001, True),
    ],
)
def test_the_largest_output(shape: tuple[int, int], count: int, too_large: bool) -> None:
    data = memoryview(bytes(shape[0] * shape[1]))
    if not too_large:
        got, encoded = classify("O", BY_NAME["UINT8"], shape, data, count, NO_LABELS, has_batch=True)
        assert (got, encoded[:7]) == ((shape[0], count), b"\3\0\0\0000:0")
        return
    with pytest.raises(InvalidArgumentError) as caught:
        classify("O", BY_NAME["UINT8"], shape, data, count, NO_LABELS, has_batch=True)
    assert str(caught.value) == "classification output tensor too large"


@pytest.mark.parametrize("nbytes", [0, 15, 20])
def test_an_output_that_does_not_fill_its_shape_is_refused(nbytes: int) -> None:
    with pytest.raises(InternalError) as caught:
        classes("FP32", (2, 2), bytes(nbytes), 1)
    assert str(caught.value) == "output tensor shape does not match size of output for 'O'"


@settings(max_examples=150)
@given(
    datatype=st.sampled_from(["UINT8", "INT64", "UINT64", "FP32", "FP64"]),
    rows=st.integers(1, 3),
    num_elements=st.one_of(st.integers(1, 20), st.integers(250, 600)),
    count=st.integers(1, 700),
    distinct=st.sampled_from([1, 3, 256]),
    is_nan=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_largest_first_and_equal_ones_by_index(
    datatype: str, rows: int, num_elements: int, count: int, distinct: int, is_nan: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, distinct, (rows, num_elements)).astype(BY_NAME[datatype].dtype)
    if datatype.startswith("FP"):
        values = values / 4
        if is_nan:
            values[random.random(values.shape) < 0.5] = math.nan
    shape, strings = classes(datatype, values.shape, values.astype(BY_NAME[datatype].dtype).tobytes(), count)
    assert shape == (rows, min(count, num_elements))
    for row, found in zip(values.tolist(), np.array(strings, object).reshape(shape).tolist(), strict=True):
        order = sorted(range(num_elements), key=lambda i: (row[i] != row[i], -row[i] if row[i] == row[i] else 0, i))
        form = "{:.6f}:{}" if datatype.startswith("FP") else "{}:{}"
        assert found == [form.format(row[index], index) for index in order[:count]]


# ---------------------------------------------------------------------------------------------------------------
# In requests and answers

INPUT = {"name": "A", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}


@pytest.fixture(scope="module")
def entry(make_entry: Make) -> ModelEntry:
    """Two outputs a row, of which the first has labels."""
    outputs: list[Any] = [("LABELLED", "TYPE_FP32", [4]), ("PLAIN", "TYPE_INT32", [1], {"reshape": {"shape": []}})]
    return make_entry("m", 4, [("A", "TYPE_INT32", [2])], outputs)


def answer(entry: ModelEntry, headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    block = struct.pack("<8f", 0.1, 0.2, 0.4, 0.3, 4, 3, 2, 1) + struct.pack("<2i", -5, 6)
    refs = (TensorRef("LABELLED", 11, (2, 4), 0, 32), TensorRef("PLAIN", 8, (2,), 32, 8))
    prepared = prepare(entry, headers, memoryview(body), 1 << 20)
    response = render(prepared, InferResponse(refs, {}), memoryview(block))
    return dict(response.headers), b"".join(response.chunks)


def test_classes_take_the_place_of_the_values(entry: ModelEntry) -> None:
    outputs = [
        {"name": "PLAIN", "parameters": {"classification": 9}},
        {"name": "LABELLED", "parameters": {"classification": 2}},
    ]
    headers, body = answer(entry, {}, json.dumps({"inputs": [INPUT], "outputs": outputs}).encode())
    assert headers == {"Content-Type": "application/json"}
    assert body.decode() == (
        '{"model_name":"m","model_version":"1","outputs":['
        '{"name":"LABELLED","datatype":"BYTES","shape":[2,2],'
        '"data":["0.400000:2","0.300000:3","4.000000:0:zero","3.000000:1:one"]},'
        '{"name":"PLAIN","datatype":"BYTES","shape":[2,1],"data":["-5:0","6:0"]}]}'
    )


def test_classes_in_binary_beside_an_output_that_was_asked_for_as_it_is(entry: ModelEntry) -> None:
    outputs = [
        {"name": "LABELLED", "parameters": {"classification": 1, "binary_data": True}},
        {"name": "PLAIN", "parameters": {"classification": 0, "binary_data": True}},
    ]
    headers, body = answer(entry, {}, json.dumps({"inputs": [INPUT], "outputs": outputs}).encode())
    head = (
        b'{"model_name":"m","model_version":"1","outputs":['
        b'{"name":"LABELLED","datatype":"BYTES","shape":[2,1],"parameters":{"binary_data_size":33}},'
        b'{"name":"PLAIN","datatype":"INT32","shape":[2,1],"parameters":{"binary_data_size":8}}]}'
    )
    assert headers == {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    assert body == head + b"\x0a\0\0\x000.400000:2\x0f\0\0\x004.000000:0:zero" + b"\xfb\xff\xff\xff\6\0\0\0"


@pytest.mark.parametrize("binary", [False, True])
def test_triton_s_own_client_asks_for_classes_and_reads_them(entry: ModelEntry, binary: bool) -> None:
    tensor = triton.InferInput("A", [2, 2], "INT32")
    tensor.set_data_from_numpy(np.array([[1, 2], [3, 4]], np.int32), binary_data=binary)
    outputs = [triton.InferRequestedOutput("LABELLED", binary_data=binary, class_count=3)]
    asked, length = triton.InferenceServerClient.generate_request_body([tensor], outputs=outputs)
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    assert prepare(entry, headers, memoryview(asked), 1 << 20).outputs == (RequestedOutput("LABELLED", binary, 3),)
    headers, body = answer(entry, headers, bytes(asked))
    size = headers.get("Inference-Header-Content-Length")
    assert (size is not None) == binary
    result = triton.InferResult.from_response_body(body, header_length=None if size is None else int(size))
    got = result.as_numpy("LABELLED")
    assert got is not None
    decoded = [each.decode() if isinstance(each, bytes) else each for each in got.ravel().tolist()]
    assert got.shape == (2, 3)
    assert decoded == [
        "0.400000:2", "0.300000:3", "0.200000:1:one", "4.000000:0:zero", "3.000000:1:one", "2.000000:2",
    ]  # fmt: skip


def test_an_output_that_cannot_be_ranked_is_the_clients_mistake(make_entry: Make) -> None:
    entry = make_entry("m", 0, [("A", "TYPE_INT32", [1])], [("O", "TYPE_STRING", [1])])
    asked = {"inputs": [{**INPUT, "shape": [1], "data": [1]}]}
    outputs = [{"name": "O", "parameters": {"classification": 1}}]
    prepared = prepare(entry, {}, memoryview(json.dumps({**asked, "outputs": outputs}).encode()), 1 << 20)
    response = InferResponse((TensorRef("O", 13, (1,), 0, 5),), {})
    with pytest.raises(InvalidArgumentError) as caught:
        render(prepared, response, memoryview(b"\1\0\0\0x"))
    assert str(caught.value) == "class result not available for output due to unsupported type 'BYTES'"
