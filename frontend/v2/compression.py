"""gzip and deflate of bodies: requests' undone within a limit, responses' done as Accept-Encoding asks.

`deflate` is a zlib stream, as HTTP says. A body is one layer and one stream: what is cut short, followed by anything or
too large once inflated is refused. Pure; front-end processes.
"""

import zlib
from collections.abc import Mapping

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.frontend.response import Headers, Response

_AUTO_WBITS = 32 + zlib.MAX_WBITS  # gzip or zlib, whichever it is: Triton detects it too
#: A shorter response goes as it is (ours): of numbers in JSON zlib takes 0.08 ms for 2 KiB,
#: 0.7 for 9, 2 to 3 for 16, and all else that a small request takes is 0.1.
LEAST_COMPRESSED_BYTES = 16 * 1024
_WBITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class UnsupportedEncodingError(UnsupportedError):
    """A Content-Encoding this server does not read; the answer carries `headers`, which say what it does read."""

    headers: Headers = (("Accept-Encoding", "gzip, deflate"),)


def decompress(headers: Mapping[str, str], body: memoryview, limit: int) -> memoryview:
    """The body as it was before its Content-Encoding; the very same view where there is none.

    Raises UnsupportedEncodingError (501), InvalidArgumentError for more than `limit` bytes or a damaged stream.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _WBITS:
        raise UnsupportedEncodingError("Unsupported compression type")
    return memoryview(inflate(body, limit, " Use --http-max-input-size to increase the limit."))


def inflate(body: bytes | memoryview, limit: int, advice: str = "") -> bytes:
    """What one stream of gzip or zlib holds; raises InvalidArgumentError, with `advice` where it is too much."""
    inflater = zlib.decompressobj(_AUTO_WBITS)
    try:
        # One byte past the limit tells a body that is too large from one that just fits.
        inflated = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidArgumentError(f"failed to decompress the request body: {error}") from None
    if len(inflated) > limit:
        raise InvalidArgumentError(
            "decompressed request body has a byte_size that exceeds the maximum allowed value of "
            f"{limit} bytes.{advice}"
        )
    if not inflater.eof:
        raise InvalidArgumentError("failed to decompress the request body: the compressed stream is incomplete")
    if inflater.unused_data:
        raise InvalidArgumentError(
            f"failed to decompress the request body: {len(inflater.unused_data)} bytes follow the compressed stream"
        )
    return inflated


def compress(response: Response, accept_encoding: str) -> Response:
    """The response in the encoding its client likes best; as it is where it is short.

    Inference-Header-Content-Length stays as it was: it is about the body before compression, as in Triton. `close` is
    left to the sender.
    """
    encoding = preferred_encoding(accept_encoding)
    if encoding == "identity" or sum([len(chunk) for chunk in response.chunks]) < LEAST_COMPRESSED_BYTES:
        return response
    deflater = zlib.compressobj(wbits=_WBITS[encoding])
    chunks = [deflater.compress(chunk) for chunk in response.chunks]
    body = b"".join((*chunks, deflater.flush()))
    return response._replace(headers=(*response.headers, ("Content-Encoding", encoding)), chunks=(body,))


def preferred_encoding(accept_encoding: str) -> str:
    """`gzip`, `deflate` or `identity`: the one with the highest weight, of equals the first; 0 means never."""
    best, best_weight = "identity", 0.0
    for item in accept_encoding.split(","):
        name, _, parameter = item.partition(";")
        name = name.strip().lower()
        weight = _weight(parameter.strip())
        if (name == "identity" or name in _WBITS) and weight > best_weight:
            best, best_weight = name, weight
    return best


def _weight(parameter: str) -> float:
    """RFC 9110's q; an item with an illegal one is ignored."""
    if not parameter:
        return 1.0
    try:
        return float(parameter.removeprefix("q=")) if parameter.startswith("q=") else 0.0
    except ValueError:
        return 0.0
