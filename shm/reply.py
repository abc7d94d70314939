"""An answer to a client's request as its port reads it out of a REPLY record and the block that this names."""

from dataclasses import dataclass, field

from shoal.shm import layout
from shoal.shm.layout import P
from shoal.shm.ring import Record

# Looked up in its class, each takes 0.3k instructions, per reply.
_BLOCK, _MORE, _PIECES = P.BLOCK, P.MORE, P.PIECES
_NO_RECORD = layout.record()


@dataclass(slots=True)  # one per request: not frozen, which takes twice as long to make
class Reply:
    """An answer to a request. `status` 0 is success; `header` is then the response's header, copied from `block`.

    One that is not final leaves the request open; the final one may have no header, and say no more than that it ends.
    Otherwise `reason` names why the batcher refused, or, where it is 0, `header` holds the worker's sentence (UTF-8).
    `block` may be several, of an ensemble, as if they were one.
    """

    number: int
    status: int
    reason: int
    block: memoryview | None
    header: bytes | None
    detail: int = 0  # what the sentence of `reason` names
    record: Record = field(default=_NO_RECORD, compare=False, repr=False)  # as it came
    piece: int = 0  # of an ensemble's, the first block that its tensors lie in

    @property
    def is_final(self) -> bool:
        """Whether no other reply to the request follows."""
        return not self.record[_MORE]

    @property
    def is_empty(self) -> bool:
        """Whether it says only that the request has had its last answer."""
        return not (self.status or self.reason or self.record[P.HEADER])

    @property
    def part(self) -> int:
        """What `release` must be told of a reply that is not final; 0 of others."""
        return self.record[_BLOCK] if self.record[_MORE] else 0

    @property
    def tensors_ref(self) -> int:
        """The block that the tensors lie in; 0 where they lie in several."""
        num_pieces = self.record[_PIECES]
        return self.record[_BLOCK] if not num_pieces else self.piece if num_pieces == 1 else 0

    @property
    def times(self) -> Record:
        """Of a request that is traced: when it was accepted, and the four compute time points, in monotonic ns."""
        return self.record[P.QUEUE_START_NS : P.COMPUTE_END_NS + 1]
