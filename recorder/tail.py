"""The recorder's work, apart from its process: entries out of the ring, into the folder. Runs in the recorder.

Entries of the sample are written. All entries of the last seconds are kept in memory, within bounds, until an entry
says that an instance has died: then those of its model go into a file of their own. Room in the ring is given back when
its entries are written, so a recorder that is killed loses nothing but a death's seconds, and its successor may write
some entries twice.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from shoal.recorder.entry import Entry, EntryError, Outcome, unpack
from shoal.recorder.folder import RecordingFolder
from shoal.recorder.redaction import redacted
from shoal.shm.byte_ring import ByteRingReader

_log = logging.getLogger(__name__)

#: How long, and how many bytes at most, entries are kept for a death that may follow (ours).
KEPT_NS, MAX_KEPT_NBYTES = 10_000_000_000, 32 << 20
#: A frame is written when it has so many bytes, or no further entries are there (ours: what zlib compresses in 5 ms).
FRAME_NBYTES = 1 << 19
#: How long a death waits for entries of the other requests in its batch, which the batcher makes one by one (ours).
DEATH_WAIT_NS = 1_000_000_000
#: Time between two log lines about a failing disk (ours).
COMPLAINT_NS = 10_000_000_000


class Tail:
    """The reader of a batcher's ring, and of its successors' rings behind that. Times are monotonic ns."""

    def __init__(self, folder: RecordingFolder, redact: Sequence[str], now_ns: Callable[[], int]) -> None:
        self.folder = folder
        self._redact = redact
        self._now_ns = now_ns
        # Changed by step. `_kept` has time, model, version and the entry.
        self._frame: list[bytes | memoryview] = []
        self._frame_nbytes = 0
        self._kept: deque[tuple[int, str, int, bytes]] = deque()
        self._kept_nbytes = 0
        # Models an instance of which has died, with the time by which that is written; of the batches that their
        # instances executed, by worker and number, the requests whose entries have not come.
        self._deaths: dict[tuple[str, int], int] = {}
        self._missing: dict[tuple[int, int], int] = {}
        self._quiet_until_ns = 0
        #: Requests that could not be written.
        self.num_lost = 0

    def step(self, ring: ByteRingReader) -> int:
        """Read all entries that are in the ring; returns their number."""
        number = 0
        for memory in ring.read():
            number += 1
            self._take(memory)
            if self._frame_nbytes >= FRAME_NBYTES:
                self._flush()
                ring.acknowledge()
        self._flush()
        ring.acknowledge()
        if self._deaths and not (self._missing and self._now_ns() < min(self._deaths.values())):
            self.write_deaths()
        return number

    def _take(self, memory: memoryview) -> None:
        try:
            entry = unpack(memory)
            kept = bytes(memory) if not self._redact else redacted(memory, entry, self._redact)
        except EntryError as error:
            _log.error("%s", error)
            self.num_lost += 1
            return
        if entry.is_sampled:
            self._frame.append(kept)
            self._frame_nbytes += len(kept)
        self._keep(entry, kept)

    def _keep(self, entry: Entry, kept: bytes) -> None:
        now_ns = self._now_ns()
        self._kept.append((now_ns, entry.model, entry.version, kept))
        self._kept_nbytes += len(kept)
        while self._kept_nbytes > MAX_KEPT_NBYTES or self._kept[0][0] < now_ns - KEPT_NS:
            self._kept_nbytes -= len(self._kept.popleft()[-1])
        for request in entry.requests:
            if request.outcome == Outcome.DIED:
                self._deaths.setdefault((entry.model, entry.version), now_ns + DEATH_WAIT_NS)
                batch = request.worker, request.batch
                left = self._missing.pop(batch, request.num_requests) - 1
                if left > 0:
                    self._missing[batch] = left

    def _flush(self) -> None:
        frame, self._frame = self._frame, []
        self._frame_nbytes = 0
        if frame:
            self._try(lambda: self.folder.write(frame), frame)

    def write_deaths(self) -> None:
        """Write the last seconds of the models one of whose instances has died, if any has, and forget them: each is
        written once."""
        deaths, self._deaths, self._missing = self._deaths, {}, {}
        if not deaths:
            return
        found = [kept for _, model, version, kept in self._kept if (model, version) in deaths]
        rest = [each for each in self._kept if each[1:3] not in deaths]
        self._kept = deque(rest)
        self._kept_nbytes = sum([len(kept) for _, _, _, kept in rest])
        self._try(lambda: self.folder.write_death(found), ())

    def _try(self, write: Callable[[], None], lost: Sequence[bytes | memoryview]) -> None:
        """Write, and count the requests in `lost`, the entries that are lost, if the disk fails."""
        try:
            write()
        except OSError as error:
            self.num_lost += sum([_num_ended(unpack(memoryview(each))) for each in lost])
            if self._now_ns() >= self._quiet_until_ns:
                why = f"'{error.filename}': {error.strerror}" if error.filename else error.strerror or error
                _log.error("requests cannot be recorded: %s; %d are lost so far", why, self.num_lost)
                self._quiet_until_ns = self._now_ns() + COMPLAINT_NS


def _num_ended(entry: Entry) -> int:
    """The number of requests in an entry; responses that are not the last of theirs do not count."""
    return sum([request.outcome != Outcome.PART for request in entry.requests])
