"""A reply whose block has been released, since its data was copied. Its class inherits from a compiled one, and so is
compiled, too."""

from collections.abc import Callable

from shoal.shm.reply import Reply


class KeptReply(Reply):
    """A reply whose block has been released: its data is a copy, which counts as kept until `forget` is called."""

    __slots__ = ("_count",)

    def __init__(self, reply: Reply, copied: memoryview, count: Callable[[int], None]) -> None:
        """`copied` is the copy of the reply's data; `count` adds to the number of kept bytes."""
        Reply.__init__(self, reply.number, reply.status, reply.reason, copied, reply.header, reply.detail, reply.record)
        self._count = count

    def forget(self) -> None:
        """Count the copy as no longer kept. Call under the lock of the port."""
        assert self.block is not None, "it was copied"
        self._count(-len(self.block))
