"""A file of a recording: entries in frames, each with its length and checksum; read as far as it is whole.

    0        8        magic, "SHOALREC"
    8        4        version of the format
    12       4        0
    then frames, and in each frame entries (entry.py):

    0        4        magic of a frame, "FRAM"
    4        4        bytes of the frame's contents in the file
    8        4        bytes of the contents, decompressed
    12       4        CRC-32 of the contents in the file
    16       4        codec: 0 as they are, 1 zlib
    20       4        number of entries

    0        4        bytes of the entry
    4        4        CRC-32 of the entry
    8        n        the entry

Numbers are little-endian. A frame is compressed if that pays; zlib is part of Python, so that every installation reads
every file. Pure: files are given as bytes and objects.
"""

import zlib
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import BinaryIO, NamedTuple

FILE_HEAD = Struct("<8sII")
FRAME_HEAD = Struct("<4sIIIII")
ENTRY_PREFIX = Struct("<II")
FILE_MAGIC, FRAME_MAGIC, VERSION = b"SHOALREC", b"FRAM", 1
AS_IT_IS, ZLIB = 0, 1
#: zlib's fastest level: 100 MB/s. First _TRIED_NBYTES bytes from the middle of the contents are compressed: if they
#: hardly shrink, the frame is written as it is (ours).
_LEVEL, _TRIED_NBYTES = 1, 1 << 14
#: The largest frame that is read (ours: an entry takes a quarter of the ring at most).
MAX_FRAME_NBYTES = 1 << 30


class Damage(NamedTuple):
    """The place from which a file cannot be read."""

    offset: int  # bytes from the file's start
    why: str


def file_head() -> bytes:
    """The first bytes of a file."""
    return FILE_HEAD.pack(FILE_MAGIC, VERSION, 0)


def pack_frame(entries: Sequence[bytes | memoryview]) -> bytes:
    """A frame of these entries."""
    raw = b"".join([part for each in entries for part in (ENTRY_PREFIX.pack(len(each), zlib.crc32(each)), each)])
    codec, contents = AS_IT_IS, raw
    middle = max(0, (len(raw) - _TRIED_NBYTES) // 2)
    tried = raw[middle : middle + _TRIED_NBYTES]
    if len(zlib.compress(tried, _LEVEL)) < 0.9 * len(tried):
        codec, contents = ZLIB, zlib.compress(raw, _LEVEL)
    head = FRAME_HEAD.pack(FRAME_MAGIC, len(contents), len(raw), zlib.crc32(contents), codec, len(entries))
    return head + contents


class FileReader:
    """The entries of a file, in order. `damage` is set where the file ends early or is corrupt, once they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        # Changed as the file is read: None as long as no damage was found.
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[memoryview]:
        offset, head = 0, self._file.read(FILE_HEAD.size)
        if len(head) < FILE_HEAD.size or head[:8] != FILE_MAGIC:
            self.damage = Damage(0, "it is no recording of Shoal")
            return
        _, version, _ = FILE_HEAD.unpack(head)
        if version != VERSION:
            self.damage = Damage(8, f"its format is {version}, this version of Shoal reads {VERSION}")
            return
        offset = len(head)
        while head := self._file.read(FRAME_HEAD.size):
            raw, why = self._contents(head)
            if raw is None:
                self.damage = Damage(offset, why)
                return
            entries, why = _entries(raw, FRAME_HEAD.unpack(head)[5])
            yield from entries
            if why:
                self.damage = Damage(offset, why)
                return
            offset += FRAME_HEAD.size + FRAME_HEAD.unpack(head)[1]

    def _contents(self, head: bytes) -> tuple[bytes | None, str]:
        """The decompressed contents of the frame that begins with `head`, or None and why there are none."""
        if len(head) < FRAME_HEAD.size:
            return None, "it ends in the head of a frame"
        magic, nbytes, num_raw, checksum, codec, _ = FRAME_HEAD.unpack(head)
        if magic != FRAME_MAGIC or max(nbytes, num_raw) > MAX_FRAME_NBYTES or codec not in (AS_IT_IS, ZLIB):
            return None, "no frame begins here"
        contents = self._file.read(nbytes)
        if len(contents) < nbytes:
            return None, f"it ends in a frame, {nbytes - len(contents)} bytes early"
        if zlib.crc32(contents) != checksum:
            return None, "the checksum of a frame is wrong"
        if codec == AS_IT_IS:
            return contents, ""
        try:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(contents, num_raw + 1)
        except zlib.error as error:
            return None, f"a frame cannot be decompressed: {error}"
        return (raw, "") if len(raw) == num_raw else (None, "a frame has another size than it says")


def _entries(raw: bytes, number: int) -> tuple[list[memoryview], str]:
    """The entries of a frame's contents as far as they are whole, and why the next one is not; "" if all are whole."""
    memory, found, at = memoryview(raw), list[memoryview](), 0
    for _ in range(number):
        if at + ENTRY_PREFIX.size > len(memory):
            return found, "a frame has fewer entries than it says"
        nbytes, checksum = ENTRY_PREFIX.unpack_from(memory, at)
        at += ENTRY_PREFIX.size
        entry = memory[at : at + nbytes]
        if len(entry) < nbytes or zlib.crc32(entry) != checksum:
            return found, "the checksum of an entry is wrong"
        found.append(entry)
        at += nbytes
    return found, ""
