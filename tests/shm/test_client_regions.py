"""shm/client_regions.py: no tensor outside its region, no path out of /dev/shm, no descriptor left, no signal."""

import mmap
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.shm.client_regions import ClientRegion, open_region
from tests.scarcity import limited

NAME = f"shoal-test-regions-{os.getpid()}"
EDGES = st.sampled_from([0, 1, 31, 32, 33, 2**31, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]) | st.integers(0, 40)


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    """A client's 64 bytes."""
    file = Path("/dev/shm", NAME)
    file.write_bytes(bytes(64))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 64) as mapped:
        yield mapped
    file.unlink()


def refusal(kind: type[ShoalError], call: Any, *arguments: Any) -> str:
    with pytest.raises(ShoalError) as refused:
        call(*arguments)
    assert type(refused.value) is kind
    return str(refused.value)


def test_tensors_are_copied_in_and_out(memory: mmap.mmap) -> None:
    memory[:] = bytes(range(64))
    part = open_region("r", NAME, 8, 40).slice(16, 10)
    into = memoryview(bytearray(10))
    part.read_into(into)
    assert bytes(into) == bytes(part) == bytes(range(24, 34))
    part.write(memoryview(b"abc"))
    assert memory[22:30] == b"\x16\x17abc\x1b\x1c\x1d"
    assert len(part) == 10


@given(EDGES, EDGES)
def test_no_part_is_outside_its_region(offset: int, nbytes: int) -> None:
    region = ClientRegion("r", "k", 100, 32, os.open("/dev/null", os.O_RDWR))
    try:
        part = region.slice(offset, nbytes)
    except InvalidArgumentError:
        assert offset >= 32 or offset + nbytes > 32
    else:
        assert 100 <= part.offset <= part.offset + len(part) <= 132
        assert (part.offset, len(part)) == (100 + offset, nbytes)


def test_what_is_wrong_with_a_part_is_said_in_tritons_words(memory: mmap.mmap) -> None:
    region = open_region("r", NAME, 0, 32)
    assert refusal(InvalidArgumentError, region.slice, 32, 0) == "Invalid offset for shared memory region: 'r'"
    size = "Invalid offset + byte size for shared memory region: 'r'"
    assert refusal(InvalidArgumentError, region.slice, 31, 2) == size
    assert refusal(InvalidArgumentError, region.slice, 0, 2**64 - 1) == size
    assert refusal(InvalidArgumentError, region.slice, 1, 2**64 - 1) == (
        "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum value "
        "(18446744073709551615) for region 'r'"
    )


def test_what_has_been_cut_off_is_neither_read_nor_written(memory: mmap.mmap) -> None:
    part = open_region("r", NAME, 0, 64).slice(16, 32)
    os.truncate(f"/dev/shm/{NAME}", 40)
    size = "Invalid offset + byte size for shared memory region: 'r'"
    assert refusal(InvalidArgumentError, bytes, part) == size
    assert refusal(InvalidArgumentError, part.read_into, memoryview(bytearray(32))) == size
    assert refusal(InvalidArgumentError, part.write, memoryview(bytes(32))) == size
    assert os.stat(f"/dev/shm/{NAME}").st_size == 40
    part.write(memoryview(bytes(24)))


def test_memory_that_is_not_there_is_an_error(memory: mmap.mmap) -> None:
    """The kernel refuses larger files than this, as it refuses pages when /dev/shm is full."""
    part = open_region("r", NAME, 0, 64).slice(32, 32)
    with limited(resource.RLIMIT_FSIZE, 32), pytest.raises(InternalError) as refused:
        part.write(memoryview(bytes(32)))
    assert str(refused.value) == "unable to write to shared memory region 'r': File too large"


@pytest.mark.parametrize("slashes", ["", "/", "///"])
def test_leading_slashes_say_nothing(memory: mmap.mmap, slashes: str) -> None:
    assert open_region("r", slashes + NAME, 0, 64).key == slashes + NAME


@pytest.mark.parametrize(
    "key", ["", "/", ".", "..", "//..", "a/b", "../x", "a\0b", "sem.mutex", "/sem.mutex", "é", "a b", "a\n", "x" * 256]
)
def test_a_key_is_one_plain_name(key: str) -> None:
    sentence = f"cannot register shared memory region 'r' - invalid shm key '{key}'"
    assert refusal(InvalidArgumentError, open_region, "r", key, 0, 8) == sentence


def test_names_of_the_python_backend_are_its_own() -> None:
    key = "//triton_python_backend_shm_region_7"
    assert refusal(InvalidArgumentError, open_region, "r", key, 0, 8) == (
        f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
        "'triton_python_backend_shm_region_'"
    )


def test_a_refusal_keeps_no_descriptor(memory: mmap.mmap, num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    sentence = "failed to register shared memory region 'r': invalid args"
    for offset, nbytes in ((0, 65), (64, 1), (60, 5), (0, 0), (65, 0), (2**64 - 1, 2), (1, 2**64 - 1)) * 100:
        assert refusal(InvalidArgumentError, open_region, "r", NAME, offset, nbytes) == sentence
    missing = f"{NAME}-missing"
    assert refusal(InternalError, open_region, "r", missing, 0, 8) == (
        f"Unable to open shared memory region: '{missing}'"
    )
    assert num_descriptors() == before


def test_only_memory_is_opened() -> None:
    os.mkdir(f"/dev/shm/{NAME}-directory")
    os.mkfifo(f"/dev/shm/{NAME}-fifo")
    try:
        unable = f"Unable to open shared memory region: '{NAME}-directory'"
        assert refusal(InternalError, open_region, "r", f"{NAME}-directory", 0, 1) == unable
        assert refusal(InvalidArgumentError, open_region, "r", f"{NAME}-fifo", 0, 1).endswith("invalid args")
    finally:
        os.rmdir(f"/dev/shm/{NAME}-directory")
        os.unlink(f"/dev/shm/{NAME}-fifo")


def test_the_descriptor_lives_as_long_as_any_part_of_it(memory: mmap.mmap, num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    part = open_region("r", NAME, 0, 64).slice(0, 64)
    memory[:4] = b"here"
    assert (num_descriptors(), bytes(part)[:4]) == (before + 1, b"here")
    del part
    assert num_descriptors() == before


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("/" * 100_000 + "shoal-not-there", InternalError),
        ("triton_python_backend_shm_region_" + "x" * 100_000, InvalidArgumentError),
        ("é" * 100_000, InvalidArgumentError),
    ],
    ids=["missing", "reserved", "odd"],
)
def test_an_error_has_the_beginning_of_a_long_key_alone(key: str, kind: type[ShoalError]) -> None:
    said = refusal(kind, open_region, "r" * 100_000, key, 0, 8)
    assert f"'{key[:40]}…'" in said
    assert len(said) < 300
