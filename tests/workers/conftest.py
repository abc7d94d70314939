"""Fixtures of the worker's tests."""

from collections.abc import Callable, Iterator

import pytest

from tests.workers.worker_harness import Batcher


@pytest.fixture
def make_batcher() -> Iterator[Callable[..., Batcher]]:
    """(worker slab bytes, client slab bytes, seconds a batch waits for a block) → a Batcher."""
    made = []

    def make(worker: int = 1 << 20, client: int = 1 << 20, block_wait_s: float = 10.0) -> Batcher:
        made.append(Batcher(worker, client, block_wait_s))
        return made[-1]

    yield make
    for batcher in made:
        batcher.close()


@pytest.fixture
def batcher(make_batcher: Callable[..., Batcher]) -> Batcher:
    """The surroundings of most tests."""
    return make_batcher()
