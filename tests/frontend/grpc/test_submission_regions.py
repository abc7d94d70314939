"""frontend/grpc/submission.py where tensors lie in clients' regions: read each time, and kept no longer than these."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.datatypes import FP32, UINT8
from shoal.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from shoal.frontend.grpc import infer, wire
from shoal.frontend.grpc.messages import service
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.regions import Regions
from shoal.messages.to_client import RegionRegistered
from shoal.request import InferResponse, TensorRef
from shoal.star.refusal import answered
from tests.frontend.grpc.submission_lane import Lane, grid
from tests.frontend.lane_star import ONE, TWO, config, message

REGION_NBYTES = 100_000


class Client(Lane):
    """A lane whose client has registered a region `r`."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.memfd_create("client")
        os.truncate(self.fd, REGION_NBYTES)
        self.state.regions = Regions(are_allowed=True)
        self.register()

    def register(self) -> None:
        message = RegionRegistered(name="r", key="k", offset=0, byte_size=REGION_NBYTES, memory=os.dup(self.fd))
        self.state.regions.add(message)

    def answer(self, request: Any, data: bytes, *, stream: bool = False) -> tuple[bool, Any]:
        """Whether a request was known, and the message that its answer is sent in."""
        number, asked = self.ask(request, is_stream=stream)
        self.seen()
        reply = self.reply(number, InferResponse((TensorRef("OUT_A", FP32.wire, (1, 2), 0, 8),), {}), data)
        try:
            sent = b"".join(self.grpc.response(asked, reply, stream=stream))
        finally:
            self.port.release(number)
            assert self.num_waiting() == 1  # no request: the release
        kind = service.ModelStreamInferResponse if stream else service.ModelInferResponse
        return asked.in_regions is not None, kind.FromString(sent)


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


def there_and_back(id_: str = "", **more: Any) -> Any:
    """A request whose input and output both lie in the region."""
    request = in_region(16, 8)
    request.id = id_
    put(request.outputs.add(name="OUT_A"), 32, 8)
    for name, value in more.items():
        request.parameters[name].int64_param = value
    return request


def test_what_lies_there_now_is_what_is_sent(client: Client) -> None:
    for data in (ONE, TWO):
        os.pwrite(client.fd, data, 16)
        _, asked = client.ask(in_region(16, 8))
        assert (asked.in_regions is not None) is (data == TWO)
        assert client.seen().inputs == (("A", FP32.wire, (1, 2), data),)
        client.finish()
    client.state.regions.remove("r")
    with pytest.raises(NotFoundError, match=r"^Unable to find shared memory region: 'r'$"):
        client.ask(in_region(16, 8))


def test_an_id_is_that_of_each_request_and_other_parameters_make_another(client: Client) -> None:
    for number, id_ in enumerate(["", "7", "é" * 1024, "8"]):
        _, asked = client.ask(there_and_back(id_, x=5))
        assert ((asked.in_regions is not None), asked.prepared.id) == (number > 0, id_)
        seen = client.seen()
        assert (seen.id, seen.parameters, seen.requested_outputs) == (id_, {"x": 5}, ("OUT_A",))
        client.finish()
    _, asked = client.ask(there_and_back(x=6))
    assert (asked.in_regions, client.seen().parameters) == (None, {"x": 6})
    client.finish()


def test_a_known_call_is_submitted_without_its_message(client: Client) -> None:
    """As a connection does that has recognised the call's bytes (known_call.py)."""
    client.answer(there_and_back("1"), ONE)
    _, asked = client.ask(there_and_back("2"))
    client.seen()
    client.finish()
    template = asked.recognised_by
    assert template is asked.in_regions
    assert template is not None
    assert template.pattern is not None
    assert wire.match(template.pattern, there_and_back("é33").SerializeToString()) == ("é33".encode(), [])
    os.pwrite(client.fd, TWO, 16)
    _, asked = client.grpc.submit_known(template, b"33", [], start_ns=7)
    seen = client.seen()
    assert (seen.id, seen.inputs, seen.requested_outputs) == ("33", (("A", FP32.wire, (1, 2), TWO),), ("OUT_A",))
    assert (asked.id, asked.prepared.id, asked.recognised_by) == ("33", "33", template)
    client.finish()


def test_after_a_change_of_the_models_the_name_is_looked_up_again(client: Client) -> None:
    for _ in range(2):
        client.ask(in_region(16, 8))
        assert client.seen().model == 0
    client.state.models.apply(message(40, config("grid", 0, ("A", "TYPE_FP32", [-1, -1]))))
    for _ in range(2):
        client.ask(in_region(16, 8))
        assert client.seen().model == 40
    client.finish()


def test_a_decoupled_model_is_asked_by_streams_only(client: Client) -> None:
    request = in_region(0, 4)
    request.model_name = "stream"
    request.inputs[0].shape[:] = [1]
    for _ in range(2):
        client.ask(request, is_stream=True)
        client.seen()
        with pytest.raises(UnsupportedError):
            client.ask(request)
    client.finish()


def test_a_region_that_is_registered_again_is_another(client: Client) -> None:
    """The name is the same, and so is the request; the bytes are the new object's."""
    os.pwrite(client.fd, ONE, 16)
    for _ in range(2):
        client.answer(there_and_back(), TWO)
    client.state.regions.remove("r")
    old, client.fd = client.fd, os.memfd_create("another")
    os.truncate(client.fd, REGION_NBYTES)
    os.pwrite(client.fd, TWO, 16)
    client.register()
    client.ask(there_and_back())
    assert client.seen().inputs[0][3] == TWO
    client.finish()
    client.answer(there_and_back(), ONE)
    assert (os.pread(old, 8, 32), os.pread(client.fd, 8, 32)) == (TWO, ONE)
    os.close(old)


def test_nothing_keeps_a_region_that_is_unregistered(client: Client) -> None:
    for _ in range(3):
        client.answer(there_and_back(), ONE)
    held = len(os.listdir("/proc/self/fd"))
    client.state.regions.remove("r")
    assert len(os.listdir("/proc/self/fd")) == held - 1  # the server's descriptor is closed


@pytest.mark.parametrize("stream", [False, True])
def test_a_known_response_is_the_one_that_is_rendered(client: Client, stream: bool) -> None:
    for number, data in enumerate((ONE, TWO, ONE, TWO)):
        is_known, sent = client.answer(there_and_back(str(number)), data, stream=stream)
        response = sent.infer_response if stream else sent
        assert is_known is (number > 0)
        assert os.pread(client.fd, 8, 32) == data
        assert (response.id, response.model_name, response.model_version) == (str(number), "grid", "1")
        assert (response.outputs[0].name, list(response.outputs[0].shape)) == ("OUT_A", [1, 2])
        assert list(response.raw_output_contents) == [b""]
        assert list(response.parameters) == (["triton_final_response"] if stream else [])


def test_a_template_keeps_sixteen_responses(client: Client) -> None:
    client.answer(there_and_back("1"), ONE)
    number, asked = client.ask(there_and_back("2"))
    client.seen()
    reply = client.reply(number, InferResponse((TensorRef("OUT_A", FP32.wire, (1, 2), 0, 8),), {}), TWO)
    template = asked.in_regions
    assert template is not None
    for count in range(20):
        packed, response, block = answered(asked.prepared.entry, "", reply)
        around, _ = infer.render_envelope(asked.prepared, response, block, None)
        template.keep_response(packed + bytes(count), response, around, stream=False, final=True)
    assert len(template.responses) == 16
    client.port.release(number)


def test_a_region_cut_short_refuses_a_known_request_and_its_response(client: Client) -> None:
    for _ in range(3):
        client.answer(there_and_back(), ONE)
    too_short = r"^Invalid offset \+ byte size for shared memory region: 'r'$"
    os.truncate(client.fd, 32)  # the input is there
    with pytest.raises(InvalidArgumentError, match=too_short):
        client.answer(there_and_back(), ONE)
    os.truncate(client.fd, 16)
    with pytest.raises(InvalidArgumentError, match=too_short):
        client.ask(there_and_back())
    assert client.port.slab.num_taken == 0


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
