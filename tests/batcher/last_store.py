"""A batcher that dies right after a store that others can see.

The stores are seen where they go, in the words of its links: compiled callers would not notice a replaced method.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast


class DiedError(Exception):
    """The batcher is dead."""


class _Left:
    """How many stores are left to the batcher; 0 if it may live on."""

    num = 0


class _Words:
    """The words of a segment, which count stores."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def __getitem__(self, index: Any) -> Any:
        return self._words[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._words[index] = value
        if _Left.num:
            _Left.num -= 1
            if not _Left.num:
                raise DiedError


def watched(words: memoryview) -> memoryview:
    """The same words; the batcher's life hangs on stores to them."""
    return cast(memoryview, _Words(words))


@contextmanager
def dying(number: int) -> Iterator[None]:
    """The batcher dies right after its store of this number that others can see, if it comes to that."""
    _Left.num = number
    try:
        yield
    except DiedError:
        return
    finally:
        _Left.num = 0
