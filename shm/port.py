"""A client's end of the star: blocks for requests, records to the batcher, replies from it.

Each front end and guest, and each worker whose model calls others, has one port. Not thread-safe: a process with
several threads uses its port under a lock. A request's block belongs to the client until its reply has come; the
reply's block belongs to a worker and is readable until `release`.
"""

from collections import Counter
from collections.abc import Callable, Container
from typing import Final

from shoal.errors import InvalidArgumentError
from shoal.fault import IS_ARMED, reached
from shoal.reasons import Reason
from shoal.sequences import correlation_word
from shoal.shm import records
from shoal.shm.asked import CheckedRequest, SchedulingHints
from shoal.shm.awaited_segments import AwaitedSegments
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.layout import (
    ANSWERED_WORD,
    ANSWERED_WORDS,
    CHILD_TRACE,
    EXECUTION,
    MAX_RELEASED,
    NO_DIGEST,
    NOTED_WORD,
    NOTED_WORDS,
    OWNER_SHIFT,
    RECALL,
    REPLY,
    REQUEST,
    RETURN,
    SPAN_MASK,
    SPAN_SHIFT,
    WORD,
    C,
    E,
    LayoutError,
    P,
    R,
    T,
    ref_owner,
)
from shoal.shm.pieces import as_block
from shoal.shm.records import release_record
from shoal.shm.reply import Reply
from shoal.shm.ring import Record, RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.shares import HELD_PER_REQUEST, MODELS_AT_ONCE, RECORDS_PER_PLACE, NoRoomError, Shares, least_ample
from shoal.shm.slab import Block, Slab, SlabView

__all__ = ["CheckedRequest", "NoRoomError", "Port", "Reply", "SchedulingHints"]


class TracedTimes:
    """The records about a traced request that the batcher sends before the last reply to it."""

    __slots__ = ("children", "execution")

    def __init__(self) -> None:
        #: The words KEY to IS_CALL (layout.T) of each request made for the traced one, appended when the child ends.
        self.children: list[Record] = []
        #: The words of an Execution (shoal/timing.py); empty until the execution is known, or if none was asked for.
        self.execution: Record = ()


# Word indices of REPLY and REQUEST: an attribute of their class would take 0.3k instructions per reply each.
_ASKED_BLOCK: Final = R.BLOCK
_ASKED_MODEL: Final = R.MODEL


class Port:
    """A client's end of the star: submits requests, collects replies and releases them."""

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
        share these places and the slab. `correlation_key` is the server's key for the hashes of sequences' ids. With
        `asks_for_segments`, replies may name segments that the port does not have: the port then stops reading replies
        until the segment `wanted` has been added.
        """
        self.slab = Slab(segment)
        #: The numbers of responses of TorchServe's protocol by the first digit of their status; one thread writes them.
        self.answered = segment.words[ANSWERED_WORD : ANSWERED_WORD + ANSWERED_WORDS]
        #: A front end's other counters, by layout.HTTP_HANDSHAKES_FAILED, GRPC_HANDSHAKES_FAILED and ABANDONED. One
        #: thread writes them.
        self.noted = segment.words[NOTED_WORD : NOTED_WORD + NOTED_WORDS]
        self._writer = RingWriter(segment, link)
        self._reader = RingReader(segment, link)
        self._batcher_bell = batcher_bell
        self._max_of_model = max_in_flight
        self._max_in_flight = MODELS_AT_ONCE * max_in_flight
        self._ample_nbytes = least_ample(self.slab.nbytes)
        self._correlation_key = correlation_key
        self._max_held = HELD_PER_REQUEST * max_in_flight
        # Changed when the ring is widened: the number of requests and held replies for which the ring has room; the
        # number of requests below which any model may have one more; the number of records that stay free when replies
        # that were never held are released.
        self._num_places = self._writer.num_first // RECORDS_PER_PLACE if self._writer.is_small else self._max_held
        self._num_ample = min(max_in_flight, self._num_places)
        self._num_kept = self._writer.num_free * 7 // 8
        # Changed by submit, poll, release, and when segments are announced: the fields from here to `_segments`.
        self._must_ring = False
        self._number = 0
        self._open: dict[int, Record] = {}  # number → the REQUEST, until the final reply
        # the requests in `_open` and their bytes, counted by model; None while neither places nor memory are scarce
        self._shares: Shares | None = None
        self._held: dict[int, int] = {}  # number → the block of the final reply, until the reply is released
        # of replies that are not final, and of pieces: (number, block) → how often the block is held
        self._parts = Counter[tuple[int, int]]()
        #: (number, part) → pieces of a reply, the blocks of its tensors; part is 0 for the final reply.
        self._pieces: dict[tuple[int, int], list[int]] = {}
        self._released: list[int] = []  # numbers of final replies that the next RELEASE names
        self._unheld: list[Record] = []  # RELEASEs, for later flushes, of replies beyond the number that may be held
        self._segments: dict[int, SlabView] = {}
        self.asks_for_segments = asks_for_segments
        self._awaited = AwaitedSegments(self._segments)
        # Blocks of answered requests that the batcher goes on reading: by number, until the batcher's RETURN; and the
        # blocks that a dead batcher was reading.
        self._lent: dict[int, int] = {}
        self._lent_before: list[int] = []
        self._traced: dict[int, TracedTimes] = {}  # number of a traced request → what `trace` returned
        #: Called in the middle of `poll` with the segments of a worker that lacks memory, and whether the worker can
        #: get memory in no other way: the client is to copy and release held replies that lie there.
        self.on_recall: Callable[[Container[int], bool], None] = lambda _segments, _is_urgent: None
        #: Blocks outside the slab whose requests were answered. The code that made such a block removes it from the
        #: list and frees it.
        self.spent: list[int] = []

    @property
    def wanted(self) -> int:
        """Owner id of the segment that must be added before further replies can be read; 0 = none."""
        return self._awaited.wanted

    @property
    def num_held(self) -> int:
        """Number of replies that have a block and were not released yet."""
        return len(self._held) + len(self._parts)

    @property
    def is_ample(self) -> bool:
        """Whether so little is in flight that no model can have more than its share."""
        return len(self._open) < self._num_ample and self.slab.free_nbytes >= self._ample_nbytes

    def has_place(self, model: int) -> bool:
        """Whether the numbers of requests and held replies allow this model one more request in flight."""
        num_open = len(self._open)
        num_used = num_open + len(self._held) + len(self._parts)
        if num_used >= self._num_places and not self._widen():
            return False
        if num_open < self._max_of_model:
            return True
        shares = self._shares or self._count_shares()
        return shares.num_requests(model) < self._max_of_model and shares.has_place(
            model, self._max_in_flight - num_open
        )

    def _widen(self) -> bool:
        """Widen the ring, so that it has room for all that may be outstanding. False if there is no memory for that, or
        the ring has that room already."""
        if self._num_places == self._max_held or (self._writer.is_small and not self._writer.widen()):
            return False
        self._num_places, self._num_ample = self._max_held, self._max_of_model
        self._num_kept = self._writer.num_free * 7 // 8
        return True

    def prepare(self) -> None:
        """Add memory to slab and ring before it is needed; to be called while the process has nothing else to do."""
        self.slab.prepare()
        if 2 * (len(self._open) + self.num_held) > self._num_places:
            self._widen()

    def has_memory(self, model: int, own_nbytes: int = 0) -> bool:
        """Whether this model's share of the slab allows it one more block; `own_nbytes` of that block have been
        allocated already."""
        free_nbytes = self.slab.free_nbytes + own_nbytes
        if free_nbytes >= self._ample_nbytes:
            return True
        return (self._shares or self._count_shares()).has_memory(model, free_nbytes)

    def _count_shares(self) -> Shares:
        """Begin to count requests and bytes by model. This is done only while places or memory are scarce, since it
        costs time."""
        self._shares = shares = Shares()
        for record in self._open.values():
            shares.add(record[_ASKED_MODEL], self.slab.nbytes_of(record[_ASKED_BLOCK]))
        return shares

    def _uncount(self, shares: Shares, asked: Record) -> None:
        """Uncount an answered request, whose block is not free yet; stop counting by model once most places, and ample
        memory, are free."""
        shares.remove(asked[_ASKED_MODEL], self.slab.nbytes_of(asked[_ASKED_BLOCK]))
        if 2 * len(self._open) < self._max_of_model and self.slab.free_nbytes >= self._ample_nbytes:
            self._shares = None

    @property
    def is_crowded(self) -> bool:
        """Whether all free slots of the ring are needed for the CANCEL and RELEASE of requests in flight."""
        return self._writer.num_free <= 2 * min(self._num_places, self._max_in_flight)

    @property
    def counts(self) -> dict[str, int]:
        """The port's figures for the ledger: blocks and ring slots taken and returned; requests open, replies held."""
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
        """Forget a worker's segment: replies that still name it cannot be read any more."""
        self._segments.pop(owner, None)
        self._awaited.refuse(owner)

    def allocate(self, nbytes: int, model: int = 0) -> Block:
        """A writable block of at least `nbytes` bytes of the slab for a request to a model; the block does not
        belong to the port until `submit`. Model 0: the model is not known yet, and `admit` must be called later.

        Raises NoRoomError if no block is free for the model now, InvalidArgumentError if no block is ever that large.
        """
        slab = self.slab
        num_used = len(self._open) + len(self._held) + len(self._parts)
        # while less than one model's share is in use, any model may take a block
        is_ample = num_used < self._num_ample and slab.free_nbytes >= self._ample_nbytes
        if is_ample or (self.has_place(model) and self.has_memory(model)):
            block = slab.allocate(nbytes)
            if block is not None:
                if IS_ARMED:
                    reached("allocated")
                return block
        if nbytes > slab.largest_nbytes:
            raise InvalidArgumentError(
                f"the request takes {nbytes} bytes of shared memory, its tensors' padding and header included; the "
                f"largest block has {slab.largest_nbytes}. Send smaller batches, or raise --shm-client-slab-mib"
            )
        raise NoRoomError(model)

    def admit(self, model: int, block: Block) -> None:
        """Raise NoRoomError unless this model may have one more request, in a block that `allocate` has given for
        model 0.

        The block counts as free memory, since the request has it already.
        """
        if not (self.has_place(model) and self.has_memory(model, self.slab.nbytes_of(block.ref))):
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

        `header` is the span of the packed InferRequest in the block; `start_ns` and `deadline_ns` are monotonic times.
        The block belongs to the port from now on and is freed when the reply comes; a block outside the slab is put
        into `spent` then. `parent` is the key of the request for which a model makes this one, which is then part of
        the parent's trace. A dead batcher's successor does not learn of the parent.
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
        self._writer.push(record if not parent else records.child_request_record(record, parent))
        self._open[number] = record
        if self._shares is not None:
            self._shares.add(model, self.slab.nbytes_of(block.ref))
        self._must_ring = True
        if IS_ARMED:
            reached("submitted")
        return number

    def cancel(self, number: int, *, is_sure: bool = True) -> None:
        """Cancel a request, because its client does not wait any more, or, without `is_sure`, perhaps does not. May be
        called once without `is_sure`, and after that once with it.

        Without `is_sure`, a request that is still queued stays queued. The final reply comes and must be released.
        """
        if number in self._open:
            self._writer.push(records.cancel_record(number, is_sure=is_sure))
            self._must_ring = True

    def trace(self, number: int, *, is_shown: bool = False, trace_id: tuple[int, int] = (0, 0)) -> "TracedTimes":
        """Ask for the times of a request just submitted, which come in its reply (`Reply.times`). The returned object
        is filled before that reply; with `is_shown`, also with the request's execution. `trace_id` is the id of the
        client's trace.

        A dead batcher's successor does not know of the trace: then the times are 0, and nothing is added to the object.
        """
        self._writer.push(records.trace_record(number, is_shown=is_shown, trace_id=trace_id))
        self._traced[number] = traced = TracedTimes()
        return traced

    def submitted(self, number: int) -> tuple[memoryview, int, int]:
        """The block of an open request in the slab (writable; the port owns it), the span of the request's header, and
        the request's start (monotonic ns)."""
        record = self._open[number]
        return self.slab.open(record[R.BLOCK]), record[R.HEADER], record[R.START_NS]

    def release(self, number: int, part: int = 0, *, prompt: bool = True) -> None:
        """Give a reply's block back to its worker. The block must not be read after this call. `part` is `Reply.part`.

        Without `prompt`, the batcher is not woken: it reads the RELEASE with the next request, after `wake`, or when a
        worker that lacks memory rings.
        """
        if self._pieces:
            for piece in self._pieces.pop((number, part), ()):
                self.release(number, piece, prompt=prompt)
        if part:
            if (left := self._parts.pop((number, part), 0) - 1) > 0:
                self._parts[number, part] = left
            self._writer.push(records.release_part_record(number, part))
        else:
            self._held.pop(number, None)
            if len(self._released) == MAX_RELEASED:
                self._writer.push(release_record(*self._released))
                self._released.clear()
            self._released.append(number)
        self._must_ring = self._must_ring or prompt
        if IS_ARMED:
            reached("released")

    def resubmit(self) -> None:
        """Send all open requests and held replies to a dead batcher's successor. To be called after `poll` has returned
        the dead batcher's replies.

        A cancelled request is open, too: it is not cancelled again, and its final reply still comes. The first HOLD is
        marked, since a second successor may read the HOLDs for the first one, too, if that one has died meanwhile.
        """
        # A worker may still read a lent block for the dead batcher: the successor, which knows what workers have, sends
        # RETURN when none does.
        self._lent_before += self._lent.values()
        self._lent.clear()
        if self._lent_before:
            self._writer.push(records.return_record(0))
        self._unheld.clear()  # a successor counts only replies for which it gets a HOLD as held
        held = [(*each, False) for each in self._held.items()] + [(*each, True) for each in self._parts.elements()]
        for index, (number, ref, is_part) in enumerate(held):
            self._writer.push(records.hold_record(number, ref, is_first=index == 0, is_part=is_part))
        for record in self._open.values():
            self._writer.push(record)
        self._must_ring = True
        self.flush()

    def flush(self) -> None:
        """Make pushed records visible to the batcher, and ring its bell once if any of them must be read at once."""
        if self._released:
            try:  # `suppress` would take three calls for each flush
                self._writer.push(release_record(*self._released))
                self._released.clear()
            except RingFullError:
                pass  # a later flush pushes the RELEASE
        if self._unheld:
            self._release_unheld()
        if self._writer.publish() and self._must_ring:
            self._must_ring = False
            self._batcher_bell.ring()

    def _release_unheld(self) -> None:
        """Push RELEASEs of replies beyond the number that may be held, as far as they leave the requests' room free."""
        num = max(0, self._writer.num_free - self._num_kept)
        for record in self._unheld[:num]:
            self._writer.push(record)
        del self._unheld[:num]

    def wake(self) -> None:
        """Ring the batcher's bell, so that it reads all visible records now."""
        self._batcher_bell.ring()

    def poll(self) -> list[Reply]:
        """All new replies. A final reply frees the request's own block; a reply's block, which is its worker's, is
        readable until `release`.

        Replies beyond those that may be held are released unread and returned with a reason. A bell that must be
        cleared is cleared before this call. Raises LayoutError if the batcher's ring or record is malformed.
        """
        replies = []
        opened, slab = self._open, self.slab
        for record in self._awaited.readable(self._reader.drain()) if self.asks_for_segments else self._reader.drain():
            kind, number, status, ref, span, reason, detail, _, _, _, _, _, more, num_pieces, is_lent, _ = record
            if kind != REPLY:
                self._receive_other(record)
                continue
            asked = opened.get(number) if more else opened.pop(number, None)
            if asked is None:
                continue  # a second final reply to a request, from a successor
            if not more:
                if self._traced:
                    self._traced.pop(number, None)
                if self._shares is not None:
                    self._uncount(self._shares, asked)
                if is_lent:
                    self._lent[number] = asked[_ASKED_BLOCK]
                elif not slab.free(asked[_ASKED_BLOCK]):
                    self.spent.append(asked[_ASKED_BLOCK])
            view = self._segments.get(ref >> OWNER_SHIFT)
            block = view.open(ref) if view is not None else None
            header = None
            if block is not None and (
                len(self._held) + len(self._parts) < self._num_places or num_pieces or self._widen()
            ):
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
                if more:
                    self._unheld.append(records.release_part_record(number, ref))
                else:
                    self.release(number, prompt=False)
            reply = Reply(number, status, reason, block, header, detail, record)
            if num_pieces and header is not None:
                (reply.piece, *_) = self._pieces.get((number, reply.part), (0,))
            replies.append(reply)
        if IS_ARMED and replies:
            reached("replied")
        return replies

    def _receive_other(self, record: Record) -> None:
        """Handle a CHILD_TRACE, EXECUTION, RECALL or RETURN. Raises LayoutError for any other record."""
        if record[0] == CHILD_TRACE:
            if (traced := self._traced.get(record[T.NUMBER])) is not None:
                traced.children.append(record[T.KEY : T.IS_CALL + 1])
        elif record[0] == EXECUTION:
            if (traced := self._traced.get(record[E.NUMBER])) is not None:
                traced.execution = record[E.INSTANCE : E.END]
        elif record[0] == RECALL:
            self.on_recall(frozenset(record[C.OWNERS :]) - {0}, bool(record[C.IS_URGENT]))
        elif record[0] == RETURN:
            self._take_back(record[P.NUMBER])
        else:
            raise LayoutError(f"the batcher sent a record of kind {record[0]}")

    def _take_back(self, number: int) -> None:
        """Free the block of the request `number`, which the batcher does not read any more; with 0, all blocks that a
        dead batcher was reading."""
        if number:
            returned = [ref] if (ref := self._lent.pop(number, 0)) else []
        else:
            returned, self._lent_before = self._lent_before, []
        self.spent += [ref for ref in returned if not self.slab.free(ref)]

    def lies_in(self, number: int, part: int, segments: Container[int]) -> bool:
        """Whether a reply that is held, or one of its pieces, lies in one of these segments."""
        refs = [part or self._held.get(number, 0), *self._pieces.get((number, part), ())]
        return any(each >> OWNER_SHIFT in segments for each in refs)

    def _open_pieces(self, number: int, part: int, block: memoryview, num_pieces: int) -> memoryview | None:
        """Open the blocks whose references stand at the start of `block`, to be read as one block; each is held from
        now on. None if one of them is gone."""
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
