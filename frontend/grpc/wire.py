"""protobuf's wire format, written and read by hand for messages with tensors: no tensor is copied into protobuf's
objects. Pure.

A ModelInferRequest is split into a part that protobuf parses (everything but the id and the tensors: equal, byte for
byte, from request to request) and the places of its tensors. A ModelInferResponse is put together around the model's
tensors, as SerializeToString of protobuf's library (upb) would write it; a map's entries come in the order in which
they are given.

    field     a varint, number << 3 | wire type, then by wire type:
    0         a varint: 7 bits a byte, least significant first, the top bit set if another follows
    1, 5      8 or 4 bytes
    2         a varint, the number of bytes, and these bytes
    3, 4      the begin and the end of a group, whose fields stand between them
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.errors import InternalError, InvalidArgumentError
from shoal.repository.identifier import MAX_NAME_BYTES

Chunks = list["bytes | memoryview"]

#: The most fields of a message (ours: a message with 10,000 tensors has 20,000). Each field is walked in Python, and
#: two bytes make a field: a message of 1 GiB could have 500 million.
MAX_FIELDS = 1 << 16
#: gRPC's own limit for a message; Triton answers with an error in place of a longer response.
MAX_MESSAGE_NBYTES = 2**31 - 1

#: The parameter of a streamed response that says whether it is the request's last.
FINAL = "triton_final_response"

# Fields of ModelInferRequest, all of wire type 2.
_MODEL_NAME, _ID, _RAW = 0x0A, 0x1A, 0x3A
_SET_APART = (_ID, _RAW)
_KNOWN = frozenset(range(0x0A, _RAW + 1, 8))
_LENGTH_DELIMITED, _END_GROUP = 2, 4
_MAX_NESTING = 100  # upb's
_DOUBLE = struct.Struct("<d")


#: Bytes in front of an id or a name of at most 127 bytes: a tag, and a length.
ID_HEAD_BYTES = 2
#: The most bytes of a message that `leading_text` reads; the length of a name of more than 127 bytes takes two bytes.
MAX_LEADING_BYTES = ID_HEAD_BYTES + 1 + MAX_NAME_BYTES


class Split(NamedTuple):
    """A split ModelInferRequest. `skeleton` is what protobuf parses: the request without its id and
    raw_input_contents."""

    skeleton: bytes
    id: str
    offsets: tuple[int, ...]  # offsets of the raw tensors from the message's start
    lengths: tuple[int, ...]
    id_start: int  # start of the id's field; without an id, of the first field behind the id's place
    num_ids: int


def split(message: bytes | memoryview) -> Split:
    """Walk the fields of a ModelInferRequest. Raises InternalError for bytes that are no message,
    InvalidArgumentError for more than MAX_FIELDS fields."""
    end = len(message)
    position = kept = num_ids = id_start = 0
    parts: list[bytes | memoryview] = []
    offsets: list[int] = []
    lengths: list[int] = []
    id_ = ""
    try:
        for _ in range(MAX_FIELDS):
            if position >= end:
                break
            start = position
            tag, nbytes = message[start], message[start + 1]
            position = start + 2
            if nbytes > 0x7F or tag not in _KNOWN:
                tag, nbytes, position = _field(message, start, end)
            if tag in _SET_APART:
                if start != kept:
                    parts.append(message[kept:start])
                kept = position + nbytes
                if tag == _RAW:
                    offsets.append(position)
                    lengths.append(nbytes)
                else:
                    id_, id_start, num_ids = bytes(message[position:kept]).decode(), start, num_ids + 1
            position += nbytes
            if not num_ids and tag < _ID:
                id_start = position
        if position < end:
            raise InvalidArgumentError(f"the request has more than {MAX_FIELDS} inputs, outputs and parameters")
        if position > end:
            raise IndexError(position)
        if kept != end:
            parts.append(message[kept:])
        return Split(b"".join(parts), id_, tuple(offsets), tuple(lengths), id_start, num_ids)
    except (IndexError, ValueError) as error:
        raise malformed() from error


class WirePattern(NamedTuple):
    """A ModelInferRequest without its id and the bytes of its raw tensors."""

    before: bytes  # bytes before the id
    parts: tuple[tuple[bytes, int], ...]  # the bytes before each tensor, and the tensor's size
    behind: bytes  # bytes after the last tensor


def make_pattern(message: bytes, found: Split) -> WirePattern | None:
    """The pattern of a message that was split; None for an unusual message, such as one with two ids."""
    if found.num_ids > 1:
        return None
    position = found.id_start + (len(string(_ID, found.id)) if found.num_ids else 0)
    parts = []
    for offset, nbytes in zip(found.offsets, found.lengths, strict=True):
        parts.append((message[position:offset], nbytes))
        position = offset + nbytes
    pattern = WirePattern(message[: found.id_start], tuple(parts), message[position:])
    return pattern if match(pattern, message) is not None else None


def match(pattern: WirePattern, message: bytes) -> tuple[bytes, list[bytes]] | None:
    """The id of a message of this pattern, and its raw tensors; None for any other message.

    `match` takes 7 thousand instructions for a message, `split` 21 thousand.
    """
    before, parts, behind = pattern
    position, end, id_ = len(before), len(message), b""
    if not message.startswith(before):
        return None
    if position + 1 < end and message[position] == _ID:
        start, nbytes = position + 2, message[position + 1]
        if nbytes > 0x7F:
            return None
        position = start + nbytes
        id_ = message[start:position]
    tensors = []
    for text, nbytes in parts:
        if not message.startswith(text, position):
            return None
        start = position + len(text)
        position = start + nbytes
        tensors.append(message[start:position])
    return (id_, tensors) if position + len(behind) == end and message.endswith(behind) else None


def malformed() -> InternalError:
    """The refusal of bytes that are no ModelInferRequest, in grpcio's words."""
    return InternalError("Exception deserializing request!")


def leading_text(start: bytes | memoryview) -> bytes:
    """The value of field 1 if a message begins with that field, which is the model's name in all of Triton's and
    TorchServe's requests for a model that name no repository. b"" if `start`, the message's first bytes, does not have
    all of the value, or the value is longer than a name may be."""
    if len(start) <= ID_HEAD_BYTES or start[0] != _MODEL_NAME:
        return b""
    nbytes, begins = start[1], ID_HEAD_BYTES
    if nbytes & 0x80:
        nbytes, begins = nbytes & 0x7F | start[2] << 7, ID_HEAD_BYTES + 1
    name = bytes(start[begins : begins + min(nbytes, MAX_NAME_BYTES)])
    return name if len(name) == nbytes else b""


def first_raw_offset(start: bytes | memoryview) -> int | None:
    """The offset of the first raw tensor in a ModelInferRequest; None if it is not within `start`, the message's first
    bytes."""
    position, end = 0, len(start)
    try:
        while position < end:
            tag, nbytes, position = _field(start, position, end)
            if tag == _RAW:
                return position
            position += nbytes
    except (IndexError, ValueError):
        pass  # cut short, or malformed: the parser of the whole message refuses it
    return None


def _field(message: bytes | memoryview, position: int, end: int) -> tuple[int, int, int]:
    """Tag, number of bytes and offset of the value of the field at `position`; the value may end behind `end`, which is
    not checked here."""
    tag, position = _varint(message, position)
    kind = tag & 7
    if tag >> 3 == 0 or tag > 0xFFFFFFFF:
        raise ValueError("a field's number is 0, or too large")
    if kind == _LENGTH_DELIMITED:
        nbytes, position = _varint(message, position)
        if nbytes > MAX_MESSAGE_NBYTES:
            raise ValueError("a field is too long")
        return tag, nbytes, position
    return tag, _skip(message, tag, position, end) - position, position


def _skip(message: bytes | memoryview, tag: int, position: int, end: int) -> int:
    """The end of the value that begins at `position`, of any wire type but 2."""
    open_groups: list[int] = []
    while True:
        kind = tag & 7
        if kind == 0:
            position = _varint(message, position)[1]
        elif kind == 1:
            position += 8
        elif kind == 5:
            position += 4
        elif kind == _LENGTH_DELIMITED:
            nbytes, position = _varint(message, position)
            position += nbytes
        elif kind == 3 and len(open_groups) < _MAX_NESTING:
            open_groups.append(tag >> 3)
        elif kind != _END_GROUP or not open_groups or open_groups.pop() != tag >> 3:
            raise ValueError("a field of no known kind, or a group without a beginning")
        if not open_groups:
            return position
        if position >= end:
            raise IndexError(position)
        tag, position = _varint(message, position)


def _varint(message: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at `position`, and the position behind it."""
    value = shift = 0
    while shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number of more than ten bytes")


# ---------------------------------------------------------------------------------------------------------------
# The response


class OutputTensor(NamedTuple):
    """An output of a ModelInferResponse: `datatype` is Triton's name, `data` goes to raw_output_contents."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | memoryview


class Envelope(NamedTuple):
    """The bytes, around the id and the tensors, that the responses to requests of one template have in common."""

    model: bytes  # before the id
    parts: tuple[bytes, ...]  # after the id, up to the first tensor, and then before each further one
    nbytes: int  # size of all these bytes and of the tensors together


def envelope(
    model_name: str,
    model_version: str,
    parameters: Mapping[str, str | int | float | bool],
    outputs: Iterable[OutputTensor],
) -> Envelope:
    """The envelope of a response with these outputs."""
    model = string(0x0A, model_name) + string(0x12, model_version)
    rest = [parameter(0x22, key, value) for key, value in parameters.items()]
    raws, num_raw = [], 0
    for name, datatype, shape, data in outputs:
        dims = b"".join([varint(dim) for dim in shape])
        rest.append(delimited(0x2A, string(0x0A, name) + string(0x12, datatype) + (dims and delimited(0x1A, dims))))
        raws.append(b"\x32" + varint(len(data)))
        num_raw += len(data)
    parts = (b"".join([*rest, *raws[:1]]), *raws[1:])
    return Envelope(model, parts, len(model) + sum([len(part) for part in parts]) + num_raw)


def named(id_: str) -> bytes:
    """The field of an id; b"" for an empty id."""
    return string(_ID, id_) if id_ else b""


def assemble(around: Envelope, id_: str, raws: Sequence[bytes | memoryview], *, is_streamed: bool = False) -> Chunks:
    """The ModelInferResponse, or a ModelStreamInferResponse with it, in pieces; tensors are not copied."""
    model, parts, nbytes = around
    id_field = named(id_)
    head = model + id_field + parts[0]
    if is_streamed:
        head = b"\x12" + varint(nbytes + len(id_field)) + head
    chunks: Chunks = [head, *raws[:1]]
    if len(raws) > 1:
        for part, data in zip(parts[1:], raws[1:], strict=True):
            chunks += (part, data)
    return chunks


def stream_error(sentence: str, id_: str, model_name: str, model_version: str, *, final: bool | None = None) -> bytes:
    """A ModelStreamInferResponse with the failed request's id and model, and the error's sentence.

    `final`: whether this is the request's last response; None for a request that was never submitted.
    """
    response = string(0x0A, model_name) + string(0x12, model_version) + string(0x1A, id_)
    if final is not None:
        response += parameter(0x22, FINAL, final)
    return string(0x0A, sentence) + delimited(0x12, response)


# ---------------------------------------------------------------------------------------------------------------
# Fields


def varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1 as a varint."""
    if value < 0x80:
        return _SMALL[value]
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


_SMALL = [bytes([value]) for value in range(0x80)]


def delimited(tag: int, data: bytes) -> bytes:
    """A field of wire type 2 whose tag takes one byte."""
    nbytes = len(data)
    return _SMALL[tag] + (_SMALL[nbytes] if nbytes < 0x80 else varint(nbytes)) + data


def string(tag: int, text: str) -> bytes:
    """A string field; b"" for an empty string."""
    return delimited(tag, text.encode()) if text else b""


def parameter(tag: int, key: str, value: str | int | float | bool) -> bytes:
    """An entry of a map from string to InferParameter. A number beyond int64 is an uint64."""
    if type(value) is bool:
        choice = b"\x08\x01" if value else b"\x08\x00"
    elif isinstance(value, int):
        choice = (b"\x10" if value < 1 << 63 else b"\x28") + varint(value & 2**64 - 1)
    elif isinstance(value, float):
        choice = b"\x21" + _DOUBLE.pack(value)
    else:
        choice = delimited(0x1A, value.encode())
    return delimited(tag, delimited(0x0A, key.encode()) + delimited(0x12, choice))
