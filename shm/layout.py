"""Where every byte of shared memory lies: the only file that knows an offset. No I/O, no state.

A segment is written by one process, its owner, and mapped read-only by its peers:

    offset      size       what                      unit      writer → readers
    0           8          magic                               supervisor → all, before it is handed out
    8           8          layout version | kind << 32         supervisor → all
    16          8          owner id                            supervisor → all
    24          8          unused
    32          8          ring capacity             records   supervisor → all
                           | the small ring's << 32
    40          8          slab offset               bytes     supervisor → all
    48          8          slab size                 bytes     supervisor → all
    56          8          segment size              bytes     supervisor → all
    64          8          tail of the owner's ring  records   owner → the ring's reader
    128         8          head: records the owner   records   owner → the writer of the peer's ring
                           has read of the peer's
    192         8          progress: the batch begun number    worker → batcher, supervisor
                           last; in a link to a                batcher → its successor
                           worker: the batch up to
                           which all answers were
                           passed on
    256         8          busy since: when the      ns        worker → supervisor
                           batch being executed
                           began, 0 between two;
                           in a link to a worker:              batcher → its successor
                           1 if its executions
                           overlap
    320         8          busy for: all batches     ns        worker → supervisor
                           that have ended
    384         8          taken: requests since the number    worker → supervisor
                           worker is ready
    448         8          moved: when the batch     ns        worker → supervisor
                           being executed last sent
                           a response, or waited
                           for a client
    512         8          widened: 1 more than the  records   owner → the ring's reader
                           position of the full
                           ring's first record, 0
                           while the ring is small
    576         48         answered: responses of    number    front end → supervisor
                           TorchServe's protocol, by
                           the first digit of their
                           status
    640         24         noted: TLS handshakes     number    front end → supervisor
                           that failed (HTTP, gRPC);
                           requests of clients gone
    4096        128 × n    records of the small ring           owner → the ring's reader
    …           8 × units  generation table                    owner → readers of its blocks
    slab offset slab size  blocks, each 2^n × 4096 bytes       owner → readers of its blocks
    …           128 × cap  records of the full ring, where     owner → the ring's reader
                           the small one has fewer

A link to a worker whose model has a sequence batcher has a slab for a table (batcher → its successor), four words per
slot (S).

A link between two processes is a pair of segments: each side's ring, and each side's head of the other's ring.
A segment for a single payload that no slab takes has no ring, and one block of any size, which is all of its slab.
Positions are u64 counts that never wrap; a slot is position modulo capacity. A client's ring and the ring to a client
may begin small, until their writer widens them, so that memory for all that can be outstanding is taken only when it is
needed. Every word is little-endian u64.
"""

import struct
from typing import Final, NamedTuple

MAGIC = 0x4C414F4853  # "SHOAL"
VERSION = 2
PAGE: Final = 4096
WORD: Final = 8

# Kinds of segments.
CLIENT, LINK, WORKER, COUNTERS, OVERSIZE, BATCHER, RECORDING = 1, 2, 3, 4, 5, 6, 7
KIND_NAMES = dict(enumerate(("client", "link", "worker", "counters", "oversize", "batcher", "recording"), start=1))

HEADER = struct.Struct("<3Q8x4Q")
# Word indices (byte offset / 8) of the header words that change while a segment is in use; each on its own cache line.
TAIL_WORD: Final = 8
HEAD_WORD: Final = 16
PROGRESS_WORD: Final = 24
BUSY_SINCE_WORD: Final = 32
BUSY_FOR_WORD: Final = 40
TAKEN_WORD: Final = 48
MOVED_WORD: Final = 56
WIDENED_WORD: Final = 64
ANSWERED_WORD: Final = 72
ANSWERED_WORDS: Final = 6  # from ANSWERED_WORD on: one for each first digit, 0 to 5
NOTED_WORD, NOTED_WORDS = 80, 3
HTTP_HANDSHAKES_FAILED, GRPC_HANDSHAKES_FAILED, ABANDONED = range(NOTED_WORDS)  # words, counted from NOTED_WORD
OVERLAP_WORD = BUSY_SINCE_WORD  # in a link to a worker: whether the worker's executions overlap

#: Sixteen words a record, two cache lines, which hold all that a scheduler needs to know of a request.
RECORD: Final = struct.Struct("<16Q")
RECORD_BYTES: Final = RECORD.size
RING_OFFSET: Final = PAGE

UNIT: Final = 4096  # bytes of the smallest block; a request of 16 floats and its header need about 200


class Geometry(NamedTuple):
    """The sizes that a segment is made with: the ring's capacity in records, the slab's size in bytes, and the capacity
    with which the ring begins if it begins small, else 0. All offsets follow from these sizes."""

    ring_capacity: int
    slab_nbytes: int
    small_capacity: int = 0

    @property
    def first_capacity(self) -> int:
        """Capacity in records before the ring is widened."""
        return self.small_capacity or self.ring_capacity

    @property
    def generations_offset(self) -> int:
        """Bytes from the start of the segment to the table of u64 generation words, one per unit of the slab."""
        return RING_OFFSET + self.first_capacity * RECORD_BYTES

    @property
    def slab_offset(self) -> int:
        """Bytes from the start of the segment to the slab, page aligned."""
        end = self.generations_offset + self.slab_nbytes // UNIT * WORD
        return (end + PAGE - 1) // PAGE * PAGE

    @property
    def slab_end(self) -> int:
        """Bytes from the start of the segment to the slab's end, where a full ring behind a small one begins."""
        return self.slab_offset + self.slab_nbytes

    @property
    def nbytes(self) -> int:
        full = self.ring_capacity * RECORD_BYTES if self.small_capacity else 0
        return self.slab_end + (full + PAGE - 1) // PAGE * PAGE


class Header(NamedTuple):
    """The first 64 bytes of a segment."""

    magic: int
    version_and_kind: int
    owner: int
    ring_capacities: int
    slab_offset: int
    slab_nbytes: int
    segment_nbytes: int

    @property
    def kind(self) -> int:
        """CLIENT, LINK, WORKER, COUNTERS, OVERSIZE, BATCHER or RECORDING."""
        return self.version_and_kind >> 32

    @property
    def ring_capacity(self) -> int:
        """Capacity of the full ring in records."""
        return self.ring_capacities & 0xFFFFFFFF

    @property
    def geometry(self) -> Geometry:
        """The sizes that the segment was made with."""
        return Geometry(self.ring_capacity, self.slab_nbytes, self.ring_capacities >> 32)


Record = tuple[int, ...]  # the words of a record, from its kind on; those that are left out are 0


class LayoutError(Exception):
    """A peer's memory or record that this code cannot read: it is of another version or size, or damaged."""


def pack_header(kind: int, owner: int, geometry: Geometry) -> bytes:
    """The first 64 bytes of a new segment."""
    return HEADER.pack(
        MAGIC,
        VERSION | kind << 32,
        owner,
        geometry.ring_capacity | geometry.small_capacity << 32,
        geometry.slab_offset,
        geometry.slab_nbytes,
        geometry.nbytes,
    )


def read_header(memory: memoryview) -> Header:
    """The header of a mapped segment. Raises LayoutError if it does not describe `memory`, the whole segment."""
    if len(memory) < PAGE:
        raise LayoutError(f"a segment of {len(memory)} bytes is smaller than its header page")
    header = Header(*HEADER.unpack_from(memory))
    if header.magic != MAGIC or header.version_and_kind & 0xFFFFFFFF != VERSION:
        raise LayoutError(f"no Shoal segment of layout version {VERSION}: {header.magic:#x}")
    geometry = header.geometry
    if geometry.small_capacity > geometry.ring_capacity:
        raise LayoutError(f"a ring of {geometry.ring_capacity} records is said to begin with {geometry.small_capacity}")
    if header.segment_nbytes != len(memory) or geometry.nbytes != len(memory):
        raise LayoutError(f"the segment says {header.segment_nbytes} bytes, {len(memory)} are mapped")
    if header.slab_offset != geometry.slab_offset:
        raise LayoutError(f"the slab is said to start at {header.slab_offset}, not {geometry.slab_offset}")
    return header


# ---------------------------------------------------------------------------------------------------------------
# A block reference is one word: owner id (24 bits) | first unit (20 bits) | generation (20 bits).
# A generation word is: generation << 8 | order, for the block of 2^order units that starts at that unit; the slab's end
# may cut it short.

OWNER_BITS: Final = 24
UNIT_BITS: Final = 20
GENERATION_BITS: Final = 20
#: `ref >> OWNER_SHIFT` is `ref_owner(ref)`, for code that runs once per request: a call takes 1k instructions.
OWNER_SHIFT: Final = UNIT_BITS + GENERATION_BITS
MAX_UNITS: Final = 1 << UNIT_BITS
#: The largest slab, and so the largest block: units are numbered in 20 bits, and a span word has 32 bits for a size.
MAX_SLAB_BYTES: Final = (MAX_UNITS - 1) * UNIT
GENERATION_MASK: Final = (1 << GENERATION_BITS) - 1
NO_BLOCK: Final = 0  # owner ids start at 1, so no real reference is 0
MIRROR_OWNER: Final = (1 << OWNER_BITS) - 1  # in keys of requests that the batcher mirrors; no segment has it


def pack_ref(owner: int, unit: int, generation: int) -> int:
    """The word that names a block of a segment's slab: its owner id, first unit and generation."""
    return owner << (UNIT_BITS + GENERATION_BITS) | unit << GENERATION_BITS | generation & GENERATION_MASK


def ref_owner(ref: int) -> int:
    """The owner id in a block reference."""
    return ref >> OWNER_SHIFT


# ---------------------------------------------------------------------------------------------------------------
# Records. Word 0 is always the kind; the names below are indices into the unpacked tuple of sixteen words.
# A span word is offset << 32 | size, in bytes from the start of the block that the record names.

# client → batcher
REQUEST: Final = 1
CANCEL: Final = 2
RELEASE: Final = 3
HOLD: Final = 9
TRACE: Final = 11
CHILD_REQUEST: Final = 16
# batcher → client
REPLY: Final = 4
RECALL: Final = 15
CHILD_TRACE: Final = 17
EXECUTION: Final = 18
RETURN: Final = 19  # batcher → client; also client → a dead batcher's successor
# batcher → worker, which gets CANCEL, too
BATCH_ITEM: Final = 5
FREE: Final = 6
# worker → batcher
DONE: Final = 7
WANT: Final = 8
HAVE: Final = 10
RESPONSE: Final = 12
READY: Final = 13
RESCHEDULE: Final = 14
SEQUENCE_END: Final = 18


class R:
    """Words of REQUEST, and of the other records about a request, which all have its NUMBER. Times are monotonic ns.

    CANCEL: MORE is 1 if the client may still read the answer: the request stays, and a worker that has it is notified.
    TRACE (words of X) stands behind the REQUEST, and asks for the times in the reply.
    RELEASE of a final reply may have the numbers of further final replies from HEADER on, up to the first 0.
    RELEASE of a reply that is not final has the reply's BLOCK.
    HOLD names to a successor the BLOCK of a reply not released yet; MORE is 1 if the reply is not final. MODEL is 1
    in the client's first HOLD: HOLDs before it, for a successor that has died meanwhile, are void.

    The digest, 128 bits, is equal for requests that have equal answers; 0 if the model's responses are not cached. The
    batcher uses only front ends' digests. CORRELATION and FLAGS name the request's sequence (shoal/sequences.py); FLAGS
    may have ALONE, too (shoal/deterministic.py). After DEADLINE_NS the answer is of no use to the client; 0 = never.

    NUMBER is the client's own number of the request. With the client's owner id in front, it is the request's key, by
    which every process names the request, also after the death of another process.
    """

    NUMBER: Final = 1
    MODEL: Final = 2
    BLOCK: Final = 3
    HEADER: Final = 4
    ROWS: Final = 5
    SHAPE_KEY: Final = 6
    PRIORITY: Final = 7
    TIMEOUT_US: Final = 8
    CORRELATION: Final = 9
    FLAGS: Final = 10
    START_NS: Final = 11
    MORE: Final = 12
    DIGEST_LOW: Final = 13
    DIGEST_HIGH: Final = 14
    DEADLINE_NS: Final = 15


MAX_RELEASED: Final = 1 + 16 - R.HEADER  # replies that one RELEASE can name

NO_DIGEST: Final = (0, 0)  # of a request whose response is neither cached nor shared with other requests


class Q(R):
    """Words of CHILD_REQUEST: those of a REQUEST, and PARENT, the key of the request for which a model makes this one.
    If the parent is traced, this request is part of its trace."""

    PARENT: Final = 12


class X(R):
    """Words of TRACE: whether an EXECUTION is wanted, and the id of the client's trace, 128 bits; 0: none."""

    IS_SHOWN: Final = 2
    TRACE_HIGH: Final = 3
    TRACE_LOW: Final = 4


class P:
    """Words of REPLY. STATUS 0 is success. If the batcher itself has refused the request, REASON names a sentence, and
    DETAIL is the number in it; the REASON OTHER_VERSION is no refusal, and DETAIL is the version that has answered.
    MORE is 1 if further replies to the request follow; the last reply may then have nothing but its NUMBER.
    QUEUE_START_NS is when the request was accepted; the next four words are Triton's time points of its computation, 0
    if no worker has answered. Without a TRACE all five are 0 (they cost 1.7k instructions to write and read), but for
    QUEUE_START_NS in a reply from the cache.

    IS_LENT is 1 if the batcher goes on reading the request's block, for a shadow, until it sends RETURN with the same
    NUMBER. RETURN with 0 frees all blocks lent to a dead batcher: a client with such blocks sends it to the successor,
    which sends it back.

    PIECES is not 0 in an ensemble's reply: the reply's tensors lie in so many blocks of workers, whose references, a
    u64 each, stand at the start of BLOCK. Offsets in the response's header count through these blocks as if they were
    one. The client holds and releases each of these blocks as it does a reply that is not final.
    """

    NUMBER: Final = 1
    STATUS: Final = 2
    BLOCK: Final = 3
    HEADER: Final = 4
    REASON: Final = 5
    DETAIL: Final = 6
    QUEUE_START_NS: Final = 7
    COMPUTE_START_NS: Final = 8
    INPUT_END_NS: Final = 9
    OUTPUT_START_NS: Final = 10
    COMPUTE_END_NS: Final = 11
    MORE: Final = 12
    PIECES: Final = 13
    IS_LENT: Final = 14


class T:
    """Words of CHILD_TRACE: a step of an ensemble or a call of a model, made for the traced request NUMBER, has ended.

    A front end gets the record before the last reply to the request. KEY is the child's key, PARENT the key of the
    child for which it was made, 0 if that is the request itself. MODEL is the id of the child's model. The times, in
    monotonic ns, are those of a trace; 0 for a point not reached. IS_CALL is 1 for a model's call, 0 for a step.

    At most MAX_UNREAD_CHILD_TRACES are in the ring, which has room for so many beside all replies.
    """

    NUMBER: Final = 1
    KEY: Final = 2
    PARENT: Final = 3
    MODEL: Final = 4
    VERSION: Final = 5
    START_NS: Final = 6
    QUEUE_START_NS: Final = 7
    COMPUTE_START_NS: Final = 8
    INPUT_END_NS: Final = 9
    OUTPUT_START_NS: Final = 10
    COMPUTE_END_NS: Final = 11
    END_NS: Final = 12
    IS_CALL: Final = 13


class E:
    """Words of EXECUTION, which precedes the last reply to a request whose TRACE asks for it: from INSTANCE on, the
    fields of Execution in shoal/timing.py."""

    NUMBER: Final = 1
    INSTANCE: Final = 2
    END: Final = 13  # one past the last word


#: Most unread CHILD_TRACEs in a ring, 64 KiB (ours: enough if steps of 20 µs end while a lane is busy for 10 ms).
MAX_UNREAD_CHILD_TRACES = 512


class C:
    """Words of RECALL: a worker lacks memory, and a front end holds responses that lie in the worker's segments. From
    OWNERS on stand the owner ids of these segments, up to the first 0. The front end copies such responses into memory
    of its own and releases them. If IS_URGENT and a front end has no room for a copy, it disconnects its slowest
    readers."""

    IS_URGENT: Final = 1
    OWNERS: Final = 2


MAX_RECALLED = 16 - C.OWNERS  # segments that one RECALL can name


class B:
    """Words of BATCH_ITEM; FREE uses BLOCK alone, CANCEL KEY alone. INDEX counts from 0 to COUNT - 1 within one batch.

    FREED is a block of the worker that has no holder any more, or 0: it takes the place of a FREE. PRIORITY and
    TIMEOUT_US are the client's, ACCEPTED_NS is when the request was accepted, DEADLINE_NS when its client ceases to
    wait; 0 = never. FLAGS, which include the slot, and CORRELATION name the request's sequence (shoal/sequences.py).
    The batcher writes ANSWERED after the worker has read the record, for a successor: 1 once the worker no longer has
    the request, although it still has others of the batch.
    """

    KEY: Final = 1
    BATCH: Final = 2
    BLOCK: Final = 3
    HEADER: Final = 4
    ROWS: Final = 5
    INDEX: Final = 6
    COUNT: Final = 7
    FREED: Final = 8
    PRIORITY: Final = 9
    TIMEOUT_US: Final = 10
    ACCEPTED_NS: Final = 11
    DEADLINE_NS: Final = 12
    FLAGS: Final = 13
    CORRELATION: Final = 14
    ANSWERED: Final = 15


class D:
    """Words of DONE, one per request of a batch. The four times are Triton's compute time points, in monotonic ns.

    RESPONSE has the words of DONE and leaves the request open; its DONE may then have neither STATUS nor BLOCK.
    READY (BATCH and the times): the batch is executed and the instance free; the requests are answered later.
    RESCHEDULE (KEY and BATCH): the request goes back into its queue.
    SEQUENCE_END (KEY): the request, whose DONE or RESCHEDULE comes later, is the last of its sequence.
    HAVE, which uses BLOCK alone, names to a successor a block that has not been freed.
    """

    KEY: Final = 1
    BATCH: Final = 2
    STATUS: Final = 3
    BLOCK: Final = 4
    HEADER: Final = 5
    COMPUTE_START_NS: Final = 6
    INPUT_END_NS: Final = 7
    OUTPUT_START_NS: Final = 8
    COMPUTE_END_NS: Final = 9


class W:
    """Words of WANT: a worker waits, and is to be rung soon. URGENCY says what the worker waits for: any record of the
    batcher's (NEWS), memory for a result (ROOM), or memory that it gets nowhere else
    (ROOM_NOW)."""

    URGENCY: Final = 3


#: Values of URGENCY.
NEWS: Final = 0
ROOM: Final = 1
ROOM_NOW: Final = 2


class S:
    """Words of a slot in the table of a sequence batcher's slots: the id of the sequence in the slot, the sequence's
    number, its state (batcher/scheduling/sequence_values.py); the fourth word is 0."""

    CORRELATION: Final = 0
    NUMBER: Final = 1
    STATE: Final = 2


SLOT_WORDS: Final = 4


def slot_table_nbytes(num_slots: int) -> int:
    """Bytes of a link's table for `num_slots` slots of a sequence batcher, rounded up to whole units."""
    return -(-num_slots * SLOT_WORDS * WORD // UNIT) * UNIT


#: A key is: client's owner id (24 bits) | the client's number (40 bits: twelve days at a million requests a second).
NUMBER_BITS: Final = 40

_ZEROS = (0,) * 16


def record(*words: int) -> Record:
    """A record of sixteen words; missing ones are 0."""
    return words + _ZEROS[len(words) :]


#: The number of bits by which a span's offset is shifted, and the mask of its size.
SPAN_SHIFT: Final = 32
SPAN_MASK: Final = 0xFFFFFFFF


def pack_span(offset: int, nbytes: int) -> int:
    """The word that names a part of a block: offset from the block's start and size, both in bytes."""
    return offset << SPAN_SHIFT | nbytes


def unpack_span(span: int) -> tuple[int, int]:
    """(offset from the block's start, size) of a span word, both in bytes."""
    return span >> SPAN_SHIFT, span & SPAN_MASK
