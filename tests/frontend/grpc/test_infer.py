"""frontend/grpc/infer.py: what a message comes to, and what a model's answer becomes.

What is refused is in test_infer_refusals.py.
"""

import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.datatypes import ALL, BY_NAME, encode_bytes_tensor
from shoal.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from shoal.frontend.grpc import infer
from shoal.frontend.grpc.messages import service
from shoal.frontend.header_forwarding import forwarded_metadata
from shoal.frontend.prepared import PreparedRequest, RequestedOutput
from shoal.frontend.state import ServerState
from shoal.request import InferResponse, TensorRef
from shoal.star.models import ModelEntry, ModelTable
from tests.frontend.grpc.messages import RAWS, message_of, prepare
from tests.messages import model_message
from tests.region_bytes import bytes_of

Make = Callable[..., ModelEntry]


def data_of(prepared: PreparedRequest) -> list[bytes]:
    return [bytes_of(each.data) for each in prepared.inputs]


# --- the request ---


def test_raw_tensors_are_views_of_the_message(pair: ModelEntry) -> None:
    message = message_of(RAWS).SerializeToString()
    request, raws = infer.parse(message)
    prepared = infer.prepare(pair, request, raws)
    assert data_of(prepared) == list(RAWS)
    views = [each.data for each in prepared.inputs]
    assert [view.obj for view in views if isinstance(view, memoryview)] == [message, message]
    assert (prepared.id, prepared.rows, prepared.outputs, prepared.parameters) == ("7", 1, (), {})


def test_raw_tensors_that_no_input_takes_are_passed_over(pair: ModelEntry) -> None:
    assert data_of(prepare(pair, message_of((*RAWS, b"more")))) == list(RAWS)


#: A number that needs narrowing, one that does not, and zero, for each field of InferTensorContents.
NUMBERS = {
    "BOOL": ("bool_contents", [True, False, True]), "INT8": ("int_contents", [-129, 127, 0]),
    "INT16": ("int_contents", [-32769, 32767, 0]), "INT32": ("int_contents", [-(2**31), 2**31 - 1, 0]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1, 0]), "UINT8": ("uint_contents", [256, 255, 0]),
    "UINT16": ("uint_contents", [65537, 65535, 0]), "UINT32": ("uint_contents", [2**32 - 1, 1, 0]),
    "UINT64": ("uint64_contents", [2**64 - 1, 1, 0]), "FP32": ("fp32_contents", [float("inf"), 0.1, -0.0]),
    "FP64": ("fp64_contents", [float("-inf"), 0.1, -0.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_typed_contents_become_the_tensors_bytes(make_entry: Make, name: str) -> None:
    field, values = NUMBERS[name]
    request = service.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="A", datatype=name, shape=[3])
    getattr(tensor.contents, field).extend(values)
    (data,) = data_of(prepare(make_entry("m", 0, [("A", f"TYPE_{name}", [-1])]), request))
    wide = np.array(values, {"i": np.int64, "u": np.uint64}.get(BY_NAME[name].dtype.kind, BY_NAME[name].dtype))
    assert data == wide.astype(BY_NAME[name].dtype).tobytes()


def test_typed_strings_become_a_bytes_tensor(make_entry: Make) -> None:
    request = service.ModelInferRequest(model_name="m")
    request.inputs.add(name="A", datatype="BYTES", shape=[3]).contents.bytes_contents.extend([b"", b"\xff", b"ab"])
    prepared = prepare(make_entry("m", 0, [("A", "TYPE_STRING", [-1])]), request)
    assert data_of(prepared) == [encode_bytes_tensor([b"", b"\xff", b"ab"])]


def test_contents_without_an_element_are_an_empty_tensor(make_entry: Make) -> None:
    request = service.ModelInferRequest(model_name="m")
    request.inputs.add(name="A", datatype="FP16", shape=[0]).contents.SetInParent()
    assert data_of(prepare(make_entry("m", 0, [("A", "TYPE_FP16", [-1])]), request)) == [b""]


@pytest.mark.parametrize("datatype", [each for each in ALL if each.name not in NUMBERS], ids=lambda each: each.name)
def test_no_typed_contents_hold_these(make_entry: Make, datatype: Any) -> None:
    request = service.ModelInferRequest(model_name="m")
    request.inputs.add(name="A", datatype=datatype.name, shape=[1]).contents.fp32_contents.append(1)
    with pytest.raises(InvalidArgumentError, match=f"of type 'FP32', expected datatype '{datatype.name}'$"):
        prepare(make_entry("m", 0, [("A", datatype.config_name, [-1])]), request)


def test_reads_the_parameters_of_a_request(pair: ModelEntry) -> None:
    request = message_of(RAWS)
    for key, kind, value in (
        ("sequence_id", "int64_param", -1), ("sequence_start", "bool_param", True),
        ("sequence_end", "bool_param", True),
        ("priority", "uint64_param", 2**64 - 1), ("timeout", "int64_param", 5),
        ("triton_enable_empty_final_response", "bool_param", True), ("s", "string_param", "é"),
        ("i", "int64_param", -5),
        ("b", "bool_param", False), ("d", "double_param", float("inf")), ("binary_data_output", "int64_param", 1),
    ):  # fmt: skip
        setattr(request.parameters[key], kind, value)
    prepared = prepare(pair, request)
    assert (prepared.correlation_id, prepared.flags, prepared.priority) == (2**64 - 1, 3, 2**64 - 1)
    assert (prepared.timeout_us, prepared.wants_empty_final, prepared.binary_data_output) == (5, True, True)
    assert prepared.parameters == {"s": "é", "i": -5, "b": False, "d": float("inf"), "binary_data_output": 1}
    assert {type(value) for value in prepared.parameters.values()} == {str, int, bool, float}
    request.parameters["sequence_id"].string_param = "s"
    request.parameters["priority"].int64_param = 3
    prepared = prepare(pair, request)
    assert (prepared.correlation_id, prepared.priority) == ("s", 3)


def test_reads_the_outputs_of_a_request(pair: ModelEntry) -> None:
    request = message_of(RAWS)
    request.outputs.add(name="OUTB")
    request.outputs.add(name="OUTA").parameters["classification"].int64_param = 3
    assert prepare(pair, request).outputs == (RequestedOutput("OUTB", True, 0), RequestedOutput("OUTA", True, 3))


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("aGVsbG8", "hello"),
        ("aGVsbG8=", "hello"),
        ("", ""),
        ("w6k", "é"),
        ("Af8", "\x01\ufffd"),
        ("MQ,Mg==, Mw", "1,2,3"),
        ("a b", "a b"),
        ("a", "a"),
        ("é", "é"),
    ],
)
def test_binary_metadata_is_decoded(sent: str, text: str) -> None:
    assert forwarded_metadata("^x-", {"x-bin": sent, "x-a-bin": sent, "x-binary": sent}) == {
        "x-bin": text, "x-a-bin": text, "x-binary": sent,
    }  # fmt: skip


def test_metadata_becomes_parameters(pair: ModelEntry) -> None:
    metadata = {":path": "/x", "te": "trailers", "grpc-timeout": "1S", "content-type": "a"}
    metadata |= {"x-user": "é", "user-agent": "u"}
    assert forwarded_metadata("", metadata) == {}
    assert forwarded_metadata("X-", metadata) == {}
    assert forwarded_metadata(".", metadata) == {"x-user": "é", "user-agent": "u"}
    prepared = prepare(pair, message_of(RAWS), forwarded=forwarded_metadata("^x-", metadata))
    assert prepared.parameters == {"x-user": "é"}
    with pytest.raises(
        InvalidArgumentError, match=r"^Header 'timeout' is reserved for Triton usage and cannot be forw"
    ):
        prepare(pair, message_of(RAWS), forwarded={"timeout": "1"})


def test_finds_the_model_that_is_meant(make_entry: Make) -> None:
    state = ServerState()
    with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'm' is not found$"):
        infer.find_model(state, message_of(), is_stream=False)
    config = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
    config["model_transaction_policy"] = {"decoupled": True}
    state.models = ModelTable()
    state.models.apply(model_message("m", 1, 1, config, row=-1))
    assert infer.find_model(state, message_of(model_version="1"), is_stream=True).name == "m"
    with pytest.raises(
        UnsupportedError, match=r"^ModelInfer RPC doesn't support models with decoupled transaction pol"
    ):
        infer.find_model(state, message_of(), is_stream=False)
    with pytest.raises(InvalidArgumentError, match="version should be an integral value > 0"):
        infer.find_model(state, message_of(model_version="x"), is_stream=False)


# --- the response ---

BLOCK = memoryview(struct.pack("<2i", 30, 40) + b"\3\0\0\0abc")
RESPONSE = InferResponse(
    (TensorRef("OUTA", 8, (1, 2), 0, 8), TensorRef("OUTB", 13, (1, 1), 8, 7)), {"s": "x", "b": True, "i": -1, "d": 0.5}
)


def rendered(prepared: PreparedRequest, response: InferResponse = RESPONSE, **more: Any) -> Any:
    chunks = infer.render(prepared, response, BLOCK, **more)
    kind = service.ModelInferResponse if not more else service.ModelStreamInferResponse
    return kind.FromString(b"".join(chunks))


@pytest.fixture(scope="module")
def prepared(pair: ModelEntry) -> PreparedRequest:
    return prepare(pair, message_of(RAWS))


def test_a_response_has_the_outputs_as_the_model_gave_them(prepared: PreparedRequest) -> None:
    response = rendered(prepared)
    assert (response.id, response.model_name, response.model_version) == ("7", "m", "1")
    outputs = [(each.name, each.datatype, list(each.shape)) for each in response.outputs]
    assert outputs == [("OUTA", "INT32", [1, 2]), ("OUTB", "BYTES", [1, 1])]
    assert list(response.raw_output_contents) == [bytes(BLOCK[:8]), bytes(BLOCK[8:])]
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in response.parameters.items()}
    assert kinds == {"s": "string_param", "b": "bool_param", "i": "int64_param", "d": "double_param"}
    assert [response.parameters[key].int64_param for key in "i"] == [-1]


def test_nothing_is_copied(prepared: PreparedRequest) -> None:
    chunks = infer.render(prepared, RESPONSE, BLOCK)
    assert [chunk.obj for chunk in chunks if isinstance(chunk, memoryview)] == [BLOCK.obj, BLOCK.obj]


@pytest.mark.parametrize("final", [False, True])
def test_a_streamed_response_says_whether_it_is_the_last(prepared: PreparedRequest, final: bool) -> None:
    streamed = rendered(prepared, final=final)
    assert (streamed.error_message, streamed.infer_response.parameters["triton_final_response"].bool_param) == (
        "", final,
    )  # fmt: skip
    del streamed.infer_response.parameters["triton_final_response"]
    assert streamed.infer_response == rendered(prepared)


def test_the_end_alone(prepared: PreparedRequest) -> None:
    response = service.ModelStreamInferResponse.FromString(infer.empty_final(prepared)).infer_response
    expected = service.ModelInferResponse(model_name="m", model_version="1", id="7")
    expected.parameters["triton_final_response"].bool_param = True
    assert response == expected


def test_an_error_of_a_stream_names_the_request() -> None:
    message = message_of(RAWS, model_version="x").SerializeToString()
    response = service.ModelStreamInferResponse.FromString(infer.stream_error("no", message))
    named = service.ModelInferResponse(model_name="m", model_version="x", id="7")
    assert response == service.ModelStreamInferResponse(error_message="no", infer_response=named)
    response = service.ModelStreamInferResponse.FromString(infer.stream_error("no", message[:-1]))
    assert response.error_message == "no"
    assert not response.infer_response.ByteSize()


def test_only_what_was_asked_for_is_sent_and_classes_in_place_of_values(pair: ModelEntry) -> None:
    request = message_of(RAWS)
    request.outputs.add(name="OUTA").parameters["classification"].int64_param = 1
    response = rendered(prepare(pair, request))
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("OUTA", "BYTES", [1, 1])
    assert list(response.raw_output_contents) == [b"\4\0\0\x0040:1"]


def test_what_a_worker_says_must_fit_together(prepared: PreparedRequest) -> None:
    response = InferResponse((TensorRef("OUTA", 8, (1, 3), 0, 8),), {})
    with pytest.raises(InternalError, match=r"^output tensor shape does not match size of output for 'OUTA'$"):
        infer.render(prepared, response, BLOCK)


def test_a_response_that_no_client_could_read_is_refused(prepared: PreparedRequest) -> None:
    """Three outputs that lie in the same gibibyte, of which not a page is touched."""
    with mmap.mmap(-1, 1 << 30) as memory:
        block = memoryview(memory)
        response = InferResponse(tuple([TensorRef(name, 13, (1,), 0, 1 << 30) for name in ("OUTB", "X", "Y")]), {})
        sentence = r"^Response has byte size 32212\d{5} which exceeds gRPC's byte size limit 2147483647\.$"
        with pytest.raises(InvalidArgumentError, match=sentence):
            infer.render(prepared, response, block)
        block.release()
