"""The header blocks of a small response, framed once for all responses like it. Pure."""

from typing import NamedTuple

from shoal.frontend.grpc.http2.frames import END_HEADERS, END_STREAM, HEADERS


class ResponseHeaderBlocks(NamedTuple):
    """The header blocks of a response and the heads of their frames, but for the stream's number."""

    headers_head: bytes
    headers: bytes
    trailers_head: bytes
    trailers: bytes

    @classmethod
    def of(cls, headers: bytes, trailers: bytes) -> "ResponseHeaderBlocks":
        """Of small blocks: each fits into any frame."""
        heads = [
            (len(block) << 8 | HEADERS).to_bytes(4, "big") + bytes([flags])
            for block, flags in ((headers, END_HEADERS), (trailers, END_HEADERS | END_STREAM))
        ]
        return cls(heads[0], headers, heads[1], trailers)
