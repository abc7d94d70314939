"""frontend/grpc/wire.py against upb: what is split is what upb parses, what is assembled is what upb serialises.

Messages are made and damaged by seeded dice (diced_messages.py): 25 times as many in a second as hypothesis makes.
"""

from random import Random
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.grpc import wire
from shoal.frontend.grpc.messages import service
from tests.frontend.grpc.diced_messages import (
    IDS,
    MALFORMED,
    NAMES,
    UNKNOWN,
    check_split,
    damaged,
    parameters_of,
    request_of,
    set_parameters,
    shape_of,
)

# --- split ---


def test_a_message_splits_as_upb_parses_it() -> None:
    dice = Random(1)
    num_refused = 0
    for _ in range(1000):
        request = request_of(dice)
        message = request.SerializeToString()
        assert check_split(message) is not None
        num_refused += check_split(damaged(dice, message)) is None
        split = wire.split(message)
        assert split == wire.split(memoryview(message))
        first = split.offsets[0] if split.offsets else None
        assert wire.first_raw_offset(message) == first
        assert wire.first_raw_offset(message[:first]) == first
        request.id = ""
        del request.raw_input_contents[:]
        assert service.ModelInferRequest.FromString(split.skeleton) == request
    assert 300 < num_refused < 900


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_field_of_a_newer_protocol_stays_with_the_skeleton(kind: str) -> None:
    plain = service.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"ab"]).SerializeToString()
    for message in (plain + UNKNOWN[kind], UNKNOWN[kind] + plain):
        assert check_split(message).id == "7"
        split = wire.split(message)
        assert UNKNOWN[kind] in split.skeleton
        assert message[split.offsets[0] :][:2] == b"ab"
        for end in range(len(UNKNOWN[kind])):
            check_split(plain + UNKNOWN[kind][:end])


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("before", [b"", b"\x0a\x01m"])
def test_what_is_no_message_is_refused_as_upb_does(kind: str, before: bytes) -> None:
    assert check_split(before + MALFORMED[kind]) is None
    assert wire.first_raw_offset(before + MALFORMED[kind]) is None


def test_the_last_of_several_ids_counts() -> None:
    assert check_split(b"\x1a\x01a\x0a\x01m\x1a\x01b").id == "b"


def test_the_number_of_fields_is_bounded() -> None:
    assert len(wire.split(b"\x32\x00" * 65536).skeleton) == 2 * 65536
    with pytest.raises(InvalidArgumentError, match=r"^the request has more than 65536 inputs, outputs and parameters$"):
        wire.split(b"\x32\x00" * 65537)


# --- templates ---


def check_match(pattern: wire.WirePattern, message: bytes) -> bool:
    """Whether a message is of that template, and then found as a split finds it."""
    found = wire.match(pattern, message)
    if found is None:
        return False
    try:
        split = wire.split(message)
    except ShoalError:  # the id alone is not checked
        assert not found[0].isascii()
        return True
    places = zip(split.offsets, split.lengths, strict=True)
    assert found == (split.id.encode(), [message[start : start + nbytes] for start, nbytes in places])
    return True


def test_a_template_finds_what_a_split_finds() -> None:
    dice = Random(2)
    for _ in range(1000):
        request = request_of(dice)
        message = request.SerializeToString()
        pattern = wire.make_pattern(message, wire.split(message))
        assert (pattern is None) is (len(request.id.encode()) > 127)
        if pattern is None:
            continue
        check_match(pattern, damaged(dice, message))
        check_match(pattern, request_of(dice).SerializeToString())
        request.id = dice.choice(IDS)
        request.raw_input_contents[:] = [b"x" * len(raw) for raw in request.raw_input_contents]
        again = request.SerializeToString()
        assert check_match(pattern, again) is (len(request.id.encode()) <= 127)
        assert not check_match(pattern, again[:-1])
        assert not check_match(pattern, again + b"\x32\x00")


def test_an_unusual_message_has_no_template() -> None:
    for message in (b"\x0a\x01m\x1a\x01a\x1a\x01b", b"\x0a\x01m\x1a\x81\x00a"):
        assert wire.make_pattern(message, wire.split(message)) is None


# --- assemble ---


def check_same(written: bytes, expected: Any) -> None:
    """Byte for byte, but for the order of a map's entries, which is upb's own affair."""
    serialized = expected.SerializeToString()
    assert type(expected).FromString(written) == expected
    assert sorted(written) == sorted(serialized)
    response = getattr(expected, "infer_response", expected)
    assert written == serialized or len(response.parameters) > 1


def test_a_response_is_what_upb_would_write() -> None:
    dice = Random(3)
    for _ in range(1000):
        name, id_, parameters = dice.choice(NAMES), dice.choice(IDS), parameters_of(dice)
        outputs = [
            (dice.choice(NAMES), "BYTES", shape_of(dice, 0), dice.randbytes(dice.choice([0, 1, 64, 300])))
            for _ in range(dice.randrange(4))
        ]
        expected = service.ModelInferResponse(model_name=name, model_version="12", id=id_)
        set_parameters(expected, parameters)
        for output, datatype, shape, data in outputs:
            expected.outputs.add(name=output, datatype=datatype, shape=shape)
            expected.raw_output_contents.append(data)
        around = wire.envelope(name, "12", parameters, [wire.OutputTensor(*output) for output in outputs])
        raws = [memoryview(data) for _, _, _, data in outputs]
        chunks = wire.assemble(around, id_, raws)
        check_same(b"".join(chunks), expected)
        assert all(sent is raw for sent, raw in zip(chunks[1::2], raws, strict=True)), "a copy"
        streamed = service.ModelStreamInferResponse(infer_response=expected)
        check_same(b"".join(wire.assemble(around, id_, raws, is_streamed=True)), streamed)


@pytest.mark.parametrize("final", [None, False, True])
@pytest.mark.parametrize("texts", [("", "", ""), ("no", "", "m"), ("x" * 200, "é", "")])
def test_an_error_of_a_stream_is_what_upb_would_write(texts: tuple[str, str, str], final: bool | None) -> None:
    sentence, id_, name = texts
    response = service.ModelInferResponse(model_name=name, model_version="3", id=id_)
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    expected = service.ModelStreamInferResponse(error_message=sentence, infer_response=response)
    assert wire.stream_error(sentence, id_, name, "3", final=final) == expected.SerializeToString()
