"""Recognition of a ModelInfer call that repeats an earlier one, byte for byte, but for its stream, its trace, its id
and its tensors. Pure.

Clients repeat their calls. The bytes of the first such call were parsed as HTTP/2, gRPC and protobuf; here later ones
are recognised without parsing. That saves a lane a third of its instructions for a small call (measured:
bench/lane_cost.py). Common and differing parts alternate:

    text        length, kind and flags of HEADERS
    4 bytes     the stream
    text        the header block up to the value of a trace's or request id's field, if it has such fields
    value       and a text behind it, and so on; at its end length, kind and flags of DATA
    4 bytes     the stream again
    text        gRPC's prefix; the message up to its id, with the id's length
    id
    text        up to the first tensor
    tensor      and a text behind it, and so on
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from shoal.frontend.grpc import wire
from shoal.frontend.grpc.call import Opening
from shoal.frontend.grpc.framing import PREFIX_BYTES
from shoal.frontend.grpc.http2.events import DataReceived, Event, RequestStarted
from shoal.frontend.grpc.http2.frames import END_HEADERS, END_STREAM, HEAD_BYTES
from shoal.frontend.grpc.http2.header_blocks import KnownBlock, with_own_values
from shoal.frontend.grpc.submission import MessageTemplate, RegionTemplate

#: Parts of a frame's head: length, kind and flags; then the stream's number, which ends it.
_FLAGS, _KIND_BYTES = 4, 5


class KnownCall(NamedTuple):
    """The bytes that calls of one template have in common: HEADERS, and DATA with one message."""

    layout: Struct
    texts: tuple[bytes, ...]
    nbytes: int
    num_data: int  # bytes of DATA
    data_at: int  # position of DATA's stream among the pieces
    block: KnownBlock  # of HEADERS
    opening: Opening
    template: MessageTemplate | RegionTemplate

    def read(self, data: bytes, position: int) -> tuple[int, bytes, Sequence[bytes], Sequence[bytes]] | None:
        """Stream, id and tensors of a call of this template, whose bytes begin at `position`, and the values of its own
        headers; None for any other bytes."""
        pieces, data_at = self.layout.unpack_from(data, position), self.data_at
        number, id_ = pieces[1], pieces[data_at + 2]
        if pieces[::2] != self.texts or number != pieces[data_at] or not id_.isascii():
            return None
        return int.from_bytes(number, "big"), id_, pieces[data_at + 4 :: 2], pieces[3:data_at:2]

    def opening_with(self, values: Sequence[bytes]) -> Opening | None:
        """The opening of a call whose own headers have these values; None if one is malformed."""
        metadata = with_own_values(self.block.headers, [each.name for each in self.block.own], values)
        return None if metadata is None else self.opening._replace(metadata=metadata)


def learn(
    data: bytes,
    events: Sequence[Event],
    find: Callable[[bytes], KnownBlock | None],
    opening: Opening,
    template: MessageTemplate | RegionTemplate,
) -> KnownCall | None:
    """The template of the first call in `data`, whose events were `events`; None for an unusual call. `find` is
    HeaderBlocks.find of its connection."""
    started, body = events[:2]
    if not (isinstance(started, RequestStarted) and isinstance(body, DataReceived)) or template.pattern is None:
        return None
    block_end = HEAD_BYTES + int.from_bytes(data[:3], "big")
    start = block_end + HEAD_BYTES + PREFIX_BYTES
    end = block_end + HEAD_BYTES + len(body.data)
    message = data[start:end]
    # Frames without padding and priority, the second of which ends the stream.
    block = find(data[HEAD_BYTES:block_end])
    if (
        block is None
        or data[_FLAGS] != END_HEADERS
        or data[block_end + _FLAGS] != END_STREAM
        or data[start - PREFIX_BYTES : end] != body.data
        or wire.match(template.pattern, message) is None
    ):
        return None
    found = wire.split(message)
    id_nbytes = len(found.id.encode())
    id_start = start + found.id_start + (wire.ID_HEAD_BYTES if id_nbytes else 0)
    differing = [
        (_KIND_BYTES, HEAD_BYTES),
        *[(HEAD_BYTES + begin, HEAD_BYTES + stop) for _, begin, stop in block.own],
        (block_end + _KIND_BYTES, block_end + HEAD_BYTES),
        (id_start, id_start + id_nbytes),
        *[
            (start + offset, start + offset + nbytes)
            for offset, nbytes in zip(found.offsets, found.lengths, strict=True)
        ],
    ]
    edges = [0, *[edge for span in differing for edge in span], end]
    sizes = [after - before for before, after in pairwise(edges)]
    layout = Struct("=" + "".join([f"{nbytes}s" for nbytes in sizes]))
    return KnownCall(
        layout,
        layout.unpack_from(data)[::2],
        end,
        len(body.data),
        3 + 2 * len(block.own),
        block,
        opening,
        template,
    )
