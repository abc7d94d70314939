"""ModelInferRequests made and damaged by seeded dice, and protobuf's own parser as their judge."""

from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from shoal.errors import InternalError
from shoal.frontend.grpc import infer
from shoal.frontend.grpc.messages import service

NAMES = ["", "m", "écho b", "A" * 130]
IDS = ["", "7", "é", "x" * 31, "x" * 127, "x" * 128, "x" * 400]
VALUES = [True, False, 0, -1, 127, 128, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 0.5, -0.0, float("inf"), "", "é" * 70]

#: Fields that no ModelInferRequest has, each whole: of every wire type, and known numbers with another type.
UNKNOWN = {
    "varint": b"\x40\xac\x02", "fixed64": b"\x4112345678", "fixed32": b"\x451234", "bytes": b"\x42\x03abc",
    "group": b"\x4b\x08\x05\x4c", "nested": b"\x4b\x53\x52\x01x\x54\x09abcdefgh\x4c",
    "large number": b"\xf2\xff\xff\xff\x0f\x01z", "raw as varint": b"\x38\x07", "id as group": b"\x1b\x1c",
}  # fmt: skip

MALFORMED = {
    "cut in a tag": b"\x0a", "cut in a length": b"\x0a\x80", "cut in a value": b"\x0a\x05ab", "number 0": b"\x02\x00",
    "type 6": b"\x46\x00", "type 7": b"\x47\x00", "end of no group": b"\x4c", "other end": b"\x4b\x54",
    "open group": b"\x4b\x08\x01", "endless number": b"\x40" + b"\xff" * 11, "endless tag": b"\xff" * 11 + b"\x01",
    "id not UTF-8": b"\x1a\x01\xff\x1a\x017", "name not UTF-8": b"\x0a\x01\xff", "huge": b"\x3a\xff\xff\xff\xff\x0f",
    "deep": b"\x4b" * 200 + b"\x4c" * 200,
}  # fmt: skip
FRAGMENTS = [*UNKNOWN.values(), *MALFORMED.values()]


def set_parameters(message: Any, parameters: dict[str, Any]) -> None:
    for key, value in parameters.items():
        large = type(value) is int and value >= 2**63
        kinds = {bool: "bool_param", int: "uint64_param" if large else "int64_param", float: "double_param"}
        setattr(message.parameters[key], kinds.get(type(value), "string_param"), value)


def parameters_of(dice: Random) -> dict[str, Any]:
    return {key: dice.choice(VALUES) for key in dice.sample(NAMES, dice.choice([0, 0, 1, 2]))}


def shape_of(dice: Random, lowest: int) -> list[int]:
    return [dice.choice([lowest, 1, 127, 128, 2**40, 2**63 - 1]) for _ in range(dice.choice([0, 1, 2, 40]))]


def request_of(dice: Random) -> Any:
    request = service.ModelInferRequest(model_name=dice.choice(NAMES), model_version=dice.choice(["", "1"]))
    request.id = dice.choice(IDS)
    set_parameters(request, parameters_of(dice))
    for _ in range(dice.randrange(3)):
        tensor = request.inputs.add(name=dice.choice(NAMES), datatype="FP32", shape=shape_of(dice, -1))
        if dice.random() < 0.2:
            tensor.contents.fp32_contents.extend([1.5] * dice.randrange(5))
        request.outputs.add(name=dice.choice(NAMES))
    request.raw_input_contents.extend([dice.randbytes(dice.choice([0, 1, 64, 300])) for _ in range(dice.randrange(4))])
    return request


def damaged(dice: Random, message: bytes) -> bytes:
    changed = bytearray(message)
    for _ in range(dice.randrange(1, 4)):
        place = dice.randrange(len(changed) + 1)
        match dice.randrange(4):
            case 0 if changed:
                changed[place - 1] = dice.choice([0, 1, 0x0A, 0x1A, 0x3A, 0x3B, 0x3C, 0x7F, 0x80, 0xFF])
            case 1:
                del changed[place:]
            case 2:
                changed[place:place] = dice.choice(FRAGMENTS)
            case _:
                changed[place:place] = dice.randbytes(dice.randrange(6))
    return bytes(changed)


def check_split(message: bytes) -> Any:
    """The request as upb parses it; None where upb and we refuse it."""
    try:
        whole = service.ModelInferRequest.FromString(message)
    except DecodeError:
        try:
            infer.parse(message)
        except InternalError:
            return None
        raise AssertionError(f"upb refuses {message!r}") from None
    request, raws = infer.parse(message)
    assert [bytes(raw) for raw in raws] == list(whole.raw_input_contents)
    del whole.raw_input_contents[:]
    assert request.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)
    return whole
