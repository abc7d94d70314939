"""`preserve_ordering`: a model's responses leave in the order in which its requests left their queue.

As in Triton, a request has its place from when an instance is given it; one that is rejected or cancelled before is
answered at once. Of the request whose turn it is every response goes at once, of the others none until then.
Knows no clock and writes no record; what is to be said passes through. Lives in the batcher.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

_Said = TypeVar("_Said")


def keeps_order(config: dict[str, Any]) -> bool:
    """Whether a model's configuration asks for it."""
    return bool(config.get("dynamic_batching", {}).get("preserve_ordering", False))


class ResponseOrder(Generic[_Said]):
    """A key is a request's; it may come twice before it ends, when its instance dies, and keeps its first place."""

    __slots__ = ("_kept", "_over")

    def __init__(self) -> None:
        # Changed by all methods: of the open requests, in order, what was said too early; those of which that was all.
        self._kept: OrderedDict[int, list[_Said]] = OrderedDict()
        self._over: set[int] = set()

    def begin(self, keys: Iterable[int]) -> bool:
        """An instance is given these. Whether others are before them, so that their responses may have to wait."""
        waits = bool(self._kept)
        for key in keys:
            self._kept.setdefault(key, [])
        return waits

    def admit(self, key: int, said: _Said, *, is_last: bool) -> list[_Said]:
        """What may be said now that this was: nothing, this alone, or also what has waited for it."""
        kept = self._kept.get(key)
        if kept is None:
            return [said]
        kept.append(said)
        if is_last:
            self._over.add(key)
        return self._due()

    def num_kept(self, key: int) -> int:
        """What was said of a request and not admitted yet."""
        return len(self._kept.get(key, ()))

    def forget(self, is_gone: Callable[[int], bool]) -> list[_Said]:
        """Nobody waits for these any more: what may be said of others now."""
        for key in [key for key in self._kept if is_gone(key)]:
            del self._kept[key]
            self._over.discard(key)
        return self._due()

    def _due(self) -> list[_Said]:
        due: list[_Said] = []
        while self._kept:
            key, said = next(iter(self._kept.items()))
            due += said
            said.clear()
            if key not in self._over:
                break
            self._over.remove(key)
            del self._kept[key]
        return due
