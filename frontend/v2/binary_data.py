"""Triton's binary tensor data extension, requests' side: where the JSON ends, and whose bytes the tail is.

After the JSON, whose size is in the header Inference-Header-Content-Length, come the tensors in the order of `inputs`,
little-endian, dense, with nothing between. Nothing is copied: a tensor is a view of the body. Front-end processes.
"""

import struct

from shoal.errors import InvalidArgumentError

HEADER = "Inference-Header-Content-Length"

_LENGTH = struct.Struct("<I")


def parse_header_length(text: str, content_length: int) -> int:
    """The header's value: how many bytes of the (decompressed) body are JSON; 0 asks for a raw request."""
    digits = text.strip()
    # int() would also read "+5", "1_000" and other alphabets' digits, and refuses thousands of digits.
    if not digits.removeprefix("-").isdecimal() or not digits.isascii():
        raise InvalidArgumentError(f"Unable to parse {HEADER}, got: {text}")
    if len(digits) > 20 or not 0 <= int(digits) <= content_length:
        raise InvalidArgumentError(f"inference header size should be in range (0, {content_length}), got: {text}")
    return int(digits)


def take(tail: memoryview, offset: int, nbytes: int, name: str, model: str) -> memoryview:
    """The next `nbytes` of the tail, for input `name`."""
    missing = offset + nbytes - len(tail)
    if missing > 0:
        raise InvalidArgumentError(
            f"unexpected size for input '{name}', expecting {missing} additional bytes for model '{model}'"
        )
    return tail[offset : offset + nbytes]


def check_bytes_elements(data: memoryview, expected: int, name: str, model: str) -> str | None:
    """What is wrong with a BYTES tensor that must have `expected` elements, in Triton's words; None if nothing is.

    Stops at the first element too many, so the time it takes is bounded by the shape that was asked for.
    """
    where = f"for inference input '{name}' for model '{model}'"
    offset, end, count = 0, len(data), 0
    unpack_from = _LENGTH.unpack_from
    while offset < end:
        if count == expected:
            return f"unexpected number of string elements {count + 1} {where}, expecting {expected}"
        if end - offset < 4:
            return (
                f"incomplete string length indicator {where}, expecting 4 bytes but only {end - offset} bytes "
                "available. Please make sure the string length indicator is in one buffer."
            )
        (length,) = unpack_from(data, offset)
        offset += 4
        if end - offset < length:
            return (
                f"incomplete string data {where}, expecting string of length {length} "
                f"but only {end - offset} bytes available."
            )
        offset += length
        count += 1
    if count != expected:
        return f"expected {expected} string elements {where}, got {count}"
    return None
