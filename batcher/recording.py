"""Recording: requests and their outcomes are copied into a ring that the recorder reads. Lives in the batcher.

A request is noted when it ends, and copied at the end of the step: after workers' next batches are published, and
before the request's reply is published, since the reply frees the request's blocks. A recorder with a slow disk takes
no room in clients' or workers' slabs: requests for which the ring has no room are dropped and counted. Only requests to
recorded models are noted.
"""

from typing import NamedTuple

from shoal.batcher import statistics
from shoal.batcher.blocks import Blocks
from shoal.batcher.entries import NO_BATCH, NO_REFUSAL, Answer, BatchWords, EntryPacker, Noted, words_of
from shoal.batcher.peers import OpenRequest, RunningBatch, ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.split import spread
from shoal.errors import InternalError
from shoal.recorder import entry
from shoal.recorder.entry import Outcome
from shoal.shm.byte_ring import ByteRingWriter
from shoal.shm.counters import CELL
from shoal.shm.layout import B

_RECORDED, _DROPPED = CELL["recorded"], CELL["record_dropped"]
_STEP = "ensemble"
#: Of how many batches that are answered one request at a time the requests' positions are kept (ours).
_MAX_ORDERS = 256


class _Chosen(NamedTuple):
    """A noted request, how its model is recorded, and whether it belongs to the sample."""

    recording: "ModelRecording"
    model: ScheduledModel
    noted: Noted
    is_sampled: bool


class Recording:
    """The ring to the recorder, and the requests that are to be copied into it."""

    def __init__(
        self, ring: ByteRingWriter, blocks: Blocks, counted: set[ScheduledModel], wall: statistics.WallClock
    ) -> None:
        self._ring = ring
        self._packer = EntryPacker(blocks, wall)
        self._counted = counted
        # Changed by add and write: the noted requests; for batches that are answered one request at a time, by the
        # worker's owner id and the batch's number, the position of each unanswered request.
        self.noted: list[_Chosen] = []
        self._orders: dict[tuple[int, int], dict[int, int]] = {}

    def add(
        self,
        recording: "ModelRecording",
        outcome: Outcome,
        request: OpenRequest,
        running: RunningBatch | None,
        answer: Answer,
        compute: statistics.Compute,
        refusal: tuple[int, int],
        now_ns: int,
    ) -> None:
        """Note a request; `answer` is status, block, header and number of pieces, `refusal` reason and detail."""
        client, model, _, block, header, _, _, queued = request
        status, ref, span, num_pieces = answer
        batch, chosen = NO_BATCH, queued.key
        if running is not None and (worker := running.worker) is not None:
            index = self._index(worker, running, queued.key)
            batch = batch_words(worker, running, index)
            chosen = worker.owner + running.number
        is_sampled = outcome in _ALWAYS or spread(chosen) < recording.threshold
        asker = None if outcome is Outcome.PART else client
        words = words_of(outcome, request, status, compute, refusal, now_ns, batch)
        self.noted.append(
            _Chosen(recording, model, Noted(asker, block, header, ref, span, num_pieces, words), is_sampled)
        )
        if client.kind == _STEP:  # an ensemble frees its steps' blocks before the batcher's step ends
            self.write()

    def _index(self, worker: WorkerPeer, running: RunningBatch, key: int) -> int:
        """The position of a request in its batch, from the ring to the worker, which keeps the batch's records while
        answers are missing."""
        if running.count == 1:
            return 0
        name = worker.owner, running.number
        order = self._orders.get(name)
        if order is None:
            if len(self._orders) >= _MAX_ORDERS:
                self._orders.clear()
            items = [item for _, item in worker.items(running.number - 1) if item[B.BATCH] == running.number]
            order = self._orders[name] = {item[B.KEY]: item[B.INDEX] for item in items}
        index = order.pop(key, 0)
        if not order:
            self._orders.pop(name, None)
        return index

    def write(self) -> None:
        """Copy the noted requests into the ring. To be called before any of their blocks may be freed."""
        noted, self.noted = self.noted, []
        groups: dict[tuple[int, int, bool], list[_Chosen]] = {}
        for number, each in enumerate(noted):
            alone = 0 if each.noted.answer and not each.noted.num_pieces else number + 1
            groups.setdefault((each.noted.answer, alone, each.is_sampled), []).append(each)
        for group in groups.values():
            self._write(group)

    def _write(self, group: list[_Chosen]) -> None:
        recording, model, _, is_sampled = group[0]
        parts, nbytes, num_found = self._packer.pack(
            recording.description, [each.noted for each in group], is_sampled=is_sampled
        )
        num_written = num_found if num_found and self._ring.push(parts, nbytes) else 0
        model.row.add(_DROPPED, len(group) - num_written)
        if is_sampled:
            model.row.add(_RECORDED, num_written)
        self._counted.add(model)


def batch_words(worker: WorkerPeer, running: RunningBatch, position: int) -> BatchWords:
    """The words of the batch in which a worker has executed a request at this position."""
    return running.formed_ns, worker.instance, worker.owner, running.number, position, running.count, running.rows


#: Outcomes of requests that are recorded whether the sample has them or not.
_ALWAYS = frozenset({Outcome.FAILED, Outcome.DIED})


class ModelRecording:
    """The recording of one model version: its description, and which share of its batches is sampled. Its methods are
    to be called before the reply is sent; their arguments are as for `Recording.add`."""

    __slots__ = ("_recording", "description", "threshold")

    def __init__(self, recording: Recording, model: ScheduledModel, name: str, sample: float) -> None:
        self._recording = recording
        self.description = entry.describe_model(name, model.version, model.groups)
        self.threshold = round(sample * (1 << 64))

    def note(
        self, request: OpenRequest, answer: Answer, compute: statistics.Compute, now_ns: int,
        running: RunningBatch | None = None, refusal: tuple[int, int] = NO_REFUSAL,
    ) -> None:  # fmt: skip
        """Note a request that ends now, with the outcome that `answer` and `refusal` tell."""
        outcome = Outcome.REFUSED if refusal[0] else Outcome.FAILED if answer[0] else Outcome.OK
        self._recording.add(self, outcome, request, running, answer, compute, refusal, now_ns)

    def note_part(self, request: OpenRequest, answer: Answer, now_ns: int) -> None:
        """Note a response that is not the last one of its request."""
        self._recording.add(self, Outcome.PART, request, None, answer, statistics.NO_COMPUTE, NO_REFUSAL, now_ns)

    def note_death(self, request: OpenRequest, running: RunningBatch, refusal: tuple[int, int], now_ns: int) -> None:
        """Note a request that an instance was executing when the instance died. The end of the request is noted later,
        by itself."""
        answer = InternalError.wire, 0, 0, 0
        self._recording.add(self, Outcome.DIED, request, running, answer, statistics.NO_COMPUTE, refusal, now_ns)
