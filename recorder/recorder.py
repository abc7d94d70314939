"""What the recorder does with the entries in the batcher's ring: those that the batcher has chosen as a sample are
written into files, and if an instance dies, its model version's entries of the last seconds before, into another file.

Room in the ring is given back when the entries have been written. So a recorder that is killed loses nothing but the
last seconds before a death, and its successor may write some entries twice. Runs in the recorder.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.recorder.entry import Entry, EntryError, Outcome, unpack
from shoal.recorder.folder import RecordingFolder
from shoal.recorder.redaction import redacted
from shoal.shm.byte_ring import ByteRingReader

_log = logging.getLogger(__name__)

#: How long, and how many bytes at most, entries are kept for a death that may follow (ours).
KEPT_NS, MAX_KEPT_NBYTES = 10_000_000_000, 32 << 20
#: A frame is written when it has so many bytes, or the ring has no more entries (ours: zlib compresses it in 5 ms).
FRAME_NBYTES = 1 << 19
#: How long a death's file waits for the entries of the other requests that the dead instance was executing, which the
#: batcher makes one by one (ours).
DEATH_WAIT_NS = 1_000_000_000
#: Time between two log lines about a failing disk (ours).
COMPLAINT_NS = 10_000_000_000


class _RecentEntry(NamedTuple):
    came_ns: int
    model: str
    version: int
    packed: bytes


class LastSeconds:
    """All entries of the last seconds, within bounds, and the deaths of instances for which entries are to be written.
    Times are monotonic ns."""

    def __init__(self) -> None:
        # Changed by every method but is_due: the kept entries, the oldest first, and their bytes.
        self._recent: deque[_RecentEntry] = deque()
        self._nbytes = 0
        self._deaths: dict[tuple[str, int], int] = {}  # model and version → when the death is written at the latest
        #: (worker, number of the batch that it was executing when it died) → number of requests whose entries have not
        #: come.
        self._missing: dict[tuple[int, int], int] = {}

    def add(self, entry: Entry, packed: bytes, now_ns: int) -> None:
        """Keep an entry, and note the death that it reports, if any."""
        self._recent.append(_RecentEntry(now_ns, entry.model, entry.version, packed))
        self._nbytes += len(packed)
        while self._nbytes > MAX_KEPT_NBYTES or self._recent[0].came_ns < now_ns - KEPT_NS:
            self._nbytes -= len(self._recent.popleft().packed)
        for request in entry.requests:
            if request.outcome == Outcome.DIED:
                self._deaths.setdefault((entry.model, entry.version), now_ns + DEATH_WAIT_NS)
                batch = request.worker, request.batch
                num_left = self._missing.pop(batch, request.num_requests) - 1
                if num_left > 0:
                    self._missing[batch] = num_left

    def is_due(self, now_ns: int) -> bool:
        """Whether an instance has died, and the entries of its batch have come or are waited for no longer."""
        return bool(self._deaths) and not (self._missing and now_ns < min(self._deaths.values()))

    def take(self) -> list[bytes]:
        """Remove and return the entries of all model versions an instance of which has died."""
        deaths, self._deaths, self._missing = self._deaths, {}, {}
        taken = [each.packed for each in self._recent if (each.model, each.version) in deaths]
        self._recent = deque([each for each in self._recent if (each.model, each.version) not in deaths])
        self._nbytes -= sum([len(packed) for packed in taken])
        return taken


class Recorder:
    """Writes the entries of a batcher's ring, and then those of its successors' rings. `now_ns` is monotonic."""

    def __init__(self, folder: RecordingFolder, redact: Sequence[str], now_ns: Callable[[], int]) -> None:
        self._folder = folder
        self._redact = redact
        self._now_ns = now_ns
        # All of these are changed by step and write_deaths.
        self._last_seconds = LastSeconds()
        self._frame: list[bytes] = []  # sampled entries that are to be written together
        self._frame_nbytes = 0
        self._quiet_until_ns = 0
        #: Sampled requests that could not be written, and entries that could not be read.
        self.num_lost = 0

    def step(self, ring: ByteRingReader) -> int:
        """Read all entries that are in the ring; returns their number."""
        number = 0
        for memory in ring.read():
            number += 1
            self._add(memory)
            if self._frame_nbytes >= FRAME_NBYTES:
                self._write_frame()
                ring.acknowledge()
        self._write_frame()
        ring.acknowledge()
        if self._last_seconds.is_due(self._now_ns()):
            self.write_deaths()
        return number

    def _add(self, memory: memoryview) -> None:
        try:
            entry = unpack(memory)
            packed = redacted(memory, entry, self._redact) if self._redact else bytes(memory)
        except EntryError as error:
            _log.error("%s", error)
            self.num_lost += 1
            return
        if entry.is_sampled:
            self._frame.append(packed)
            self._frame_nbytes += len(packed)
        self._last_seconds.add(entry, packed, self._now_ns())

    def _write_frame(self) -> None:
        frame, self._frame = self._frame, []
        self._frame_nbytes = 0
        try:
            if frame:
                self._folder.write(frame)
        except OSError as error:
            self.num_lost += sum([_num_ended(unpack(memoryview(each))) for each in frame])
            self._complain(error)

    def write_deaths(self) -> None:
        """Write the last seconds of each model version an instance of which has died, if any has. An entry that was
        written for one death is not written again for the next."""
        entries = self._last_seconds.take()
        try:
            if entries:
                self._folder.write_death(entries)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Log that the disk fails, from time to time."""
        if self._now_ns() >= self._quiet_until_ns:
            why = f"'{error.filename}': {error.strerror}" if error.filename else error.strerror or error
            _log.error("requests cannot be recorded: %s; %d are lost so far", why, self.num_lost)
            self._quiet_until_ns = self._now_ns() + COMPLAINT_NS


def _num_ended(entry: Entry) -> int:
    """The number of requests in an entry; a response that others of the same request follow does not count."""
    return sum([request.outcome != Outcome.PART for request in entry.requests])
