"""A reply to a client's request, read by its port from a REPLY record and the block that the record names."""

from typing import Final

from shoal.shm import layout
from shoal.shm.layout import P
from shoal.shm.ring import Record

# Word indices: an attribute of their class would take 0.3k instructions per reply each.
_BLOCK: Final = P.BLOCK
_MORE: Final = P.MORE
_PIECES: Final = P.PIECES
_NO_RECORD: Final = layout.record()


class Reply:  # made for each request: not a dataclass, whose construction is not compiled
    """A reply to a request. With `status` 0, a success, `header` is the packed response header, copied from `block`.

    A reply that is not final leaves the request open; the final one may have no header, and then only ends the request.
    With another status, `reason` names the batcher's refusal (shoal.reasons), or is 0 and `header` is the worker's
    sentence (UTF-8). `block`, read-only and valid until `Port.release`, stands for several blocks if an ensemble has
    answered (pieces.py).
    """

    __slots__ = ("block", "detail", "header", "number", "piece", "reason", "record", "status")

    def __init__(
        self, number: int, status: int, reason: int, block: memoryview | None, header: bytes | None, detail: int = 0,
        record: Record = _NO_RECORD,
    ) -> None:  # fmt: skip
        self.number = number
        self.status = status
        self.reason = reason
        self.block = block
        self.header = header
        self.detail = detail  # the number in the sentence of `reason`
        self.record = record  # the REPLY record itself
        self.piece = 0  # reference to the first of the reply's pieces, set by the port; 0 without pieces

    @property
    def is_final(self) -> bool:
        """Whether no other reply to the request follows."""
        return not self.record[_MORE]

    @property
    def is_empty(self) -> bool:
        """Whether the reply has no answer and only ends the request."""
        return not (self.status or self.reason or self.record[P.HEADER])

    @property
    def part(self) -> int:
        """The `part` that `Port.release` needs for this reply: its block if it is not final, else 0."""
        return self.record[_BLOCK] if self.record[_MORE] else 0

    @property
    def tensors_ref(self) -> int:
        """Reference to the block that all tensors lie in; 0 if they lie in several blocks."""
        num_pieces = self.record[_PIECES]
        return self.record[_BLOCK] if not num_pieces else self.piece if num_pieces == 1 else 0

    @property
    def times(self) -> Record:
        """For a traced request: when the request was accepted, and the four compute time points, in monotonic ns; else
        five zeros."""
        return self.record[P.QUEUE_START_NS : P.COMPUTE_END_NS + 1]
