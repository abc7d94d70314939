"""shoal/client/request_memory.py: arrays over blocks, found by their addresses; where copies of large arrays lie."""

import numpy as np

from shoal.client.request_memory import LEND_NBYTES, MAX_SPARE_NBYTES, RequestMemory
from shoal.datatypes import FP32, UINT8
from shoal.shm.slab import Block

SMALL, LARGE = np.arange(LEND_NBYTES, dtype=np.float32), np.arange(2 * LEND_NBYTES, dtype=np.float32)


class Blocks:
    """Hands out memory as the server does, in whole pages; blocks are numbered as they are taken."""

    def __init__(self) -> None:
        self.num_taken = 0
        self.back: list[int] = []
        self.memory = RequestMemory(self.back.append)

    def allocate(self, nbytes: int) -> Block:
        self.num_taken += 1
        return Block(self.num_taken, memoryview(bytearray((nbytes + 4095) // 4096 * 4096)))


def test_an_array_is_found_for_as_long_as_something_looks_into_it() -> None:
    blocks = Blocks()
    array = blocks.memory.array(blocks.allocate(LARGE.nbytes), LARGE.shape, FP32)
    half = array[LEND_NBYTES:]
    found = blocks.memory.find(half)
    assert found is not None
    assert (found.ref, found.offset) == (1, LEND_NBYTES * 4)
    assert blocks.memory.find(array[:2]) is None  # too small to be worth it
    assert blocks.memory.find(array[::2]) is None
    assert blocks.memory.find(LARGE) is None
    del array
    assert blocks.back == []
    del half
    assert blocks.back == [1]


def test_a_copy_lies_where_the_last_one_lay() -> None:
    blocks = Blocks()
    for array in (LARGE, SMALL, LARGE):
        copy = blocks.memory.copy(array, FP32, blocks.allocate)
        assert np.array_equal(copy, array)
        assert blocks.memory.find(copy) == (1, 0)
        del copy
    assert (blocks.num_taken, blocks.back) == (1, [])
    assert blocks.memory.drop_spare()
    assert not blocks.memory.drop_spare()
    assert blocks.back == [1]


def test_copies_that_are_in_use_at_once_lie_in_different_places_and_one_is_kept() -> None:
    blocks = Blocks()
    one, two = (blocks.memory.copy(LARGE, FP32, blocks.allocate) for _ in range(2))
    assert not np.shares_memory(one, two)
    del one, two
    assert blocks.back == [1]


def test_a_larger_one_gets_memory_when_the_smaller_one_has_gone_back() -> None:
    blocks = Blocks()
    blocks.memory.copy(SMALL, FP32, blocks.allocate)

    def allocate(nbytes: int) -> Block:
        assert blocks.back == [1]
        return blocks.allocate(nbytes)

    assert np.array_equal(blocks.memory.copy(LARGE, FP32, allocate), LARGE)


def test_much_is_not_kept() -> None:
    blocks = Blocks()
    blocks.memory.copy(np.zeros(MAX_SPARE_NBYTES + 4097, np.uint8), UINT8, blocks.allocate)
    assert blocks.back == [1]
    assert not blocks.memory.drop_spare()
