"""A client's end of the star: blocks for requests, records to the batcher, replies from it.

One per front end and per worker whose model calls others. Not thread-safe: whoever has several threads uses it under a
lock. A request's block belongs to the client until its reply has come; the reply's block belongs to a worker and is
readable until `release`.
"""

from dataclasses import dataclass, field

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CANCEL, HOLD, RELEASE, REPLY, REQUEST, TRACE, LayoutError, P, R, ref_owner, unpack_span
from shoal.shm.ring import Record, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab, SlabView

#: Replies that a client may hold, per request that it may have in flight. A stream has up to 32, so with the default of
#: 1024 requests 256 clients may stall at once (ours).
HELD_PER_REQUEST = 8
#: Records of a client's ring per request in flight: its REQUEST, its TRACE, two CANCELs and, to a new batcher, the
#: REQUEST once more. Each reply has one: its RELEASE or, to a new batcher, its HOLD.
RECORDS_PER_REQUEST = 5 + HELD_PER_REQUEST
# Looked up in its class, each takes 0.3k instructions, per reply.
_NUMBER, _STATUS, _BLOCK, _HEADER, _REASON, _DETAIL = P.NUMBER, P.STATUS, P.BLOCK, P.HEADER, P.REASON, P.DETAIL
_MORE, _ASKED_BLOCK = P.MORE, R.BLOCK
_NO_RECORD = layout.record()


@dataclass(slots=True)  # one per request: not frozen, which takes twice as long to make
class Reply:
    """An answer to a request. `status` 0 is success; `header` is then the response's header, copied from `block`.

    One that is not final leaves the request open; the final one may have no block, and say no more than that it ends.
    Otherwise `reason` names why the batcher refused, or, where it is 0, `header` holds the worker's sentence (UTF-8).
    """

    number: int
    status: int
    reason: int
    block: memoryview | None
    header: bytes | None
    detail: int = 0  # what the sentence of `reason` names
    record: Record = field(default=_NO_RECORD, compare=False, repr=False)  # as it came

    @property
    def is_final(self) -> bool:
        """Whether no other reply to the request follows."""
        return not self.record[_MORE]

    @property
    def is_empty(self) -> bool:
        """Whether it says only that the request has had its last answer."""
        return not (self.status or self.reason or self.record[_BLOCK])

    @property
    def part(self) -> int:
        """What `release` must be told of a reply that is not final; 0 of others."""
        return self.record[_BLOCK] if self.record[_MORE] else 0

    @property
    def times(self) -> Record:
        """Of a request that is traced: when it was accepted, and the four compute time points, in monotonic ns."""
        return self.record[P.QUEUE_START_NS : P.COMPUTE_END_NS + 1]


class Port:
    """Submit requests, collect replies, release them."""

    def __init__(self, segment: Segment, link: SegmentView, batcher_bell: Doorbell, max_in_flight: int) -> None:
        self.slab = Slab(segment)
        self._writer = RingWriter(segment, link)
        self._reader = RingReader(segment, link)
        self._batcher_bell = batcher_bell
        self._max_in_flight = max_in_flight
        self._max_held = HELD_PER_REQUEST * max_in_flight
        # Changed by submit, poll, release and the announcements of segments.
        self._must_ring = False
        self._number = 0
        self._open: dict[int, Record] = {}  # number → its REQUEST, until it is answered
        self._held: dict[int, int] = {}  # number → the block of its reply, until that is released
        self._parts: set[tuple[int, int]] = set()  # number and block of replies before the last one
        self._segments: dict[int, SlabView] = {}
        #: Blocks of answered requests that are not the slab's: whoever made them gives them back, and clears the list.
        self.spent: list[int] = []

    @property
    def num_in_flight(self) -> int:
        """Requests submitted and not yet replied to."""
        return len(self._open)

    @property
    def num_held(self) -> int:
        """Replies that have a block and were not released yet."""
        return len(self._held) + len(self._parts)

    @property
    def is_full(self) -> bool:
        """Whether no request may be submitted now: as many as may be are in flight, or their replies might be too many
        with those that are held."""
        num_open = len(self._open)
        return num_open >= self._max_in_flight or num_open + self.num_held >= self._max_held

    @property
    def is_crowded(self) -> bool:
        """Whether the ring's last places are left: for requests, and for the ends of those in flight."""
        return self._writer.num_free <= 2 * self._max_in_flight

    @property
    def counts(self) -> dict[str, int]:
        """For the ledger: blocks of the slab, slots of the batcher's ring; what is open and what is held."""
        blocks_acquired, blocks_released = self.slab.counts
        slots_acquired, slots_released = self._reader.counts
        return {
            "blocks_acquired": blocks_acquired,
            "blocks_released": blocks_released,
            "slots_acquired": slots_acquired,
            "slots_released": slots_released,
            "requests_open": len(self._open),
            "replies_held": self.num_held,
        }

    def add_segment(self, owner: int, view: SegmentView) -> None:
        """A segment of a worker may be named by replies from now on."""
        self._segments[owner] = SlabView(view)

    def remove_segment(self, owner: int) -> None:
        """No reply names that segment any more."""
        self._segments.pop(owner, None)

    def allocate(self, nbytes: int) -> Block:
        """A block of the slab for a request of `nbytes`.

        Raises UnavailableError where there is none now (the queue is memory, too), InvalidArgumentError where there
        never is.
        """
        if nbytes > self.slab.largest_nbytes:
            raise InvalidArgumentError(
                f"the request takes {nbytes} bytes of shared memory, its tensors' padding and header included; the "
                f"largest block has {self.slab.largest_nbytes}. Send smaller batches, or raise --shm-client-slab-mib"
            )
        block = None if self.is_full else self.slab.allocate(nbytes)
        if block is None:
            raise UnavailableError("Exceeds maximum queue size")
        return block

    def submit(
        self,
        model: int,
        block: Block,
        header: int,
        rows: int,
        shape_key: int,
        start_ns: int,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> int:
        """Hand a filled block to the batcher; visible to it at the next `flush`. Returns the request's number.

        `header` is the span of the packed InferRequest in the block. The block is freed here when the reply comes; one
        that is not the slab's is then put into `spent`.
        """
        self._number = number = self._number + 1
        record = (
            REQUEST, number, model, block.ref, header, rows, shape_key, priority, timeout_us,
            0, 0, start_ns, 0, 0, 0, 0,
        )  # fmt: skip
        self._writer.push(record)
        self._open[number] = record
        self._must_ring = True
        return number

    def cancel(self, number: int, *, is_sure: bool = True) -> None:
        """Nobody waits for this answer any more; say so once, and once before that where it is not sure.

        Unless it is, a request that is still queued stays so. Its one reply still comes and must still be released.
        """
        if number in self._open:
            self._writer.push((CANCEL, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 if is_sure else 1, 0, 0, 0))
            self._must_ring = True

    def trace(self, number: int) -> None:
        """Have the times of a request that was just submitted in its reply (`Reply.times`).

        A batcher that takes the place of a dead one does not hear of it: then they are 0.
        """
        self._writer.push(layout.record(TRACE, number))

    def submitted(self, number: int) -> tuple[memoryview, int, int]:
        """Of a request in the slab that has not been replied to: its block, its header's span, when it began (ns)."""
        record = self._open[number]
        return self.slab.open(record[R.BLOCK]), record[R.HEADER], record[R.START_NS]

    def release(self, number: int, part: int = 0, *, prompt: bool = True) -> None:
        """The reply's block has been read; it may be given back to its worker. `part` is the reply's.

        Where that need not be `prompt`, it wakes nobody: the batcher sees it with the next request, or when a worker
        that lacks memory rings, or with `wake`.
        """
        if part:
            self._parts.discard((number, part))
        else:
            self._held.pop(number, None)
        self._writer.push((RELEASE, number, 0, part, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        self._must_ring = self._must_ring or prompt

    def resubmit(self) -> None:
        """The batcher is dead: tell its successor what is open and what is held. Collect what the dead one said first.

        A cancelled request is open, too; it is not cancelled again, and its one reply still comes.
        """
        for number, ref in self._held.items():
            self._writer.push(layout.record(HOLD, number, 0, ref))
        for number, ref in self._parts:
            self._writer.push((HOLD, number, 0, ref, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0))
        for record in self._open.values():
            self._writer.push(record)
        self._must_ring = True
        self.flush()

    def flush(self) -> None:
        """Show the batcher what was pushed, and ring its bell once if it must know at once."""
        if self._writer.publish() and self._must_ring:
            self._must_ring = False
            self._batcher_bell.ring()

    def wake(self) -> None:
        """Have the batcher read now whatever it has been shown."""
        self._batcher_bell.ring()

    def poll(self) -> list[Reply]:
        """The replies that have come; with its final one a request's own block is free again.

        Of more than may be held, the rest is given back unread, with a reason. Clear the bell before calling.
        """
        replies = []
        for record in self._reader.drain():
            if record[0] != REPLY:
                raise LayoutError(f"the batcher sent a record of kind {record[0]}")
            number, ref, more = record[_NUMBER], record[_BLOCK], record[_MORE]
            asked = self._open.get(number) if more else self._open.pop(number, None)
            if asked is None:
                continue  # answered before: a late reply to a number that is gone
            if not more and not self.slab.free(asked[_ASKED_BLOCK]):
                self.spent.append(asked[_ASKED_BLOCK])
            view, reason = self._segments.get(ref_owner(ref)), record[_REASON]
            block = view.open(ref) if view is not None else None
            if block is not None and self.num_held >= self._max_held:
                block, reason = None, int(Reason.NO_MEMORY)
            header = None
            if block is not None:
                if more:
                    self._parts.add((number, ref))
                else:
                    self._held[number] = ref
                offset, nbytes = unpack_span(record[_HEADER])
                header = block[offset : offset + nbytes].tobytes()
            elif ref:
                # Nobody reads what the batcher keeps: a worker's lie, or one too many.
                self.release(number, ref if more else 0, prompt=False)
            replies.append(Reply(number, record[_STATUS], reason, block, header, record[_DETAIL], record))
        return replies
