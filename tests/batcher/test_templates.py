"""Headers with holes, in bytes written by hand, and read as those who get them do."""

import pytest

from shoal.batcher.templates import outputs_template, response_header, step_template
from shoal.request import LentTensorRef, TensorRef, pack_options, unpack_lent_request, unpack_response

FP32 = 11


def test_the_bytes_of_a_steps_request() -> None:
    template = step_template([("X", (FP32, (1, 4), 16))], ["Y"])
    inputs = b"\x1f\0\0\0\x92\x91\x96\xa1X\x0b\x92\x01\x04\xcf\0\0\0\0\0\0\1\2\x10\xcf\3\0\0\0\0\0\0\4\x91\xa1Y"
    assert template.fill([0x102, 3 << 56 | 4]) == inputs
    assert template.fill([0, 0]) == inputs.replace(b"\1\2\x10", b"\0\0\x10").replace(b"\3\0\0\0\0\0\0\4", bytes(8))


def test_a_worker_reads_what_was_filled_in() -> None:
    template = step_template([("A", (FP32, (2, 0), 0)), ("B", (FP32, (3,), 12))], [])
    header = template.fill([1, 100, 4084, 200]) + pack_options("id", {"p": 0.5}, (7, 1))
    request, inputs = unpack_lent_request(header, lambda _ref: 4096)
    assert (request.id, request.requested_outputs, request.parameters, request.sequence) == (
        "id",
        (),
        {"p": 0.5},
        (7, 1),
    )
    assert inputs == (LentTensorRef("A", FP32, (2, 0), 1, 0, 100), LentTensorRef("B", FP32, (3,), 4084, 12, 200))


def test_a_client_reads_what_was_filled_in() -> None:
    template = outputs_template([("Y", (FP32, (1, 2), 8)), ("Z", (FP32, (), 4))])
    response = unpack_response(response_header(template.fill([64, 5000]), {"q": 1}), 8192)
    assert response.outputs == (TensorRef("Y", FP32, (1, 2), 64, 8), TensorRef("Z", FP32, (), 5000, 4))
    assert response.parameters == {"q": 1}
    assert unpack_response(response_header(outputs_template([]).fill([]), {}), 0) == ((), {})


@pytest.mark.parametrize("num_tensors", [15, 16, 300])
def test_any_number_of_tensors(num_tensors: int) -> None:
    template = outputs_template([(str(number), (FP32, (1,), 4)) for number in range(num_tensors)])
    response = unpack_response(response_header(template.fill(range(num_tensors)), {}), 2 * num_tensors + 4)
    assert [(each.name, each.offset) for each in response.outputs][-1] == (str(num_tensors - 1), num_tensors - 1)
