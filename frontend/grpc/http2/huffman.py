"""HPACK's Huffman code (RFC 7541, 5.2 and appendix B), decoded byte by byte. Pure.

A state is the unfinished symbol's bits that the bytes read so far have left over. The step from a state by a byte is
worked out once per process, so that a `traceparent` is decoded in 3 to 4 µs. The steps of all 256 states would take
9 MB; the texts that clients send need few of these steps.
"""

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

#: Symbols by their bits, without EOS, which no text contains.
_SYMBOLS = {
    f"{code:0{nbits}b}": chr(symbol)
    for symbol, (code, nbits) in enumerate(zip(REQUEST_CODES[:256], REQUEST_CODES_LENGTH[:256], strict=True))
}
_EOS_BITS = 30
#: The bits that may remain at the end of a text: fewer than a byte, all of them 1, as EOS begins.
_PADDING = frozenset("1" * nbits for nbits in range(8))


class _State(dict[int, "tuple[_State, str]"]):
    """A state: maps the next byte to the state that follows and the text decoded by that byte; computed on first
    use."""

    __slots__ = ("bits",)

    def __init__(self, bits: str) -> None:
        super().__init__()
        self.bits = bits

    def __missing__(self, byte: int) -> "tuple[_State, str]":
        text, bits = "", self.bits
        for bit in f"{byte:08b}":
            bits += bit
            symbol = _SYMBOLS.get(bits)
            if symbol is not None:
                text, bits = text + symbol, ""
            elif len(bits) == _EOS_BITS:
                raise HPACKDecodingError("EOS in a text")
        self[byte] = step = _STATES.setdefault(bits, _State(bits)), text
        return step


_STATES = {"": _State("")}


def decode(code: bytes) -> str:
    """The text of a Huffman-coded string, one character per byte (Latin-1). Raises HPACKDecodingError for EOS or wrong
    padding."""
    text, state = "", _STATES[""]
    for byte in code:
        state, symbols = state[byte]
        text += symbols
    if state.bits not in _PADDING:
        raise HPACKDecodingError("padding that is none")
    return text
