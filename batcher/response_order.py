"""`preserve_ordering`: a model's responses leave in the order in which its requests left their queue.

As in Triton, a request gets its place when an instance is given the request; a request that is rejected or cancelled
before that is answered at once. Responses of the first request in the order are sent at once; responses of later ones
wait. Knows no clock and writes no record; responses pass through. Lives in the batcher.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

_ReplyT = TypeVar("_ReplyT")


def keeps_order(config: dict[str, Any]) -> bool:
    """Whether a model's configuration asks for ordered responses."""
    return bool(config.get("dynamic_batching", {}).get("preserve_ordering", False))


class ResponseOrder(Generic[_ReplyT]):
    """The order of one model's requests, by key. A request that begins twice, because its instance died, keeps its
    place."""

    __slots__ = ("_kept", "_over")

    def __init__(self) -> None:
        # Changed by all methods: open requests in order, each with its responses that wait; keys of requests whose last
        # response has come.
        self._kept: OrderedDict[int, list[_ReplyT]] = OrderedDict()
        self._over: set[int] = set()

    def begin(self, keys: Iterable[int]) -> bool:
        """Note requests given to an instance. Returns whether earlier requests are open, so that the responses may have
        to wait."""
        waits = bool(self._kept)
        for key in keys:
            self._kept.setdefault(key, [])
        return waits

    def admit(self, key: int, reply: _ReplyT, *, is_last: bool) -> list[_ReplyT]:
        """The responses that may be sent now that `reply` came: none, or this one and those that have waited for it."""
        kept = self._kept.get(key)
        if kept is None:
            return [reply]
        kept.append(reply)
        if is_last:
            self._over.add(key)
        return self._due()

    def num_kept(self, key: int) -> int:
        """Number of a request's responses that wait."""
        return len(self._kept.get(key, ()))

    def forget(self, is_gone: Callable[[int], bool]) -> list[_ReplyT]:
        """Remove the requests that `is_gone` selects. Returns the responses of other requests that may be sent now."""
        for key in [key for key in self._kept if is_gone(key)]:
            del self._kept[key]
            self._over.discard(key)
        return self._due()

    def _due(self) -> list[_ReplyT]:
        due: list[_ReplyT] = []
        while self._kept:
            key, replies = next(iter(self._kept.items()))
            due += replies
            replies.clear()
            if key not in self._over:
                break
            self._over.remove(key)
            del self._kept[key]
        return due
