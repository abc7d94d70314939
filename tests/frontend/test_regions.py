"""frontend/regions.py: what a front end knows of clients' regions, found and told."""

import os
from typing import Any

import pytest

from shoal.datatypes import BYTES, FP32
from shoal.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from shoal.frontend.regions import NO_REGIONS, Regions
from shoal.messages.to_client import CudaRegionRegistered, RegionRegistered
from shoal.shm.client_regions import RegionSlice
from shoal.shm.cuda_regions import CudaPlace, CudaSlice, unpack_place
from tests.region_bytes import bytes_of


def memory(contents: bytes) -> int:
    fd = os.memfd_create("client")
    os.write(fd, contents)
    return fd


def add(regions: Regions, name: str, contents: bytes = b"\1\0\0\0a") -> None:
    message = RegionRegistered(name=name, key=f"/{name}", offset=0, byte_size=len(contents), memory=memory(contents))
    regions.add(message)


@pytest.fixture
def regions() -> Regions:
    made = Regions(are_allowed=True, max_string_bytes=8)
    add(made, "b")
    add(made, "a")
    return made


def told(name: str) -> dict[str, Any]:
    return {"name": name, "key": f"/{name}", "offset": 0, "byte_size": 5}


def test_regions_are_told_by_kind_and_name(regions: Regions) -> None:
    assert regions.status("system", "") == [told("a"), told("b")]
    assert regions.status("system", "b") == [told("b")]
    assert regions.status("cuda", "") == []
    for kind in ("system", "cuda"):
        with pytest.raises(NotFoundError, match=f"^Unable to find {kind} shared memory region: 'x'$"):
            regions.status(kind, "x")
    with pytest.raises(NotFoundError, match=r"^The region named 'a' is registered as system shared memory, not CUDA"):
        regions.status("cuda", "a")


def test_regions_on_a_gpu_are_of_another_kind(regions: Regions) -> None:
    regions.add_cuda(CudaRegionRegistered(name="g", number=3, device_id=1, handle=b"h" * 64, byte_size=16))
    row = {"name": "g", "device_id": 1, "byte_size": 16}
    assert regions.status("cuda", "") == regions.status("cuda", "g") == [row]
    assert regions.status("system", "") == [told("a"), told("b")]
    with pytest.raises(NotFoundError, match=r"^The region named 'g' is registered as CUDA shared memory, not system"):
        regions.status("system", "g")
    found = regions.tensor(BYTES, "g", 4, 12)  # longer than strings may be that are copied here
    assert isinstance(found, CudaSlice)
    assert (found.offset, len(found), unpack_place(found.place)) == (4, 12, CudaPlace(3, 1, b"h" * 64))
    with pytest.raises(InvalidArgumentError, match=r"^Invalid offset \+ byte size for shared memory region: 'g'$"):
        regions.slice("g", 4, 13)
    with pytest.raises(InvalidArgumentError, match=r"^Invalid offset for shared memory region: 'g'$"):
        regions.slice("g", 16, 0)
    regions.remove("")
    regions.remove("g")
    assert regions.status("cuda", "") == [row]
    regions.remove("g", "cuda")
    assert regions.status("cuda", "") == []


def test_what_is_removed_is_not_found_and_lives_on_where_it_is_used(regions: Regions) -> None:
    used = regions.slice("a", 4, 1)
    regions.remove("a")
    regions.remove("never there")
    with pytest.raises(NotFoundError, match=r"^Unable to find shared memory region: 'a'$"):
        regions.slice("a", 4, 1)
    assert bytes_of(used) == b"a"
    add(regions, "c")
    regions.remove("")
    assert regions.status("system", "") == []


def test_a_name_that_comes_again_means_the_newer_one(regions: Regions) -> None:
    add(regions, "a", b"newer")
    assert bytes_of(regions.slice("a", 0, 5)) == b"newer"


def test_strings_are_read_at_once_and_others_later(regions: Regions) -> None:
    text = regions.tensor(BYTES, "a", 0, 5)
    assert isinstance(text, memoryview)
    assert bytes(text) == b"\1\0\0\0a"
    assert isinstance(regions.tensor(FP32, "a", 0, 4), RegionSlice)
    add(regions, "long", bytes(9))
    with pytest.raises(InvalidArgumentError, match=r"^9 bytes of strings in shared memory region 'long' exceed the "):
        regions.tensor(BYTES, "long", 0, 9)


def test_nothing_is_found_where_it_is_not_allowed() -> None:
    for call in (NO_REGIONS.require_allowed, lambda: NO_REGIONS.slice("r", 0, 1)):
        with pytest.raises(UnsupportedError, match=r"^Client shared memory is disabled\. Start the server with "):
            call()
    assert NO_REGIONS.status("system", "") == []
