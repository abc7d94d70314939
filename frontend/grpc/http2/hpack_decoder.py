"""HPACK's decoder (RFC 7541), which turns a connection's header blocks into fields, and keeps its dynamic table. Pure.

An entry of the table is a field that has been decoded and checked, so that a reference costs an access to a list. A
header block whose client enters each call's `traceparent` into the table takes 5 µs here, and 17 in the hpack package
(measured, in a loop). The package's exceptions, static table and Huffman codes are used here.
"""

import re
from typing import NamedTuple

from hpack.exceptions import HPACKDecodingError, InvalidTableIndex, InvalidTableSizeError
from hpack.table import HeaderTable

from shoal.frontend.grpc.http2 import huffman
from shoal.frontend.grpc.http2.events import new
from shoal.memo import Memo

#: The most bytes of the dynamic table: the default of SETTINGS_HEADER_TABLE_SIZE, since we announce no other.
MAX_TABLE_BYTES = 4096
#: The bytes that an entry of the table, or a field of a list, counts beside name and value (RFC 7541, 4.1).
_FIELD_BYTES = 32
#: The most bytes of an integer behind its first one (RFC 7541, 5.1, asks for a limit; this is the hpack package's).
_MAX_INTEGER_BYTES = 5

#: Kinds of fields by the rules of RFC 9113, 8.2 and 8.3: whether a request may have such a field, and where.
MALFORMED, PSEUDO, PLAIN = range(3)

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
#: Blanks around a value are malformed by RFC 9113, 8.2.1, but gRPC's own libraries send and keep them in metadata.
_VALUE = re.compile(r"(?:[^\0\r\n\t](?:[^\0\r\n]*[^\0\r\n\t])?)?")
_PSEUDO_VALUE = re.compile(r"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?")
_PSEUDO_HEADERS = frozenset({":method", ":scheme", ":path", ":authority"})
#: Fields about a connection, which HTTP/2 does not have (RFC 9113, 8.2.2).
_CONNECTION_FIELDS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
#: A run of fields that are references of one byte each.
_REFERENCES = re.compile(rb"[\x81-\xfe]*")
_LENGTH_MASK = 0x7F

_kinds: Memo[str, int] = Memo("header_name", 512)


class Field(NamedTuple):
    """A header field. Its text is Latin-1."""

    name: str
    value: str
    kind: int
    nbytes: int  # bytes that the field counts in the table and in a list (RFC 9113, 10.5.1)


def _kind_of(name: str) -> int:
    """The kind of a field of this name whose value is well-formed."""
    if name in _PSEUDO_HEADERS:
        return PSEUDO
    return PLAIN if _NAME.fullmatch(name) and name not in _CONNECTION_FIELDS else MALFORMED


def _field(name: str, value: str) -> Field:
    kind = _kinds.entries.get(name)
    if kind is None:
        kind = _kind_of(name)
        _kinds.keep(name, kind)
    if kind == PLAIN:
        if not (value.isprintable() or _VALUE.fullmatch(value)) or (name == "te" and value != "trailers"):
            kind = MALFORMED
    elif kind == PSEUDO and not _PSEUDO_VALUE.fullmatch(value):
        kind = MALFORMED
    return new(Field, (name, value, kind, _FIELD_BYTES + len(name) + len(value)))


_STATIC = [_field(name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE]
#: Entries before the dynamic ones: the static ones, and one at index 0, to which no reference may lead.
_NUM_STATIC = 1 + len(_STATIC)


class Decoder:
    """The decoder of one connection. After an error the table may differ from the client's, so the connection has
    failed."""

    __slots__ = ("_entries", "_max_nbytes", "_nbytes", "has_changed")

    def __init__(self) -> None:
        # The fields below are changed by `decode`.
        self._entries = [_STATIC[0], *_STATIC]  # the table, by index; the newest dynamic entry follows the static ones
        self._nbytes = 0  # bytes of the dynamic entries
        self._max_nbytes = MAX_TABLE_BYTES
        #: Whether the block that was decoded last changed the table.
        self.has_changed = False

    def decode(self, block: bytes) -> list[Field]:
        """The fields of the connection's next block. Raises HPACKDecodingError."""
        self.has_changed = False
        fields: list[Field] = []
        position, end = 0, len(block)
        try:
            while position < end:
                first = block[position]
                if first >= 0x80:  # 6.1: a reference
                    stop = _REFERENCES.match(block, position).end()  # type: ignore[union-attr]  # it may be empty
                    if stop > position:
                        entries = self._entries
                        try:
                            fields += [entries[byte & 0x7F] for byte in block[position:stop]]
                        except IndexError:
                            raise InvalidTableIndex("an index beyond the table") from None
                        position = stop
                    else:
                        index, position = _integer(block, position, 0x7F)
                        fields.append(self._entry(index))
                elif first >= 0x40:  # 6.2.1: a literal that enters the table
                    field, position = self._literal(block, position, 0x3F)
                    fields.append(field)
                    self._insert(field)
                elif first >= 0x20:  # 6.3: another size of the table
                    if fields:
                        raise HPACKDecodingError("a table's size behind a field")
                    self._max_nbytes, position = _integer(block, position, 0x1F)
                    if self._max_nbytes > MAX_TABLE_BYTES:
                        raise InvalidTableSizeError("a table's size beyond the limit")
                    self._evict()
                else:  # 6.2.2 and 6.2.3: a literal that does not enter the table
                    field, position = self._literal(block, position, 0x0F)
                    fields.append(field)
        except IndexError:
            raise HPACKDecodingError("a block that ends within a field") from None
        return fields

    def _entry(self, index: int) -> Field:
        if not 0 < index < len(self._entries):
            raise InvalidTableIndex("an index beyond the table")
        return self._entries[index]

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[Field, int]:
        """The field of a literal at a position, and the position behind it. In the literal's first byte, the bits of
        `mask` are the index of the field's name; with 0 the name follows as a text."""
        index = block[position] & mask
        if index:
            if index < mask:
                position += 1
            else:
                index, position = _integer(block, position, mask)
            name = self._entry(index).name
        else:
            name, position = _text(block, position + 1)
        value, position = _text(block, position)
        return _field(name, value), position

    def _insert(self, field: Field) -> None:
        """Enter a field into the table; a field larger than the table leaves the table empty (4.4)."""
        self._entries.insert(_NUM_STATIC, field)
        self._nbytes += field.nbytes
        self._evict()

    def _evict(self) -> None:
        self.has_changed = True
        while self._nbytes > self._max_nbytes:
            self._nbytes -= self._entries.pop().nbytes


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """The integer in the bits of `mask` and, where they are all set, in the bytes that follow (5.1); and the position
    behind it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise HPACKDecodingError("an integer of too many bytes")


def _text(block: bytes, position: int) -> tuple[str, int]:
    """The text whose length stands at a position (5.2), and the position behind it."""
    first = block[position]
    length = first & _LENGTH_MASK
    if length < _LENGTH_MASK:
        position += 1
    else:
        length, position = _integer(block, position, _LENGTH_MASK)
    stop = position + length
    text = block[position:stop]
    if len(text) < length:
        raise HPACKDecodingError("a text that is cut off")
    return huffman.decode(text) if first >= 0x80 else text.decode("latin-1"), stop
