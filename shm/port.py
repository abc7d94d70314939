"""A client's end of the star: blocks for requests, records to the batcher, replies from it.

There is one per front end, guest and worker whose model calls others. Not thread-safe: a process with several threads
uses it under a lock. A request's block belongs to the client until its reply has come; the reply's block belongs to a
worker and is readable until `release`.
"""

from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Protocol

from shoal.errors import InvalidArgumentError
from shoal.reasons import Reason
from shoal.sequences import correlation_word
from shoal.shm import layout
from shoal.shm.awaited_segments import AwaitedSegments
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.layout import (
    CHILD_TRACE,
    MAX_RELEASED,
    NO_DIGEST,
    OWNER_SHIFT,
    RECALL,
    REPLY,
    REQUEST,
    SPAN_MASK,
    SPAN_SHIFT,
    WORD,
    C,
    LayoutError,
    P,
    R,
    T,
    ref_owner,
    release_record,
)
from shoal.shm.pieces import as_block
from shoal.shm.reply import Reply
from shoal.shm.ring import Record, RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.shares import HELD_PER_REQUEST, MODELS_AT_ONCE, NoRoomError, Shares, least_ample
from shoal.shm.slab import Block, Slab, SlabView

__all__ = ["CheckedRequest", "NoRoomError", "Port", "Reply", "SchedulingHints"]


class NumberedModel(Protocol):
    """A model version, by its number."""

    @property
    def model_id(self) -> int: ...


class CheckedRequest(Protocol):
    """A request that its model takes: its rows, and the key of the requests that it may be batched with."""

    @property
    def entry(self) -> NumberedModel: ...
    @property
    def rows(self) -> int: ...
    @property
    def shape_key(self) -> int: ...


class SchedulingHints(Protocol):
    """What a client says to the scheduler of its request's model; 0 = nothing."""

    @property
    def priority(self) -> int: ...
    @property
    def timeout_us(self) -> int: ...
    @property
    def correlation_id(self) -> int | str: ...
    @property
    def flags(self) -> int: ...


# Word indices of REPLY and REQUEST: looked up in their class, each takes 0.3k instructions per reply.
_BLOCK, _MORE, _PIECES, _ASKED_BLOCK, _ASKED_MODEL = P.BLOCK, P.MORE, P.PIECES, R.BLOCK, R.MODEL


class Port:
    """Submits requests, collects replies and releases them."""

    def __init__(
        self,
        segment: Segment,
        link: SegmentView,
        batcher_bell: Doorbell | GuestBell,
        max_in_flight: int,
        correlation_key: bytes = b"",
        *,
        asks_for_segments: bool = False,
    ) -> None:
        """Take over the client's end of a link: its own `segment`, with a slab, and the batcher's `link`.

        `max_in_flight` bounds the requests of one model; all models together may have MODELS_AT_ONCE times as many, and
        share them and the slab. `correlation_key` is the server's. With `asks_for_segments`, replies may name segments
        that the port does not have: it then stops reading until `wanted` has been added.
        """
        self.slab = Slab(segment)
        self._writer = RingWriter(segment, link)
        self._reader = RingReader(segment, link)
        self._batcher_bell = batcher_bell
        self._max_of_model = max_in_flight
        self._max_in_flight = MODELS_AT_ONCE * max_in_flight
        self._ample_nbytes = least_ample(self.slab.nbytes)
        self._correlation_key = correlation_key
        self._max_held = HELD_PER_REQUEST * max_in_flight
        # Changed by submit, poll, release, and when segments are announced.
        self._must_ring = False
        self._number = 0
        self._open: dict[int, Record] = {}  # number → its REQUEST, until the final reply
        # what each model has of `_open`; None while neither places nor memory are scarce
        self._shares: Shares | None = None
        self._held: dict[int, int] = {}  # number → the block of its final reply, until that is released
        # (number, block) → how often held: replies that are not final, and pieces
        self._parts = Counter[tuple[int, int]]()
        #: (number, part) → blocks of a reply's tensors, if not its own; part is 0 for the final reply.
        self._pieces: dict[tuple[int, int], list[int]] = {}
        self._released: list[int] = []  # numbers of final replies that the next RELEASE names
        self._segments: dict[int, SlabView] = {}
        self.asks_for_segments = asks_for_segments
        self._awaited = AwaitedSegments(self._segments)
        self._children: dict[int, list[Record]] = {}  # number of a traced request → what `trace` returned
        #: Called in the middle of `poll` with the segments of a worker that lacks memory, and whether it gets none
        #: elsewhere: the client is to copy and release held replies that lie there.
        self.on_recall: Callable[[Container[int], bool], None] = lambda _segments, _is_urgent: None
        #: Blocks of answered requests outside the slab, which the process that made them frees and takes from the list.
        self.spent: list[int] = []

    @property
    def wanted(self) -> int:
        """Owner id of the segment that must be added before replies can be read on; 0 = none."""
        return self._awaited.wanted

    @property
    def num_held(self) -> int:
        """Replies that have a block and were not released yet."""
        return len(self._held) + len(self._parts)

    @property
    def is_ample(self) -> bool:
        """Whether so little is in flight that no model can have more than its share."""
        return len(self._open) < self._max_of_model and self.slab.free_nbytes >= self._ample_nbytes

    def has_place(self, model: int) -> bool:
        """Whether the number of requests in flight and of replies held lets this model have one request more."""
        num_open = len(self._open)
        if num_open + len(self._held) + len(self._parts) >= self._max_held:
            return False
        if num_open < self._max_of_model:
            return True
        shares = self._shares or self._count_shares()
        return shares.num_requests(model) < self._max_of_model and shares.has_place(
            model, self._max_in_flight - num_open
        )

    def has_memory(self, model: int) -> bool:
        """Whether this model's share of the slab lets it have one block more."""
        free_nbytes = self.slab.free_nbytes
        if free_nbytes >= self._ample_nbytes:
            return True
        return (self._shares or self._count_shares()).has_memory(model, free_nbytes)

    def _count_shares(self) -> Shares:
        """Begin to count requests and bytes by model: done only while either is scarce, since it costs time."""
        self._shares = shares = Shares()
        for record in self._open.values():
            shares.add(record[_ASKED_MODEL], self.slab.nbytes_of(record[_ASKED_BLOCK]))
        return shares

    def _uncount(self, shares: Shares, asked: Record) -> None:
        """Uncount an answered request, whose block is not free yet; stop counting by model once most is free."""
        shares.remove(asked[_ASKED_MODEL], self.slab.nbytes_of(asked[_ASKED_BLOCK]))
        if 2 * len(self._open) < self._max_of_model and self.slab.free_nbytes >= self._ample_nbytes:
            self._shares = None

    @property
    def is_crowded(self) -> bool:
        """Whether only those places of the ring are left that requests in flight need for their CANCEL and RELEASE."""
        return self._writer.num_free <= 2 * self._max_in_flight

    @property
    def counts(self) -> dict[str, int]:
        """For the ledger: blocks and ring slots taken and given back; requests open, replies held."""
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
        """Let replies name this segment of a worker from now on; the port keeps the view."""
        self._segments[owner] = SlabView(view)
        self._awaited.add(owner)

    def remove_segment(self, owner: int) -> None:
        """Forget a worker's segment: no further reply names it, or none that can be read."""
        self._segments.pop(owner, None)
        self._awaited.refuse(owner)

    def allocate(self, nbytes: int, model: int = 0) -> Block:
        """A writable block of the slab for a request of `nbytes` to a model; it belongs to the caller until `submit`.

        With model 0 the model is not known yet: see `admit`. Raises NoRoomError if no block is free for the model now
        (a queued request takes memory, too), InvalidArgumentError if no block is ever that large.

        Raises NoRoomError where there is none now (the queue is memory, too), InvalidArgumentError where there never is
        """
        slab = self.slab
        num_used = len(self._open) + len(self._held) + len(self._parts)
        # then `admit` refuses nothing
        is_ample = num_used < self._max_of_model and slab.free_nbytes >= self._ample_nbytes
        if is_ample or (self.has_place(model) and self.has_memory(model)):
            block = slab.allocate(nbytes)
            if block is not None:
                return block
        if nbytes > slab.largest_nbytes:
            raise InvalidArgumentError(
                f"the request takes {nbytes} bytes of shared memory, its tensors' padding and header included; the "
                f"largest block has {slab.largest_nbytes}. Send smaller batches, or raise --shm-client-slab-mib"
            )
        raise NoRoomError(model)

    def admit(self, model: int) -> None:
        """Raise NoRoomError unless a request to this model may be submitted whose block was allocated as model 0's."""
        if not (self.has_place(model) and self.has_memory(model)):
            raise NoRoomError(model)

    def submit(
        self,
        request: CheckedRequest,
        wishes: SchedulingHints,
        block: Block,
        header: int,
        start_ns: int,
        digest: tuple[int, int] = NO_DIGEST,
        deadline_ns: int = 0,
        parent: int = 0,
    ) -> int:
        """Push a REQUEST for a filled block; visible to the batcher after `flush`. Returns the request's number.

        `header` is the span of the packed InferRequest in the block; `start_ns`, `deadline_ns` are monotonic. The block
        is freed here when the reply comes; one outside the slab is then put into `spent`. `parent` is the key of the
        request for which a model makes this one; a trace of the parent has both. A batcher's successor is not told of
        it.
        """
        self._number = number = self._number + 1
        model, correlation = request.entry.model_id, wishes.correlation_id
        record: Record = (
            REQUEST, number, model, block.ref, header, request.rows, request.shape_key, wishes.priority,
            wishes.timeout_us, correlation_word(correlation, self._correlation_key) if correlation else 0, wishes.flags,
            start_ns,
        )  # fmt: skip
        if deadline_ns or digest != NO_DIGEST:
            record = (*record, 0, *digest, deadline_ns)
        self._writer.push(record if not parent else layout.child_request_record(record, parent))
        self._open[number] = record
        if self._shares is not None:
            self._shares.add(model, self.slab.nbytes_of(block.ref))
        self._must_ring = True
        return number

    def cancel(self, number: int, *, is_sure: bool = True) -> None:
        """Say that the client waits for this answer no more: at most once with `is_sure`, and once without before that.

        Without `is_sure`, a queued request is not cancelled. The final reply still comes and must be released.

        Unless it is, a request that is still queued stays so. Its one reply still comes and must still be released.
        """
        if number in self._open:
            self._writer.push(layout.cancel_record(number, is_sure=is_sure))
            self._must_ring = True

    def trace(self, number: int) -> list[Record]:
        """Ask for the times of a request just submitted, in its reply (`Reply.times`). Returns a list to which, until
        then, the words KEY to IS_CALL (layout.T) of each request made for this one are appended at its end.

        A dead batcher's successor does not know of the trace: then the times are 0, and no more is added.
        """
        self._writer.push(layout.trace_record(number))
        children: list[Record] = []
        self._children[number] = children
        return children

    def submitted(self, number: int) -> tuple[memoryview, int, int]:
        """An open request's block in the slab, its header's span, and its start (monotonic ns)."""
        record = self._open[number]
        return self.slab.open(record[R.BLOCK]), record[R.HEADER], record[R.START_NS]

    def release(self, number: int, part: int = 0, *, prompt: bool = True) -> None:
        """Give a reply's block back to its worker: it must not be read any more. `part` is the reply's (`Reply.part`).

        Without `prompt`, the batcher is not woken: it reads the RELEASE with the next request, with `wake`, or when a
        worker that lacks memory rings.
        """
        if self._pieces:
            for piece in self._pieces.pop((number, part), ()):
                self.release(number, piece, prompt=prompt)
        if part:
            if (left := self._parts.pop((number, part), 0) - 1) > 0:
                self._parts[number, part] = left
            self._writer.push(layout.release_part_record(number, part))
        else:
            self._held.pop(number, None)
            if len(self._released) == MAX_RELEASED:
                self._writer.push(release_record(*self._released))
                self._released.clear()
            self._released.append(number)
        self._must_ring = self._must_ring or prompt

    def resubmit(self) -> None:
        """Send a dead batcher's successor all open requests and held replies. Collect the dead one's replies first.

        A cancelled request is open, too; it is not cancelled again, and its final reply still comes. The first HOLD is
        marked: if two batchers die in a row, the third may read all this twice.
        """
        held = [(*each, False) for each in self._held.items()] + [(*each, True) for each in self._parts.elements()]
        for index, (number, ref, is_part) in enumerate(held):
            self._writer.push(layout.hold_record(number, ref, is_first=index == 0, is_part=is_part))
        for record in self._open.values():
            self._writer.push(record)
        self._must_ring = True
        self.flush()

    def flush(self) -> None:
        """Make pushed records visible to the batcher, and ring its bell once if any of them must be read at once."""
        if self._released:
            with suppress(RingFullError):  # the ring is full: a later flush pushes them
                self._writer.push(release_record(*self._released))
                self._released.clear()
        if self._writer.publish() and self._must_ring:
            self._must_ring = False
            self._batcher_bell.ring()

    def wake(self) -> None:
        """Ring the batcher's bell, so that it reads all visible records now."""
        self._batcher_bell.ring()

    def poll(self) -> list[Reply]:
        """All new replies. A final one frees the request's own block; a reply's block is readable until `release`.

        Replies beyond those that may be held are released unread and returned with a reason. If the bell is one that
        must be cleared, clear it before this. Raises LayoutError if the batcher's ring or record is malformed.
        """
        replies = []
        opened, free = self._open, self.slab.free
        for record in self._awaited.readable(self._reader.drain()) if self.asks_for_segments else self._reader.drain():
            kind, number, status, ref, span, reason, detail, _, _, _, _, _, more, num_pieces, _, _ = record
            if kind != REPLY:
                self._receive_other(record)
                continue
            asked = opened.get(number) if more else opened.pop(number, None)
            if asked is None:
                continue  # a late reply to a number that has been answered
            if not more:
                if self._children:
                    self._children.pop(number, None)
                if self._shares is not None:
                    self._uncount(self._shares, asked)
                if not free(asked[_ASKED_BLOCK]):
                    self.spent.append(asked[_ASKED_BLOCK])
            view = self._segments.get(ref >> OWNER_SHIFT)
            block = view.open(ref) if view is not None else None
            header = None
            if block is not None and (len(self._held) + len(self._parts) < self._max_held or num_pieces):
                if more:
                    self._parts[number, ref] += 1
                else:
                    self._held[number] = ref
                start = span >> SPAN_SHIFT
                header = block[start : start + (span & SPAN_MASK)].tobytes()
                if num_pieces:
                    block = self._open_pieces(number, ref if more else 0, block, num_pieces)
            elif ref:  # a block that cannot be opened, or one more than may be held
                if block is not None:
                    block, reason = None, int(Reason.NO_MEMORY)
                self.release(number, ref if more else 0, prompt=False)
            reply = Reply(number, status, reason, block, header, detail, record)
            if num_pieces and header is not None:
                (reply.piece, *_) = self._pieces.get((number, reply.part), (0,))
            replies.append(reply)
        return replies

    def _receive_other(self, record: Record) -> None:
        """Handle a CHILD_TRACE or RECALL. Raises LayoutError for any other record."""
        if record[0] == CHILD_TRACE:
            if (children := self._children.get(record[T.NUMBER])) is not None:
                children.append(record[T.KEY : T.IS_CALL + 1])
        elif record[0] == RECALL:
            self.on_recall(frozenset(record[C.OWNERS :]) - {0}, bool(record[C.IS_URGENT]))
        else:
            raise LayoutError(f"the batcher sent a record of kind {record[0]}")

    def lies_in(self, number: int, part: int, segments: Container[int]) -> bool:
        """Whether a reply that is held, or one of its pieces, lies in one of these segments."""
        refs = [part or self._held.get(number, 0), *self._pieces.get((number, part), ())]
        return any(each >> OWNER_SHIFT in segments for each in refs)

    def _open_pieces(self, number: int, part: int, block: memoryview, num_pieces: int) -> memoryview | None:
        """Open the blocks whose references begin `block`, as one; each is held from now on. None if one is gone."""
        self._pieces[number, part] = refs = block[: num_pieces * WORD].cast("Q").tolist()
        self._parts.update([(number, ref) for ref in refs])
        pieces = []
        for ref in refs:
            view = self._segments.get(ref_owner(ref))
            piece = None if view is None else view.open(ref)
            if piece is None:
                self.release(number, part, prompt=False)
                return None
            pieces.append(piece)
        return as_block(pieces)
