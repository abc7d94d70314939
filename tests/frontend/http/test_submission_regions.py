"""frontend/http/submission.py where tensors lie in clients' regions: read each time, and kept no longer than these."""

import os
from collections.abc import Iterator

import pytest

from shoal.datatypes import FP32, UINT8
from shoal.errors import InvalidArgumentError, NotFoundError
from shoal.frontend.http.responses import known_response
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.regions import Regions
from shoal.messages.to_client import RegionRegistered
from shoal.request import InferResponse, TensorRef
from tests.frontend.lane_star import ONE, TWO, Star, binary, inputs, used_template

REGION_NBYTES = 100_000


class Client(Star):
    """A star whose client has registered a region `r`."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.memfd_create("client")
        os.truncate(self.fd, REGION_NBYTES)
        self.state.regions = Regions(are_allowed=True)
        self.register()

    def register(self) -> None:
        message = RegionRegistered(name="r", key="k", offset=0, byte_size=REGION_NBYTES, memory=os.dup(self.fd))
        self.state.regions.add(message)

    def finish(self) -> None:
        self.refuse(self.records[-1][1])
        assert (self.port.slab.num_taken, self.port.counts["requests_open"]) == (0, 0)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.bell.close()
    os.close(made.fd)


def in_region(name: str, datatype: str, shape: list[int], offset: int, nbytes: int) -> bytes:
    old = b'"binary_data_size":%d' % nbytes
    new = b'"shared_memory_region":"r","shared_memory_byte_size":%d,"shared_memory_offset":%d' % (nbytes, offset)
    return binary(name, datatype, shape, nbytes).replace(old, new)


GRID = inputs(in_region("A", "FP32", [1, 2], 16, 8))
RESULT = b',"outputs":[{"name":"OUT_A","parameters":{"shared_memory_region":"r","shared_memory_byte_size":8}}]'


def test_what_lies_there_now_is_what_is_sent(client: Client) -> None:
    for data in (ONE, TWO):
        os.pwrite(client.fd, data, 16)
        assert used_template(client.submit("grid", GRID)) is (data == TWO)
        assert client.seen().inputs == (("A", FP32.wire, (1, 2), data),)
        client.finish()
    client.state.regions.remove("r")
    with pytest.raises(NotFoundError, match=r"^Unable to find shared memory region: 'r'$"):
        client.submit("grid", GRID)


def test_an_id_and_parameters_are_those_of_each_request(client: Client) -> None:
    for number, data in enumerate((ONE, TWO, ONE)):
        os.pwrite(client.fd, data, 16)
        more = b',"id":"%d","parameters":{"priority":%d,"x":%d}' % (number, number, number)
        pending = client.submit("grid", inputs(in_region("A", "FP32", [1, 2], 16, 8), more=more))
        seen = client.seen()
        assert used_template(pending) is (number > 0)
        assert (seen.id, seen.priority, seen.parameters, seen.inputs[0][3]) == (
            str(number),
            number,
            {"x": number},
            data,
        )
        client.finish()


def test_a_region_that_is_registered_again_is_another(client: Client) -> None:
    """The name is the same, and so is the request; the bytes are the new object's."""
    os.pwrite(client.fd, ONE, 16)
    client.submit("grid", GRID)
    client.seen()
    client.finish()
    client.state.regions.remove("r")
    old, client.fd = client.fd, os.memfd_create("another")
    os.truncate(client.fd, REGION_NBYTES)
    os.pwrite(client.fd, TWO, 16)
    client.register()
    client.submit("grid", GRID)
    assert client.seen().inputs[0][3] == TWO
    client.finish()
    os.close(old)


def test_nothing_keeps_a_region_that_is_unregistered(client: Client) -> None:
    client.submit("grid", inputs(in_region("A", "FP32", [1, 2], 16, 8), more=RESULT))
    client.seen()
    client.finish()
    held = len(os.listdir("/proc/self/fd"))
    client.state.regions.remove("r")
    assert len(os.listdir("/proc/self/fd")) == held - 1  # the server's descriptor is closed


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
def test_an_input_in_a_region_beside_one_in_the_body(client: Client, received: bool) -> None:
    json = inputs(binary("A", "UINT8", [3], 3), in_region("B", "FP32", [2], 0, 8))
    for data in (ONE, TWO):
        os.pwrite(client.fd, data, 0)
        client.submit("odd", json, b"abc", received=received)
        assert client.seen().inputs == (("A", UINT8.wire, (3,), b"abc"), ("B", FP32.wire, (2,), data))
        client.finish()


@pytest.mark.parametrize("is_json", [False, True])
def test_a_result_in_a_region(client: Client, is_json: bool) -> None:
    """Inputs that could be known: what is remembered would keep the region, and write into it when it is gone."""
    given = b'{"name":"A","datatype":"FP32","shape":[1,2],"data":[1,2]}' if is_json else binary("A", "FP32", [1, 2], 8)
    for data in (ONE, TWO):
        pending = client.submit("grid", inputs(given, more=RESULT), None if is_json else ONE)
        client.seen()
        response = InferResponse((TensorRef("OUT_A", FP32.wire, (1, 2), 0, 8),), {})
        reply = client.reply(pending.number, response, data)
        (sent,) = client.submission.response(pending.asked, reply)[1:]
        assert bytes(sent).endswith(b'"outputs":[{"name":"OUT_A","datatype":"FP32","shape":[1,2]}]}')
        assert os.pread(client.fd, 8, 0) == data
        client.port.release(pending.number)
        assert client.num_waiting() == 1  # no request: the release
    client.state.regions.remove("r")
    with pytest.raises(NotFoundError):
        client.submit("grid", inputs(given, more=RESULT), None if is_json else ONE)


@pytest.mark.parametrize("has_id", [False, True])
def test_a_known_response_is_the_one_that_is_rendered(client: Client, has_id: bool) -> None:
    given = in_region("A", "FP32", [1, 2], 16, 8)
    response = InferResponse((TensorRef("OUT_A", FP32.wire, (1, 2), 0, 8),), {})
    for number, data in enumerate((ONE, TWO, ONE)):
        id_ = b',"id":"%d"' % number if has_id else b""
        pending = client.submit("grid", inputs(given, more=id_ + RESULT))
        client.seen()
        reply = client.reply(pending.number, response, data)
        known = known_response(pending.asked, reply)
        assert (known is not None) is (number == 2)  # the first has no template, the second keeps the response
        assert known is None or os.pread(client.fd, 8, 0) == data
        rendered = client.submission.response(pending.asked, reply)
        assert os.pread(client.fd, 8, 0) == data
        assert known is None or known == [b"".join(map(bytes, rendered))]
        client.port.release(pending.number)
        assert client.num_waiting() == 1


def test_a_region_cut_short_refuses_a_known_request_and_its_response(client: Client) -> None:
    request = inputs(in_region("A", "FP32", [1, 2], 16, 8), more=RESULT)
    response = InferResponse((TensorRef("OUT_A", FP32.wire, (1, 2), 0, 8),), {})
    for size in (REGION_NBYTES, REGION_NBYTES, 4):
        pending = client.submit("grid", request)
        client.seen()
        os.truncate(client.fd, size)
        reply = client.reply(pending.number, response, ONE)
        known = known_response(pending.asked, reply)
        sent = b"".join(map(bytes, known or client.submission.response(pending.asked, reply)))
        assert sent.startswith(b"HTTP/1.1 400" if size == 4 else b"HTTP/1.1 200")
        client.port.release(pending.number)
        assert client.num_waiting() == 1
    with pytest.raises(InvalidArgumentError, match=r"^Invalid offset \+ byte size for shared memory region: 'r'$"):
        client.submit("grid", request)
    assert client.port.slab.num_taken == 0


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
def test_a_large_tensor_is_for_the_road_and_a_missing_one_is_refused(client: Client, received: bool) -> None:
    large = inputs(in_region("A", "FP32", [1, 20_000], 0, 80_000))
    with pytest.raises(RoadOnlyError):
        client.submit("grid", large, b"", received=received)
    os.truncate(client.fd, 20)
    with pytest.raises(InvalidArgumentError, match=r"^Invalid offset \+ byte size for shared memory region: 'r'$"):
        client.submit("grid", GRID, b"", received=received)
    assert (client.port.slab.num_taken, client.num_waiting()) == (0, 0)
