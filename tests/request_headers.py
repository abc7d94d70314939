"""Headers of requests, right or damaged, written without shoal/request.py, whose form they have."""

import struct
from typing import Any

import msgpack


def request_header(*fields: Any) -> bytes:
    """A header of id, inputs, requested outputs, parameters and, where there are five, sequence, of any kind; fewer
    are a damaged one."""
    layout = packed(fields[1:3])
    return struct.pack("<I", len(layout)) + layout + packed((*fields[:1], *fields[3:]))


def read_header(header: bytes) -> tuple[Any, ...]:
    """The fields of a header, as tuples; without the outputs that may stay on a GPU (`read_stays`)."""
    (nbytes,) = struct.unpack_from("<I", header)
    inputs, outputs, *_ = msgpack.unpackb(header[4 : 4 + nbytes], use_list=False)
    id_, *more = msgpack.unpackb(header[4 + nbytes :], use_list=False)
    return id_, inputs, outputs, *more


def read_stays(header: bytes) -> tuple[Any, ...]:
    """The outputs in a header that may stay on a GPU."""
    (nbytes,) = struct.unpack_from("<I", header)
    _, _, *stays = msgpack.unpackb(header[4 : 4 + nbytes], use_list=False)
    return stays[0] if stays else ()


def packed(value: Any) -> bytes:
    """A part of a header."""
    return msgpack.packb(value)  # type: ignore[no-any-return]
