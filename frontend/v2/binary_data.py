"""Binary tensors of requests, by Triton's binary tensor data extension: how long the JSON is, and which bytes behind it
are whose.

After the JSON, whose size is in the header Inference-Header-Content-Length, come the tensors in the order of `inputs`,
little-endian, dense, with nothing between. Nothing is copied: a tensor is a view of the body. Front-end processes.
"""

from shoal.errors import InvalidArgumentError

HEADER = "Inference-Header-Content-Length"


def parse_header_length(text: str, content_length: int) -> int:
    """The header's value: how many bytes of the (decompressed) body are JSON; 0 means a raw request. Raises
    InvalidArgumentError."""
    digits = text.strip()
    # int() would also read "+5", "1_000" and other alphabets' digits, and refuses thousands of digits.
    if not digits.removeprefix("-").isdecimal() or not digits.isascii():
        raise InvalidArgumentError(f"Unable to parse {HEADER}, got: {text}")
    if len(digits) > 20 or not 0 <= int(digits) <= content_length:
        raise InvalidArgumentError(f"inference header size should be in range (0, {content_length}), got: {text}")
    return int(digits)


def take(tail: memoryview, offset: int, nbytes: int, name: str, model: str) -> memoryview:
    """The `nbytes` bytes at `offset` behind the JSON, for input `name`. Raises InvalidArgumentError if there are
    fewer."""
    missing = offset + nbytes - len(tail)
    if missing > 0:
        raise InvalidArgumentError(
            f"unexpected size for input '{name}', expecting {missing} additional bytes for model '{model}'"
        )
    return tail[offset : offset + nbytes]
