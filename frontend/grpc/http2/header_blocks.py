"""Header blocks of requests: HPACK decoded, the rules of RFC 9113 8.2 and 8.3 checked, known blocks kept. Pure.

A client repeats a call as an equal sequence of few bytes, all of them references into the table that client and server
keep. So a block that changed nothing in the table has equal headers until the table changes, and is looked up instead
of decoded: 0.1 µs instead of 54 (measured).

Traces and ids of requests have another value in each call. gRPC's own libraries send them as literals that do not enter
the table, so their values are cut out of the block: what remains is looked up (`OwnValue`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from shoal.frontend.grpc.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, BrokenError
from shoal.frontend.grpc.http2.limits import Limits
from shoal.memo import Memo

#: A header list up to so many times larger than allowed fails its stream alone; beyond that decoding stops, and the
#: connection fails.
_TOLERANCE = 4
#: Most blocks that are kept per connection, and the longest of them in bytes: 16 KiB altogether.
_MAX_KNOWN, _MAX_KNOWN_BYTES = 64, 256
#: Most bytes of the header lists of these blocks, as RFC 9113 10.5.1 counts: such a block may refer to sixteen times as
#: many (ours: as much as sixteen calls with a token of 4 KiB each).
_MAX_KNOWN_LIST_BYTES = 64 * 1024
#: A header list from this size on counts (ours: all streams of a connection together have a megabyte of smaller ones).
LARGE_BYTES = 1024

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
#: Blanks around a value are malformed by RFC 9113, 8.2.1, but gRPC's own libraries send and keep them in metadata.
_VALUE = re.compile(rb"(?:[^\0\r\n\t](?:[^\0\r\n]*[^\0\r\n\t])?)?")
_PSEUDO_VALUE = re.compile(rb"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?")
_PSEUDO_HEADERS = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED = frozenset({":method", ":scheme", ":path"})
#: Fields about a connection, which HTTP/2 does not have (RFC 9113, 8.2.2).
_CONNECTION_FIELDS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


#: The literal of a field whose value is the call's own and decides nothing about its answer, up to the value: not
#: indexed, the name spelled out, no Huffman code, a value whose length is one byte (RFC 7541, 6.2.2).
_OWN_FIELD = re.compile(rb"\x00(?:\x0b(traceparent)|\x0c(x-request-id))[\x01-\x7e]")
#: Begins the key of a block without such values: an index of 0, with which no block begins that can be decoded.
_CUT = b"\x80"


class MalformedError(Exception):
    """The header list breaks a rule, which is an error of its stream."""


class TooLargeError(Exception):
    """The header list is larger than allowed."""


class LargeHeaders(dict[str, str]):
    """The headers of a request whose list has LARGE_BYTES or more. Streams may share them: whose blocks are equal."""

    __slots__ = ("nbytes",)

    def __init__(self, headers: Mapping[str, str], nbytes: int) -> None:
        super().__init__(headers)
        self.nbytes = nbytes  # of the list, as RFC 9113 10.5.1 counts


class OwnValue(NamedTuple):
    """The value of a field in a header block that is the call's own: the field's name, and the value's span."""

    name: str
    start: int
    end: int


class KnownBlock(NamedTuple):
    """A header block that was decoded before, but for the values that are its call's own."""

    key: bytes  # in HeaderBlocks.known
    headers: Mapping[str, str]  # with the values of an earlier call
    own: tuple[OwnValue, ...]


def own_values(block: bytes) -> tuple[OwnValue, ...]:
    """The values that may be the call's own, in the block's order.

    The bytes found may be part of another field's value. In a block whose remainder is in `HeaderBlocks.known` they are
    not: HPACK is read from the front, so the bytes before a value decide what the value belongs to.
    """
    values: list[OwnValue] = []
    end = 0
    while (found := _OWN_FIELD.search(block, end)) is not None:
        start = found.end()
        end = start + block[start - 1]
        if end > len(block):
            break
        values.append(OwnValue((found[1] or found[2]).decode("ascii"), start, end))
    return tuple(values)


def with_own_values(headers: Mapping[str, str], names: Iterable[str], values: Iterable[bytes]) -> dict[str, str] | None:
    """Headers with these values in place of an earlier call's; None if one is malformed."""
    changed = dict(headers)
    for name, value in zip(names, values, strict=True):
        if not _VALUE.fullmatch(value):
            return None
        changed[name] = value.decode("latin-1")
    return changed


def _without(block: bytes, own: Iterable[OwnValue]) -> bytes:
    """The key of a block without these values, in whose place are zeros."""
    rest = bytearray(block)
    for _, start, end in own:
        rest[start:end] = bytes(end - start)
    return _CUT + rest


class HeaderBlocks:
    """The decoder of one connection, and its known blocks."""

    __slots__ = ("_decoder", "_max_bytes", "_max_known_nbytes", "_memo", "known", "known_nbytes", "nbytes")

    def __init__(self, limits: Limits) -> None:
        self._max_bytes = limits.max_header_bytes
        self._decoder = Decoder(max_header_list_size=limits.max_header_bytes * _TOLERANCE)
        #: Headers of requests' blocks that decode to equal headers until the table changes. Changed by `_decode`.
        self._memo: Memo[bytes, Mapping[str, str]] = Memo("header_block", _MAX_KNOWN)
        self.known = self._memo.entries
        #: Bytes of the list that was decoded last, as RFC 9113 10.5.1 counts. Changed by `_decode`.
        self.nbytes = 0
        self._max_known_nbytes = _MAX_KNOWN_LIST_BYTES  # changed by `bound`
        #: Bytes of the lists of known blocks. Changed with `known`.
        self.known_nbytes = 0

    def bound(self, max_known_nbytes: int) -> None:
        """Bound the bytes of the lists of known blocks from now on."""
        self._max_known_nbytes = min(_MAX_KNOWN_LIST_BYTES, max_known_nbytes)
        if self.known_nbytes > self._max_known_nbytes:
            self._forget_known()

    def _forget_known(self) -> None:
        self.known.clear()
        self.known_nbytes = 0

    def request(self, block: bytes) -> Mapping[str, str]:
        """The headers of a request that is not in `known`. Raises MalformedError or TooLargeError for its stream,
        BrokenError for a block that cannot be decoded."""
        own = own_values(block) if len(block) <= _MAX_KNOWN_BYTES else ()
        key = _without(block, own) if own else block
        if own and (known := self.known.get(key)) is not None:
            values = [block[start:end] for _, start, end in own]
            headers = with_own_values(known, [name for name, _, _ in own], values)
            if headers is None:
                raise MalformedError
            return headers
        fields, changes_table = self._decode(block)
        headers = _request_headers(fields)
        if self.nbytes >= LARGE_BYTES:
            headers, own = LargeHeaders(headers, self.nbytes), ()  # which calls share if their blocks are equal
        if not changes_table and len(block) <= _MAX_KNOWN_BYTES:
            if self.known_nbytes + self.nbytes > self._max_known_nbytes:
                self._forget_known()
            is_cut = bool(own) and self._are_fields(block, own, headers)
            self._memo.keep(key if is_cut else block, headers)  # which may have emptied it
            self.known_nbytes = self.nbytes + (self.known_nbytes if len(self.known) > 1 else 0)
        return headers

    def find(self, block: bytes) -> KnownBlock | None:
        """The known block that this one repeats, and where the values of its own are; None if there is none."""
        headers = self.known.get(block)
        if headers is not None:
            return KnownBlock(block, headers, ())
        own = own_values(block)
        key = _without(block, own)
        headers = self.known.get(key)
        return None if headers is None else KnownBlock(key, headers, own)

    def _are_fields(self, block: bytes, own: Iterable[OwnValue], headers: Mapping[str, str]) -> bool:
        """Whether these values are those of fields of a block that has not changed the table, each the only one of its
        name: then what stands in front of such a field is a block, too."""
        try:
            for name, start, end in own:
                if headers.get(name) != block[start:end].decode("latin-1"):
                    return False
                self._decoder.decode(block[: start - len(name) - 3], raw=True)
        except HPACKError:
            return False
        return True

    def trailers(self, block: bytes) -> None:
        """Check trailers, whose values have no effect. Raises as `request` does."""
        joined: dict[str, str] = {}
        for name, value in self._decode(block)[0]:
            _add(joined, name, value)

    def _decode(self, block: bytes) -> tuple[Sequence[tuple[bytes, bytes]], bool]:
        """The fields, and whether the table has changed."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = (len(entries), table.maxsize, entries[0] if entries else None)
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise BrokenError(ENHANCE_YOUR_CALM, "header list too large") from None
        except HPACKError as error:
            # the error's own text may quote the block, or print an object with its address
            sentence = f"a header block that cannot be decompressed ({type(error).__name__})"
            raise BrokenError(COMPRESSION_ERROR, sentence) from None
        changes_table = before[:2] != (len(entries), table.maxsize) or before[2] is not (
            entries[0] if entries else None
        )
        if changes_table:
            self._forget_known()
        self.nbytes = sum(32 + len(name) + len(value) for name, value in fields)
        if self.nbytes > self._max_bytes:
            raise TooLargeError
        return fields, changes_table


def _request_headers(fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    num_pseudo = 0
    for position, (name, value) in enumerate(fields):
        if name in _PSEUDO_HEADERS:
            text = name.decode("ascii")
            if num_pseudo != position or text in headers or not _PSEUDO_VALUE.fullmatch(value):
                raise MalformedError
            headers[text] = value.decode("latin-1")
            num_pseudo += 1
        else:
            _add(headers, name, value)
    if not headers.keys() >= _REQUIRED or not headers[":path"]:
        raise MalformedError
    return headers


def _add(headers: dict[str, str], name: bytes, value: bytes) -> None:
    """Add a field that is no pseudo header; values of one name are joined."""
    if not _NAME.fullmatch(name) or name in _CONNECTION_FIELDS or not _VALUE.fullmatch(value):
        raise MalformedError
    if name == b"te" and value != b"trailers":
        raise MalformedError
    key, text = name.decode("ascii"), value.decode("latin-1")
    known = headers.get(key)
    # RFC 9113, 8.2.3: a cookie may come in crumbs.
    headers[key] = text if known is None else f"{known}{'; ' if key == 'cookie' else ','}{text}"


def body_length(text: str) -> int:
    """The number in a Content-Length; -1 for any other text."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= 18 else -1
