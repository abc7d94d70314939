"""Headers that repeat and differ only in their tensors' offsets: packed once, with holes. Pure.

A number in a hole always has the longest of msgpack's forms: 0xcf and eight bytes, most significant first.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import msgpack

from shoal.request import Parameters, Stay, layout_head

#: The properties of a tensor that repeat from request to request: wire number of the datatype (with PLACED: on a GPU),
#: shape, size in bytes.
TensorType = tuple[int, tuple[int, ...], int]
_UINT64 = b"\xcf"
_HOLE_BYTES = 8


class Template:
    """Packed bytes with holes between them."""

    __slots__ = ("_pack", "_values")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pack = Struct(">" + "Q".join([f"{len(piece)}s" for piece in pieces])).pack
        # Changed by fill: pieces and numbers, alternating.
        self._values: list[Any] = [0] * (2 * len(pieces) - 1)
        self._values[::2] = pieces

    def fill(self, numbers: Sequence[int]) -> bytes:
        """The packed bytes with these numbers, one for each hole."""
        self._values[1::2] = numbers
        return self._pack(*self._values)


def step_template(
    tensors: Sequence[tuple[str, TensorType]], outputs: Sequence[str], stays: Sequence[Stay] = ()
) -> Template:
    """The template of the header of a step's request; each input has two holes, for its offset and its block."""
    pieces = [_array_head(3 if stays else 2) + _array_head(len(tensors))]
    for name, (wire, shape, nbytes) in tensors:
        pieces[-1] += _array_head(6) + packed(name) + packed(wire) + packed(shape) + _UINT64
        pieces += [packed(nbytes) + _UINT64, b""]
    pieces[-1] += packed(outputs) + (packed(stays) if stays else b"")
    nbytes = sum([len(piece) for piece in pieces]) + _HOLE_BYTES * (len(pieces) - 1)
    return Template([layout_head(nbytes) + pieces[0], *pieces[1:]])


def outputs_template(tensors: Sequence[tuple[str, TensorType]]) -> Template:
    """The template of the outputs in a response's header; each output has one hole, for its offset."""
    pieces = [_array_head(len(tensors))]
    for name, (wire, shape, nbytes) in tensors:
        pieces[-1] += _array_head(5) + packed(name) + packed(wire) + packed(shape) + _UINT64
        pieces.append(packed(nbytes))
    return Template(pieces)


def packed(value: str | int | Sequence[object] | Parameters) -> bytes:
    """A part of a header, packed by msgpack."""
    return msgpack.packb(value)  # type: ignore[no-any-return]


def response_header(outputs: bytes, parameters: Parameters) -> bytes:
    """A response's header around the bytes of a filled `outputs_template`."""
    return b"\x92" + outputs + (packed(parameters) if parameters else b"\x80")


def _array_head(length: int) -> bytes:
    return msgpack.Packer().pack_array_header(length)  # type: ignore[no-any-return]
