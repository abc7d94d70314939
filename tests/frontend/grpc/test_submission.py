"""frontend/grpc/submission.py: what a lane puts into shared memory, read as a worker reads it, and what it answers.

The road's way, `prepare` and `write_block`, `render`, is the measure: short cuts must not be seen from outside.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from shoal.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.frontend.grpc import infer
from shoal.frontend.grpc.messages import service
from shoal.frontend.grpc.submission import SubmittedMessage
from shoal.frontend.http.submission import HEADER_BYTES
from shoal.request import InferResponse, TensorRef
from shoal.shm.layout import R
from shoal.shm.port import Reply
from tests.frontend.grpc.submission_lane import PATTERN, Lane, grid
from tests.frontend.lane_star import DATATYPES, ONE, TWO, config, message

IDS = ["", "7", "10000", "é", "x" * 31, "x" * 32, "x" * 127, "x" * 128, "x" * 1024, "é" * 1024]


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane()
    yield lane
    lane.bell.close()


# --- requests ---


def test_only_id_and_tensors_of_a_known_request_are_new(lane: Lane) -> None:
    for number, id_ in enumerate([*IDS, *reversed(IDS)]):
        request = grid(ONE if number % 2 else TWO, id_)
        _, asked = lane.ask(request)
        assert lane.seen() == lane.road(request)
        assert (asked.id, asked.prepared.id, asked.found.entry.name) == (id_, id_, "grid")
        assert asked.template is not None
        lane.finish()
    assert len(lane.grpc._templates.entries) == 1


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
def test_the_clients_deadline_stands_in_each_record(lane: Lane, received: bool) -> None:
    for deadline_ns in (7, 0, 9):  # the first is not known yet
        lane.ask(grid(), received=received, deadline_ns=deadline_ns)
        lane.seen()
        assert lane.records[-1][R.DEADLINE_NS] == deadline_ns
        lane.finish()


def test_forms_are_by_what_the_message_says(lane: Lane) -> None:
    wide, same = grid(ONE + TWO), grid(model="same")
    with_output = grid()
    with_output.outputs.add(name="OUT_A")
    for _ in range(3):
        for request in (grid(), wide, same, with_output, grid(model_version="1")):
            lane.ask(request)
            assert lane.seen() == lane.road(request)
    lane.finish()


def test_a_received_message_stays_where_it_is(lane: Lane) -> None:
    for id_ in IDS:
        for _ in range(2):
            request = grid(TWO * 500, id_)
            lane.ask(request, received=True)
            assert lane.seen() == lane.road(request)
            assert lane.first_tensor_offset() % 64 == 0
            assert lane.port.slab.num_taken == 1
            lane.finish()


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
@pytest.mark.parametrize("num_parameters", [0, 300, 340])
def test_a_header_that_does_not_fit_behind_a_received_message(lane: Lane, num_parameters: int, received: bool) -> None:
    """12 bytes of the header each, of which a block of 32 KiB has 4096 left here."""
    request = grid(bytes(range(256)) * 80)
    for number in range(num_parameters):
        request.parameters[f"{number:02x}"].double_param = 1.5
    request.parameters["pad"].string_param = ""
    request.parameters["pad"].string_param = "x" * (32768 - 64 - HEADER_BYTES - request.ByteSize() - 6)
    assert 32768 - 4096 - 200 < request.ByteSize() < 32768 - 4096
    for _ in range(3):
        lane.ask(request, received=received)
        assert lane.seen() == lane.road(request)
        lane.finish()


def test_after_a_change_of_the_models_the_name_is_looked_up_again(lane: Lane) -> None:
    for _ in range(2):
        lane.ask(grid())
        assert lane.seen().model == 0
    lane.state.models.apply(message(40, config("grid", 0, ("A", "TYPE_FP32", [-1, -1]))))
    for received in (False, True):
        lane.ask(grid(), received=received)
        assert lane.seen().model == 40
    lane.state.models.apply(message(40, config("grid", 0), state="UNAVAILABLE", reason="unloaded", num_instances_up=0))
    for received in (False, True):
        with pytest.raises(NotFoundError):
            lane.ask(grid(), received=received)
    lane.finish()


def test_a_decoupled_model_is_asked_by_streams_only(lane: Lane) -> None:
    request = grid(ONE[:4], model="stream")
    request.inputs[0].shape[:] = [1]
    for received in (False, True):
        for is_stream in (False, True, True, False):
            if is_stream:
                _, asked = lane.ask(request, received=received, is_stream=True)
                assert asked.found.entry.is_decoupled
                assert lane.seen() == lane.road(request)
                continue
            sentence = r"^ModelInfer RPC doesn't support models with decoupled transaction policy$"
            with pytest.raises(UnsupportedError, match=sentence):
                lane.ask(request, received=received)
    lane.finish()


def test_what_its_client_wants_to_hear_of_the_end_is_kept(lane: Lane) -> None:
    request = grid(id_="7")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for _ in range(2):
        _, asked = lane.ask(request, is_stream=True)
        lane.seen()
        assert asked.found.wants_empty_final
        assert asked.prepared.wants_empty_final
        response = service.ModelStreamInferResponse.FromString(infer.empty_final(asked.prepared)).infer_response
        assert (response.id, response.model_name, response.model_version) == ("7", "grid", "1")
    lane.finish()


def test_metadata_that_is_forwarded_makes_every_request_another() -> None:
    lane = Lane(PATTERN)
    for user in ("", "a", "", "b"):
        metadata = {"x-user": user} if user else {}
        for received in (False, True):
            lane.ask(grid(), received=received, metadata=metadata)
            assert (seen := lane.seen()) == lane.road(grid(), metadata)
            assert seen.parameters == metadata
    lane.finish()
    lane.bell.close()


REFUSED: dict[str, tuple[type[ShoalError], Any, str]] = {
    "no message": (InternalError, b"\x0a\x05gri", "^Exception deserializing request!$"),
    "no text": (InternalError, b"\x0a\x01\xff\x1a\x01x", "^Exception deserializing request!$"),
    "no model": (NotFoundError, grid(model="nobody"), r"^Request for unknown model: 'nobody' is not found$"),
    "id": (InvalidArgumentError, grid(id_="x" * 1025), "^the request's 'id' has 1025 characters"),
    "size": (InvalidArgumentError, grid(ONE + b"1"), r"input byte size mismatch for input 'A' for model 'grid'"),
}


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_request_leaves_nothing(lane: Lane, case: str, received: bool) -> None:
    error, request, sentence = REFUSED[case]
    lane.ask(grid())
    lane.seen()
    lane.finish()
    for _ in range(2):
        with pytest.raises(error, match=sentence):
            lane.ask(request, received=received)
        assert (lane.port.slab.num_taken, lane.port.counts["requests_open"], lane.num_waiting()) == (0, 0, 0)


def test_a_known_message_with_an_id_that_is_no_text_is_refused(lane: Lane) -> None:
    lane.ask(grid(id_="x"))
    lane.seen()
    with pytest.raises(InternalError, match=r"^Exception deserializing request!$"):
        lane.ask(grid(id_="x").SerializeToString().replace(b"\x1a\x01x", b"\x1a\x01\xff"))


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_without_memory_a_request_is_refused_and_leaves_nothing(lane: Lane, is_known: bool) -> None:
    if is_known:
        lane.ask(grid())
        lane.seen()
        lane.finish()
    taken = [lane.port.allocate(32 * 4096), lane.port.allocate(32 * 4096)]
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        lane.ask(grid())
    assert (lane.port.slab.num_taken, lane.port.counts["requests_open"], lane.num_waiting()) == (2, 0, 0)
    for block in taken:
        lane.port.slab.free(block.ref)


def test_what_is_kept_is_bounded(lane: Lane) -> None:
    request = grid()
    for number in range(520):
        request.parameters["n"].int64_param = number
        lane.ask(request)
        lane.seen()
        lane.finish()
    request.parameters["n"].string_param = "x" * 5000
    lane.ask(request)
    lane.seen()
    assert 0 < len(lane.grpc._templates.entries) < 513
    assert len(lane.grpc._latest.entries) == 1


def test_whatever_is_asked_lane_and_road_give_workers_the_same(lane: Lane) -> None:
    dice = Random(5)
    for _ in range(150):
        request = service.ModelInferRequest(model_name="types", id=dice.choice(IDS[:5]))
        raws = []
        is_typed = dice.random() < 0.2
        for datatype in dice.sample(DATATYPES, dice.randrange(4)):
            shape = [dice.randrange(3), dice.randrange(3)]
            tensor = request.inputs.add(name=datatype, datatype=datatype, shape=shape)
            if is_typed and datatype in ("INT32", "BYTES"):
                field = tensor.contents.int_contents if datatype == "INT32" else tensor.contents.bytes_contents
                field.extend([7 if datatype == "INT32" else b"x"] * (shape[0] * shape[1]))
                tensor.contents.SetInParent()
            elif is_typed:
                request.inputs.pop()
            elif datatype == "BYTES":
                raws.append(b"\1\0\0\0x" * (shape[0] * shape[1]))
            else:
                nbytes = {"BOOL": 1, "UINT8": 1}.get(datatype) or int(datatype.lstrip("UINTFP")) // 8
                raws.append(bytes([dice.randrange(2)]) * (nbytes * shape[0] * shape[1]))
        request.raw_input_contents.extend(raws)
        if dice.random() < 0.5:
            request.outputs.add(name="OUT_INT32")
        if dice.random() < 0.5:
            request.parameters["sequence_id"].int64_param = 3
            request.parameters["p"].string_param = "v"
        expected = lane.road(request)
        for received in (False, True, False):
            _, asked = lane.ask(request, received=received)
            assert lane.seen() == expected
            assert (asked.template is not None) is (
                bool(raws) and not any(each.datatype == "BYTES" for each in request.inputs)
            )
            lane.finish()


# --- responses ---

OUT = TensorRef("OUT_A", 11, (1, 2), 0, 8)


def replied(
    lane: Lane, response: InferResponse, data: bytes = ONE, id_: str = "7", **more: Any
) -> tuple[SubmittedMessage, Reply]:
    request = grid(id_=id_)
    for name in more:
        request.outputs.add(name=name)
    number, asked = lane.ask(request)
    lane.seen()
    return asked, lane.reply(number, response, data)


def check_response(lane: Lane, asked: SubmittedMessage, reply: Reply, response: InferResponse) -> None:
    """As the road would answer, and each of its ways."""
    assert reply.block is not None
    for stream, final in ((False, True), (True, False), (True, True)):
        kind = service.ModelStreamInferResponse if stream else service.ModelInferResponse
        expected = b"".join(infer.render(asked.prepared, response, reply.block, final=final if stream else None))
        chunks = lane.grpc.response(asked, reply, stream=stream, final=final)
        assert b"".join(chunks) == expected
        assert kind.FromString(expected).ByteSize() == len(expected)


def test_a_known_response_is_what_the_road_sends(lane: Lane) -> None:
    other = OUT._replace(name="OTHER", datatype=13, shape=(1,), offset=8, nbytes=5)
    empty = OUT._replace(name="EMPTY", shape=(1, 0), offset=13, nbytes=0)
    for number, data in enumerate((ONE, TWO, ONE)):
        for response in (
            InferResponse((OUT,), {}),
            InferResponse((OUT, other, empty), {"p": number}),
            InferResponse((other, OUT), {"d": 0.5}),
            InferResponse((), {}),
        ):
            asked, reply = replied(lane, response, data + b"\1\0\0\0x", str(10**number))
            for _ in range(2):
                check_response(lane, asked, reply, response)
            assert len(lane.grpc.response(asked, reply, stream=True)) == 1, "a small one of a stream is joined"


def test_only_the_outputs_that_were_asked_for_are_sent(lane: Lane) -> None:
    response = InferResponse((OUT._replace(name="X"), OUT), {})
    for _ in range(2):
        asked, reply = replied(lane, response, OUT_A=True)
        check_response(lane, asked, reply, response)
        sent = service.ModelInferResponse.FromString(b"".join(lane.grpc.response(asked, reply)))
        assert [output.name for output in sent.outputs] == ["OUT_A"]


def test_a_large_tensor_is_sent_from_where_it_lies(lane: Lane) -> None:
    data = bytes(range(256)) * 100
    response = InferResponse((OUT._replace(shape=(1, 6400), nbytes=25600),), {})
    for _ in range(2):
        request = grid(id_="7")
        number, asked = lane.ask(request)
        lane.seen()
        reply = lane.reply(number, response, data, nbytes=32768)
        check_response(lane, asked, reply, response)
        _, tensor = lane.grpc.response(asked, reply)
        assert isinstance(tensor, memoryview)
        assert reply.block is not None
        assert tensor.obj is reply.block.obj


def test_classes_are_worked_out_each_time(lane: Lane) -> None:
    request = grid()
    request.outputs.add(name="OUT_A").parameters["classification"].int64_param = 1
    texts = []
    for data in (ONE, TWO, TWO[4:] + TWO[:4]):
        number, asked = lane.ask(request)
        lane.seen()
        response = InferResponse((OUT,), {})
        reply = lane.reply(number, response, data)
        check_response(lane, asked, reply, response)
        sent = service.ModelInferResponse.FromString(b"".join(lane.grpc.response(asked, reply)))
        texts.append(sent.raw_output_contents[0][4:])
    assert texts == [b"2.000000:1", b"4.000000:1", b"4.000000:0"]


def test_a_worker_that_says_the_same_of_a_smaller_block_is_not_believed(lane: Lane) -> None:
    response = InferResponse((OUT._replace(shape=(1, 2000), nbytes=8000),), {})
    asked, reply = replied(lane, response, bytes(8000))
    lane.grpc.response(asked, reply)
    number, asked = lane.ask(grid())
    lane.seen()
    with pytest.raises(InternalError, match="damaged"):
        lane.grpc.response(asked, lane.reply(number, response, b"", nbytes=4096))


def test_an_error_is_raised_and_the_next_response_is_as_ever(lane: Lane) -> None:
    check_response(lane, *replied(lane, response := InferResponse((OUT,), {})), response)
    (failed, first), _ = lane.ask(grid(id_="7")), lane.seen()
    with pytest.raises(InvalidArgumentError, match=r"^no$"):
        lane.grpc.response(first, lane.fail(failed, 4, b"no"))
    (gone, second), _ = lane.ask(grid(id_="7")), lane.seen()
    with pytest.raises(CancelledError):
        lane.grpc.response(second, lane.refuse(gone))
    check_response(lane, *replied(lane, response), response)
