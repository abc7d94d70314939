"""Several blocks that are read as if they were one contiguous block: the tensors of an ensemble's response."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import cast


class Pieces:
    """A read-only sequence of blocks that is sliced as if it were one block; a slice must lie within one block, as each
    tensor does."""

    __slots__ = ("_starts", "nbytes", "pieces")

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = pieces
        *self._starts, self.nbytes = accumulate([len(piece) for piece in pieces], initial=0)

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, where: slice) -> memoryview:
        number = bisect_right(self._starts, where.start) - 1
        start = self._starts[number]
        return self.pieces[number][where.start - start : where.stop - start]


def as_block(pieces: Sequence[memoryview]) -> memoryview:
    """One block, or several as `Pieces`. Typed as a memoryview, since readers of responses only take slices, which
    `Pieces` supports. The blocks stay their owners'."""
    return pieces[0] if len(pieces) == 1 else cast("memoryview", Pieces(pieces))


def whole(block: memoryview) -> "memoryview | bytes":
    """All bytes of a block: the block itself, or a copy if it consists of several."""
    return b"".join(block.pieces) if isinstance(block, Pieces) else block
