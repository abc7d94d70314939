"""recorder/segment_file.py: files are read as far as they are whole, and say where they are not."""

import io
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.recorder.segment_file import Damage, FileReader, file_head, pack_frame

ENTRIES = [b"a" * 5000, random.Random(1).randbytes(3000), b""]
FRAMES = [pack_frame(ENTRIES[:1]), pack_frame(ENTRIES[1:])]
FILE = file_head() + b"".join(FRAMES)


def read(data: bytes) -> tuple[list[bytes], Damage | None]:
    reader = FileReader(io.BytesIO(data))
    return [bytes(each) for each in reader], reader.damage


def test_a_file_is_read_as_it_was_written() -> None:
    assert read(FILE) == (ENTRIES, None)
    assert read(file_head()) == ([], None)


def test_the_bytes_are_those_of_the_drawing() -> None:
    """What compresses is zlib's, what does not stays as it is; numbers are little-endian."""
    raw = struct.pack("<II", 5000, zlib.crc32(ENTRIES[0])) + ENTRIES[0]
    magic, nbytes, num_raw, checksum, codec, number = struct.unpack("<4sIIIII", FRAMES[0][:24])
    assert (magic, num_raw, codec, number) == (b"FRAM", len(raw), 1, 1)
    assert nbytes == len(FRAMES[0]) - 24
    assert checksum == zlib.crc32(FRAMES[0][24:])
    assert zlib.decompress(FRAMES[0][24:]) == raw
    assert struct.unpack("<4sIIIII", FRAMES[1][:24])[4] == 0
    assert FILE[:12] == b"SHOALREC\x01\x00\x00\x00"


@pytest.mark.parametrize("end", [13, 30, 16 + len(FRAMES[0]) + 3, len(FILE) - 1])
def test_a_file_that_ends_early_is_read_up_to_its_last_whole_frame(end: int) -> None:
    found, damage = read(FILE[:end])
    first = 16 + len(FRAMES[0])
    assert found == (ENTRIES[:1] if end > first else [])
    assert damage is not None
    assert damage.offset == (0 if end < 16 else first if end > first else 16)


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_damaged_byte_changes_no_entry_that_is_read(position: int, flip: int) -> None:
    data = bytearray(FILE)
    data[position] ^= flip
    found, damage = read(bytes(data))
    assert found == ENTRIES[: len(found)]
    assert damage is not None or found == ENTRIES


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert read(file_head() + data)[0] == [] or data
    assert read(data)[1] is not None or data == file_head()


def test_a_frame_that_swells_is_refused() -> None:
    contents = zlib.compress(bytes(1 << 20))
    frame = struct.pack("<4sIIIII", b"FRAM", len(contents), 100, zlib.crc32(contents), 1, 1) + contents
    found, damage = read(file_head() + frame)
    assert found == []
    assert damage is not None
