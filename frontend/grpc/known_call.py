"""Recognition of a ModelInfer call that repeats an earlier one, except for its stream, the header fields that are each
call's own, its id and its tensors. Pure.

Clients repeat their calls. The first such call is parsed as HTTP/2, gRPC and protobuf. Of later calls only the header
block is decoded, and that only if the same bytes have not been decoded before: clients that put fields into HPACK's
table write equal headers as other bytes in each call. That saves a lane a third of its instructions for a small call
(measured: bench/lane_cost.py). The header block may have any length; behind it, common parts (text) and differing parts
alternate:

    text        length, kind and flags of DATA
    4 bytes     the stream, as in the head of HEADERS
    text        gRPC's prefix; the message up to its id, with the id's length
    id
    text        up to the first tensor
    tensor      and a text behind it, and so on
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from shoal.frontend.grpc import wire
from shoal.frontend.grpc.call import Opening
from shoal.frontend.grpc.framing import PREFIX_BYTES, parse_timeout
from shoal.frontend.grpc.http2.events import DataReceived, Event, RequestStarted, new
from shoal.frontend.grpc.http2.frames import DATA, END_HEADERS, END_STREAM, HEAD_BYTES, HEADERS
from shoal.frontend.grpc.http2.header_blocks import OWN_FIELDS
from shoal.frontend.grpc.submission import MessageTemplate, RegionTemplate

#: The offsets in a frame's head of kind and flags, and of the stream's number.
_KIND, _STREAM = 3, 5
#: Reads a frame's head: the length in two numbers, / 2¹⁶ and the rest; kind and flags; the stream's number.
_unpack_head: Final = Struct(">BH2s4s").unpack_from
_WHOLE_HEADERS: Final = bytes((HEADERS, END_HEADERS))
_LAST_DATA = bytes((DATA, END_STREAM))
#: The longest header block of a known call, in bytes (ours: a quarter of the most that any call may have).
_MAX_BLOCK_BYTES: Final = 4096
#: Fields whose values differ from call to call. In a call's Opening they determine only the metadata and the timeout.
_OWN_FIELDS = OWN_FIELDS | {"grpc-timeout"}


class KnownCall(NamedTuple):
    """What calls of one template have in common. A call is a HEADERS frame, and a DATA frame with one message."""

    layout: Struct  # of the DATA frame: common and differing parts, by turns
    texts: tuple[bytes, ...]  # the common parts of the DATA frame
    opening: Opening
    own: Mapping[str, str]  # the opening's headers of _OWN_FIELDS
    template: MessageTemplate | RegionTemplate

    def read(self, data: bytes, position: int) -> tuple[int, bytes, bytes, Sequence[bytes]] | None:
        """The stream, header block, id and tensors of a call whose bytes begin at `position`; None if its DATA does not
        fit this template. The header block is not compared."""
        if len(data) - position <= HEAD_BYTES:
            return None
        high, length, kind, stream = _unpack_head(data, position)
        start = position + HEAD_BYTES
        stop = start + length
        layout = self.layout
        if kind != _WHOLE_HEADERS or high or length > _MAX_BLOCK_BYTES or len(data) - stop < layout.size:
            return None
        pieces = layout.unpack_from(data, stop)
        id_ = pieces[3]
        if pieces[::2] != self.texts or pieces[1] != stream or not id_.isascii():
            return None
        return int.from_bytes(stream, "big"), data[start:stop], id_, pieces[5::2]

    def opening_with(self, headers: Mapping[str, str]) -> Opening | None:
        """The opening of a call with these headers: the template's, with the call's metadata and timeout.

        None if headers other than _OWN_FIELDS differ, if this call has one of _OWN_FIELDS that the template's call
        lacked, or if the timeout is malformed: the call then has to be opened like any other.
        """
        opening = self.opening
        if headers is opening.metadata:
            return opening
        if {**headers, **self.own} != opening.metadata:
            return None
        timeout_s, timeout = None, headers.get("grpc-timeout")
        if timeout is not None:
            try:
                timeout_s = parse_timeout(timeout)
            except ValueError:
                return None
        return new(Opening, (opening.method, headers, timeout_s, *opening[3:]))


def learn(
    data: bytes, events: Sequence[Event], opening: Opening, template: MessageTemplate | RegionTemplate
) -> KnownCall | None:
    """What later calls have in common with the first call in `data`, whose events were `events`.

    None if the call is not a HEADERS and a DATA frame without padding and priority, or its message does not match the
    template's pattern.
    """
    started, body = events[:2]
    if not (isinstance(started, RequestStarted) and isinstance(body, DataReceived)) or template.pattern is None:
        return None
    block_end = HEAD_BYTES + int.from_bytes(data[:3], "big")
    start = block_end + HEAD_BYTES + PREFIX_BYTES
    end = block_end + HEAD_BYTES + len(body.data)
    message = data[start:end]
    # Both frames have neither padding nor priority, and the second one ends the stream. Where the call's first bytes
    # came with an earlier read, other bytes stand here, which may name a length beyond the end.
    if (
        data[_KIND:_STREAM] != _WHOLE_HEADERS
        or data[block_end + _KIND : block_end + _STREAM] != _LAST_DATA
        or data[start - PREFIX_BYTES : end] != body.data
        or wire.match(template.pattern, message) is None
    ):
        return None
    found = wire.split(message)
    id_nbytes = len(found.id.encode())
    id_start = start + found.id_start + (wire.ID_HEAD_BYTES if id_nbytes else 0)
    differing = [
        (block_end + _STREAM, block_end + HEAD_BYTES),
        (id_start, id_start + id_nbytes),
        *[
            (start + offset, start + offset + nbytes)
            for offset, nbytes in zip(found.offsets, found.lengths, strict=True)
        ],
    ]
    edges = [block_end, *[edge for span in differing for edge in span], end]
    sizes = [after - before for before, after in pairwise(edges)]
    layout = Struct("=" + "".join([f"{nbytes}s" for nbytes in sizes]))
    texts = layout.unpack_from(data, block_end)[::2]
    own = {name: value for name, value in opening.metadata.items() if name in _OWN_FIELDS}
    return KnownCall(layout, texts, opening, own, template)
