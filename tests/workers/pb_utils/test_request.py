"""request.py, response.py, errors.py and parameters.py: what models make and read."""

from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import InferenceRequest, InferenceResponse, Tensor, TritonError, TritonModelException
from triton_python_backend_utils.errors import as_shoal_error, as_triton_error

from shoal import errors

X, Y = Tensor("X", np.zeros(1)), Tensor("Y", np.ones(1))


def request(**given: Any) -> InferenceRequest:
    return InferenceRequest(**{"inputs": [X], "requested_output_names": ["Y"], "model_name": "m", **given})


def test_the_defaults_are_tritons() -> None:
    made = request()
    assert (made.request_id(), made.correlation_id(), made.flags(), made.timeout()) == ("", 0, 0, 0)
    assert (made.parameters(), made.requested_output_names(), made.is_cancelled()) == ("{}", {"Y"}, False)
    assert made.trace().get_context() is None
    assert made.preferred_memory().preferred_memory_type == pb_utils.TRITONSERVER_MEMORY_CPU


def test_everything_that_can_be_said() -> None:
    made = request(request_id="a", correlation_id="s", flags=1, timeout=5, parameters={"k": True, "é": "v", "n": 3})
    made.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert (made.request_id(), made.correlation_id(), made.flags(), made.timeout()) == ("a", "s", 2, 5)
    assert made.parameters() == '{"k":true,"é":"v","n":3}'


def test_names_may_be_bytes_as_triton_takes_them() -> None:
    made = request(request_id=b"a", model_name="é".encode(), requested_output_names=[b"Y", "Z"])
    assert (made.request_id(), made._model_name, made.requested_output_names()) == ("a", "é", {"Y", "Z"})


@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_what_has_no_default(missing: str) -> None:
    with pytest.raises(TypeError):
        request(**{missing: None})


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({1: "a"}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"a": 1.5}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"a": 1 << 64}, "Parameter 'a' is an integer of more than 64 bits"),
        ({"a": -(1 << 63) - 1}, "Parameter 'a' is an integer of more than 64 bits"),
        ({"a": "\ud800"}, "Parameter 'a' is not Unicode: it has half a surrogate pair"),
        ({"\ud800": True}, "Parameter '\\ud800' is not Unicode: it has half a surrogate pair"),
    ],
)
@pytest.mark.parametrize("make", [request, InferenceResponse])
def test_parameters_that_triton_does_not_take(make: Any, parameters: Any, sentence: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        make(parameters=parameters)
    assert str(caught.value) == sentence


def test_tensors_are_found_by_name() -> None:
    assert pb_utils.get_input_tensor_by_name(request(inputs=[X, Y]), "Y") is Y
    assert pb_utils.get_input_tensor_by_name(request(), "Y") is None
    assert pb_utils.get_output_tensor_by_name(InferenceResponse([X, Y]), "X") is X
    assert pb_utils.get_output_tensor_by_name(InferenceResponse([X]), "Y") is None


def test_a_request_of_a_models_own_has_no_response_sender() -> None:
    for call in (request().get_response_sender, lambda: request().set_release_flags(5)):
        with pytest.raises(TritonModelException):
            call()


def test_a_response_has_tensors_or_an_error() -> None:
    error = TritonError("no", TritonError.UNAVAILABLE)
    failed = InferenceResponse(output_tensors=[X], error=error)
    assert (failed.has_error(), failed.error(), failed.output_tensors()) == (True, error, [])
    good = InferenceResponse([X], parameters={"a": 1})
    assert (good.has_error(), good.error(), good.output_tensors(), good.parameters()) == (False, None, [X], '{"a":1}')


def test_a_response_takes_tensors_only() -> None:
    with pytest.raises(TypeError, match=r"must be a Tensor, found type <class 'numpy\.ndarray'>"):
        InferenceResponse([np.zeros(1)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (TritonError.UNKNOWN, errors.UnknownError),
        (TritonError.INTERNAL, errors.InternalError),
        (TritonError.NOT_FOUND, errors.NotFoundError),
        (TritonError.INVALID_ARG, errors.InvalidArgumentError),
        (TritonError.UNAVAILABLE, errors.UnavailableError),
        (TritonError.UNSUPPORTED, errors.UnsupportedError),
        (TritonError.ALREADY_EXISTS, errors.AlreadyExistsError),
        (TritonError.CANCELLED, errors.CancelledError),
    ],
)
def test_every_code_is_one_of_the_servers(code: int, kind: type[errors.ShoalError]) -> None:
    error = as_shoal_error(TritonError("why", code))
    assert (type(error), str(error)) == (kind, "why")
    assert (as_triton_error(error).code(), as_triton_error(error).message()) == (code, "why")


def test_an_error_is_internal_by_default_and_of_a_known_code() -> None:
    assert TritonError("why").code() == TritonError.INTERNAL
    with pytest.raises(TypeError):
        TritonError("why", 99)


def test_strings_on_the_wire() -> None:
    wire = b"\x01\x00\x00\x00a\x02\x00\x00\x00\xc3\xa9\x01\x00\x00\x007"
    assert pb_utils.serialize_byte_tensor(np.array([b"a", "é", 7], object)) == wire
    assert pb_utils.serialize_byte_tensor(np.array(["a"])) == wire[:5]
    assert pb_utils.deserialize_bytes_tensor(wire).tolist() == [b"a", "é".encode(), b"7"]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(1)) is None


def test_datatypes_by_number_and_name() -> None:
    for number in range(1, 14):
        assert pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(number)) == number
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert "TYPE_BF16" not in pb_utils.TRITON_STRING_TO_NUMPY
    with pytest.raises(TritonModelException):
        pb_utils.triton_to_numpy_type(14)
