"""frontend/grpc/submission.py where tensors lie in clients' regions: read each time, and remembered of no request."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.datatypes import FP32, UINT8
from shoal.errors import InvalidArgumentError, NotFoundError
from shoal.frontend.grpc.messages import service
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.regions import Regions
from shoal.messages.to_client import RegionRegistered
from shoal.request import InferResponse, TensorRef
from tests.frontend.grpc.submission_lane import Lane, grid
from tests.frontend.lane_star import ONE, TWO

REGION_NBYTES = 100_000


class Client(Lane):
    """A lane whose client has registered a region `r`."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.memfd_create("client")
        os.truncate(self.fd, REGION_NBYTES)
        self.state.regions = Regions(are_allowed=True)
        message = RegionRegistered(name="r", key="k", offset=0, byte_size=REGION_NBYTES, memory=os.dup(self.fd))
        self.state.regions.add(message)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.bell.close()
    os.close(made.fd)


def put(tensor: Any, offset: int, nbytes: int) -> None:
    tensor.parameters["shared_memory_region"].string_param = "r"
    tensor.parameters["shared_memory_offset"].int64_param = offset
    tensor.parameters["shared_memory_byte_size"].int64_param = nbytes


def in_region(offset: int, nbytes: int) -> Any:
    request = grid(bytes(nbytes))
    del request.raw_input_contents[:]
    put(request.inputs[0], offset, nbytes)
    return request


def test_what_lies_there_now_is_what_is_sent(client: Client) -> None:
    for data in (ONE, TWO):
        os.pwrite(client.fd, data, 16)
        client.ask(in_region(16, 8))
        assert client.seen().inputs == (("A", FP32.wire, (1, 2), data),)
        client.finish()


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
@pytest.mark.parametrize("names", ["AB", "BA"])
def test_raw_contents_are_of_the_other_inputs(client: Client, received: bool, names: str) -> None:
    request = service.ModelInferRequest(model_name="odd", raw_input_contents=[b"abc"])
    for name in names:
        request.inputs.add(name=name, datatype={"A": "UINT8", "B": "FP32"}[name], shape=[{"A": 3, "B": 2}[name]])
    put(request.inputs[names.index("B")], 0, 8)
    for data in (ONE, TWO):
        os.pwrite(client.fd, data, 0)
        client.ask(request, received=received)
        expected = {("A", UINT8.wire, (3,), b"abc"), ("B", FP32.wire, (2,), data)}
        assert set(client.seen().inputs) == expected
        client.finish()


def test_a_result_in_a_region(client: Client) -> None:
    """An input that could be known: what is remembered would keep the region, and write into it when it is gone."""
    request = grid(ONE)
    put(request.outputs.add(name="OUT_A"), 32, 8)
    for data in (ONE, TWO):
        number, asked = client.ask(request)
        client.seen()
        reply = client.reply(number, InferResponse((TensorRef("OUT_A", FP32.wire, (1, 2), 0, 8),), {}), data)
        response = service.ModelInferResponse.FromString(b"".join(client.grpc.response(asked, reply)))
        assert (response.outputs[0].name, list(response.raw_output_contents)) == ("OUT_A", [b""])
        assert os.pread(client.fd, 8, 32) == data
        client.port.release(number)
        assert client.num_waiting() == 1  # no request: the release
    client.state.regions.remove("r")
    with pytest.raises(NotFoundError, match=r"^Unable to find shared memory region: 'r'$"):
        client.ask(request)


@pytest.mark.parametrize(
    ("offset", "nbytes", "sentence"),
    [
        (-1, 8, "Invalid offset for shared memory region: 'r'"),
        (0, -8, "Invalid offset + byte size for shared memory region: 'r'"),
        (8, -8, "Integer overflow detected: byte_size (18446744073709551608) + offset (8) exceeds maximum value "),
    ],
)
def test_negative_numbers_are_large_ones(client: Client, offset: int, nbytes: int, sentence: str) -> None:
    request = in_region(0, 8)
    put(request.inputs[0], offset, nbytes)
    with pytest.raises(InvalidArgumentError) as refused:
        client.ask(request)
    assert str(refused.value).startswith(sentence)


def test_a_large_tensor_is_for_the_road_and_a_missing_one_is_refused(client: Client) -> None:
    with pytest.raises(RoadOnlyError):
        client.ask(in_region(0, 80_000))
    os.truncate(client.fd, 20)
    with pytest.raises(InvalidArgumentError, match=r"^Invalid offset \+ byte size for shared memory region: 'r'$"):
        client.ask(in_region(16, 8))
    assert (client.port.slab.num_taken, client.num_waiting()) == (0, 0)
