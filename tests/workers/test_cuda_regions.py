"""workers/cuda_regions.py on a fake GPU: which handles are open when, and what is read and written where."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.model_config.signature import Signature
from shoal.request import CudaTarget
from shoal.shm.cuda_regions import CudaPlace, pool_number
from shoal.shm.layout import BATCH_ITEM, record
from shoal.workers import cuda_regions
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.loop import Loop
from shoal.workers.requests import RequestReader
from tests.fake_cuda import contents, fake_cuda, is_open, others_memory
from tests.request_headers import packed
from tests.workers.worker_harness import CONFIG, Batcher, loop_of, rows

HELD = bytes(range(64))


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with fake_cuda(tmp_path, monkeypatch) as runtime:
        yield runtime


def place(folder: Path, name: str, number: int = 1, held: bytes = HELD) -> bytes:
    return CudaPlace(number, 0, others_memory(folder, name, held)).pack()


def test_a_handle_is_opened_once_and_closed_when_its_registration_ends(runtime: Any, tmp_path: Path) -> None:
    regions, there = CudaRegions(), place(tmp_path, "a")
    assert not is_open(tmp_path, "a")
    for _ in range(2):
        assert bytes(regions.read(there, 8, 4)) == HELD[8:12]
        assert len(runtime.allocations) == 1
    regions.forget(2)
    assert is_open(tmp_path, "a")
    regions.forget(1)
    assert not is_open(tmp_path, "a")
    regions.forget(1)


def test_two_registrations_of_one_memory_are_opened_and_closed_by_themselves(runtime: Any, tmp_path: Path) -> None:
    regions = CudaRegions()
    one, two = place(tmp_path, "a", 1), place(tmp_path, "a", 2)
    for each in (one, two):
        regions.read(each, 0, 1)
    regions.forget(1)
    assert bytes(regions.read(two, 63, 1)) == HELD[63:]
    regions.forget(2)
    assert not is_open(tmp_path, "a")


def test_two_pools_that_one_segment_names_are_told_apart(runtime: Any, tmp_path: Path) -> None:
    """A process of several instances has a pool for each, and one segment for the calls of all."""
    regions, number = CudaRegions(), pool_number(7)
    one, two = place(tmp_path, "a", number), place(tmp_path, "b", number, HELD[::-1])
    for _ in range(2):
        assert bytes(regions.read(one, 0, 4)) == HELD[:4]
        assert bytes(regions.read(two, 0, 4)) == HELD[:-5:-1]
    regions.forget_pool(7)
    assert [is_open(tmp_path, name) for name in "ab"] == [False, False]


def test_a_late_request_opens_what_has_ended_for_itself(runtime: Any, tmp_path: Path) -> None:
    regions, there = CudaRegions(), place(tmp_path, "a")
    regions.forget(1)
    assert bytes(regions.read(there, 0, 4)) == HELD[:4]
    assert not is_open(tmp_path, "a")
    regions.write([(CudaTarget("OUT", there, 4, 4), memoryview(b"abcd"))])
    assert contents(tmp_path, "a") == HELD[:4] + b"abcd" + HELD[8:]
    with pytest.raises(InvalidArgumentError):
        regions.read(there, 64, 1)
    assert not is_open(tmp_path, "a")


def test_what_is_read_is_a_copy(runtime: Any, tmp_path: Path) -> None:
    regions, there = CudaRegions(), place(tmp_path, "a")
    read = regions.read(there, 0, 4)
    regions.write([(CudaTarget("OUT", there, 0, 4), memoryview(b"abcd"))])
    assert (bytes(read), read.readonly) == (HELD[:4], True)
    assert bytes(regions.read(there, 0, 4)) == b"abcd"


@pytest.mark.parametrize(("offset", "nbytes"), [(64, 1), (0, 65), (60, 5), (1 << 40, 8)])
def test_nothing_behind_the_memory_is_touched(runtime: Any, tmp_path: Path, offset: int, nbytes: int) -> None:
    regions, there = CudaRegions(), place(tmp_path, "a")
    target = CudaTarget("OUT", there, offset, nbytes)
    calls: list[Callable[[], object]] = [
        lambda: regions.read(there, offset, nbytes),
        lambda: regions.write([(target, memoryview(bytes(nbytes)))]),
        lambda: regions.check([target]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"of which the client has allocated 64 bytes"):
            call()
    assert contents(tmp_path, "a") == HELD
    assert bytes(regions.read(there, 64, 0)) == b""


def test_handles_that_are_none(runtime: Any, tmp_path: Path) -> None:
    regions = CudaRegions()
    for handle in (bytes(64), b"fake-../../etc/passwd".ljust(64, b"\0"), b"\xff" * 64):
        with pytest.raises(InvalidArgumentError, match=r"^failed to open CUDA IPC handle .* GPU 0: CUDA error 1: inv"):
            regions.read(CudaPlace(1, 0, handle).pack(), 0, 1)
    with pytest.raises(InternalError, match=r"^a request header in shared memory is damaged: a place "):
        regions.read(b"short", 0, 1)
    assert bytes(regions.read(place(tmp_path, "a"), 0, 1)) == HELD[:1]  # by the same number


def test_a_lost_gpu_is_no_fault_of_the_request(runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.workers.cuda import CudaError

    words = "CUDA error 700: an illegal memory access was encountered (cudaErrorIllegalAddress)"

    def lost(*_: object) -> None:
        raise CudaError(words)

    monkeypatch.setattr("shoal.workers.cuda.open_handle", lost)
    with pytest.raises(CudaError):
        CudaRegions().read(place(tmp_path, "a"), 0, 1)


def test_without_cuda_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in ("cuda", "shoal.workers.cuda") or name.startswith("cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)  # PyTorch of the package index brings it
    with pytest.raises(UnavailableError, match=r"^CUDA shared memory needs the package cuda-bindings in "):
        CudaRegions().read(place(tmp_path, "a"), 0, 1)


def test_an_input_that_is_too_large_to_copy(runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_regions, "MAX_COPIED_NBYTES", 8)
    with pytest.raises(InvalidArgumentError, match=r"^an input of 9 bytes in CUDA shared memory exceeds the 8 bytes"):
        CudaRegions().read(place(tmp_path, "a"), 0, 9)


#: Reads, writes, ends and new registrations of two memories, by name and registration.
STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "write", "forget", "register"]), st.sampled_from("ab")), max_size=20
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_whatever_happens_what_is_open_is_registered(
    runtime: Any, tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    regions, numbers = CudaRegions(), {"a": 1, "b": 2}
    current = {name: {number} for name, number in numbers.items()}
    held = dict.fromkeys(numbers, HELD)
    places = {name: place(tmp_path, name, number) for name, number in numbers.items()}
    for count, (what, name) in enumerate(steps):
        if what == "read":
            assert bytes(regions.read(places[name], 0, 64)) == held[name]
        elif what == "write":
            held[name] = bytes([count]) + held[name][1:]
            regions.write([(CudaTarget("OUT", places[name], 0, 1), memoryview(held[name][:1]))])
        elif what == "forget":
            regions.forget(numbers[name])
            current[name].discard(numbers[name])
        else:
            regions.forget(numbers[name])
            numbers[name] = 3 + count
            current[name] = {numbers[name]}
            places[name] = CudaPlace(numbers[name], 0, f"fake-{name}".encode().ljust(64, b"\0")).pack()
        for each in "ab":
            assert not is_open(tmp_path, each) or current[each]
            assert contents(tmp_path, each) == held[each]
    for number in numbers.values():
        regions.forget(number)
    assert not runtime.allocations


# -- in a worker ------------------------------------------------------------------------------------------------------


def header(inputs: list[Any], outputs: list[str], targets: list[Any]) -> bytes:
    layout = packed([inputs, outputs, targets] if targets else [inputs, outputs])
    return len(layout).to_bytes(4, "little") + layout + packed(["", {}])


def ask(batcher: Batcher, loop: Loop, *headers: bytes, body: bytes = b"") -> list[Any]:
    batcher.send(*(batcher.raw_request(body, each) for each in headers))
    loop.step()
    return batcher.done()


def test_a_bad_place_fails_its_request_alone(runtime: Any, tmp_path: Path, batcher: Batcher) -> None:
    values = rows(1)
    loop, there = loop_of(batcher), place(tmp_path, "a", held=values.tobytes() + bytes(48))
    bad = CudaPlace(9, 0, bytes(64)).pack()
    plain = ["INPUT0", 11, [1, 4], 0, 16]
    done = ask(
        batcher,
        loop,
        header([["INPUT0", 11, [1, 4], 0, 16, there]], ["OUTPUT0"], [["OUTPUT0", there, 16, 16]]),
        header([["INPUT0", 11, [1, 4], 0, 16, bad]], [], []),
        header([plain], ["OUTPUT0"], [["OUTPUT0", bad, 0, 16]]),
        header([["INPUT0", 11, [1, 4], 56, 16, there]], [], []),
        header([plain], ["OUTPUT0"], [["OUTPUT0", there, 32, 12]]),  # too small: its front end says so
        header([["INPUT0", 11, [1, 4], 0, 16, there]], [], [["OUTPUT0", "no place", 0, 16]]),
        header([plain], ["OUTPUT0"], [["OUTPUT9", there, 32, 16]]),
        body=np.full((1, 4), 7, np.float32).tobytes(),
    )
    assert [each.status for each in done] == [0, 4, 4, 4, 0, 2, 0]
    assert done[0].outputs["OUTPUT0"].tolist() == values.tolist()
    assert contents(tmp_path, "a") == values.tobytes() * 2 + bytes(32)


def test_a_layout_that_is_known_is_read_anew(runtime: Any, tmp_path: Path, batcher: Batcher) -> None:
    loop, there = loop_of(batcher), place(tmp_path, "a")
    known = header([["INPUT0", 11, [1, 4], 0, 16, there]], ["OUTPUT0"], [["OUTPUT0", there, 32, 16]])
    for number in (1, 2, 3):
        values = np.full((1, 4), number, np.float32).tobytes()
        others_memory(tmp_path, "a", values + bytes(48))
        (done,) = ask(batcher, loop, known)
        assert done.status == 0
        assert contents(tmp_path, "a") == values + bytes(16) + values + bytes(16)
        batcher.free(done.ref)


def test_a_guest_names_no_handles_and_is_sent_none(runtime: Any, tmp_path: Path) -> None:
    """An output that stays is answered with the handle of all that lies in the worker's pool."""
    guests = set[int]()
    reader = RequestReader(Signature.from_config(CONFIG), is_guests=lambda ref: ref in guests)
    there, block = place(tmp_path, "a"), memoryview(bytes(64))
    item, stays = record(BATCH_ITEM, 1, 1, 77), header([["INPUT0", 11, [1, 4], 0, 16]], [], [["OUTPUT0", 0]])
    assert reader.open(0, block, stays, item).parsed.stays == {"OUTPUT0": 0}
    guests.add(77)
    for bad in (
        header([["INPUT0", 11, [1, 4], 0, 16, there]], [], []),
        header([["INPUT0", 11, [1, 4], 0, 16]], [], [["OUTPUT0", there, 0, 16]]),
        stays,
    ):
        with pytest.raises(InternalError, match=r"^shoal\.Client has no CUDA shared memory"):
            reader.open(0, block, bad, item)
    assert not is_open(tmp_path, "a")
