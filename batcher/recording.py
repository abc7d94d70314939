"""Recording: what requests were and how they ended is copied into a ring that the recorder reads. Lives in the batcher.

A request is noted as it ends, and copied at the end of the step: behind the workers' next batches, before its reply is
published, until when its blocks are there. Copies need no place in clients' or workers' slabs, so that a recorder whose
disk is slow takes nothing from them: what the ring has no room for is dropped and counted. Only requests to models that
are recorded come here.
"""

from collections.abc import Callable
from typing import NamedTuple

from shoal.batcher import statistics
from shoal.batcher.blocks import Blocks
from shoal.batcher.peers import ClientPeer, OpenRequest, RunningBatch, ScheduledModel, WorkerPeer
from shoal.errors import InternalError
from shoal.recorder import entry
from shoal.recorder.entry import ASKERS, Outcome
from shoal.request import ON_GPU, InferRequest, TensorRef, pack_request, unpack_lent_request
from shoal.shm.byte_ring import ByteRingWriter
from shoal.shm.counters import CELL
from shoal.shm.layout import WORD, B, pack_span, unpack_span

_RECORDED, _DROPPED = CELL["recorded"], CELL["record_dropped"]
_ASKERS = {name: number for number, name in enumerate(ASKERS)}
_STEP = "ensemble"
_WORD_MASK = (1 << 64) - 1
#: Multiples of it, modulo 2^64, are spread evenly: 2^64 divided by the golden ratio.
_GOLDEN = 0x9E3779B97F4A7C15
#: Orders of batches that are kept for batches whose requests are answered one by one (ours).
_MAX_ORDERS = 256
#: Tensors begin at multiples of this in a request that is put together of several blocks.
_ALIGNMENT = 64
_NO_COMPUTE: statistics.Compute = (0, 0, 0, 0)
#: Status, block, header and number of pieces of a worker's answer.
Answer = tuple[int, int, int, int]
#: Reason and detail of a request that the batcher did not refuse.
NO_REFUSAL = (0, 0)


class _Noted(NamedTuple):
    """A request that is to be copied; `words` are RequestWords without the last four, `input_nbytes` and what
    follows."""

    recording: "ModelRecording"
    model: ScheduledModel
    client: ClientPeer | None  # None: its inputs are not copied
    block: int
    header: int
    answer: int  # the block with the response; 0: none
    answer_header: int
    num_pieces: int
    is_sampled: bool
    words: tuple[int, ...]


class Recording:
    """The ring to the recorder, and the requests that are to be copied into it."""

    def __init__(self, ring: ByteRingWriter, blocks: Blocks, counted: set[ScheduledModel], wall_offset_ns: int) -> None:
        self._ring = ring
        self._blocks = blocks
        self._counted = counted
        self._wall_offset_ns = wall_offset_ns
        # Changed by the notes and by write.
        self.noted: list[_Noted] = []
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
        client, model, _, block, header, start_ns, queue_ns, queued = request
        status, ref, span, num_pieces = answer
        batch, chosen = (0, 0, 0, 0, 0, 0, 0), queued.key
        if running is not None and (worker := running.worker) is not None:
            index = self._index(worker, running, queued.key)
            count, rows = running.count, running.rows
            batch = running.formed_ns, worker.instance, worker.owner, running.number, index, count, rows
            chosen = worker.owner + running.number
        is_sampled = outcome in _ALWAYS or chosen * _GOLDEN & _WORD_MASK < recording.threshold
        is_part = outcome is Outcome.PART
        words = (
            queued.key, outcome, status, *refusal, _ASKERS.get(client.kind, 0), queued.rows, queued.priority,
            queued.timeout_us, queued.deadline_ns, queued.correlation, queued.flags, start_ns, queue_ns,
            *(model.points(compute) if compute[0] else _NO_COMPUTE), now_ns, *batch,
        )  # fmt: skip
        self.noted.append(
            _Noted(
                recording, model, None if is_part else client, block, header, ref, span, num_pieces, is_sampled, words
            )
        )
        if client.kind == _STEP:  # the ensemble frees its blocks before this step of the batcher ends
            self.write()

    def _index(self, worker: WorkerPeer, running: RunningBatch, key: int) -> int:
        """The position of a request in its batch: the ring to the worker has it for as long as answers are missing."""
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
        """Copy what was noted, before any of its blocks may be freed."""
        noted, self.noted = self.noted, []
        groups: dict[tuple[int, int, bool], list[_Noted]] = {}
        for number, each in enumerate(noted):
            alone = 0 if each.answer and not each.num_pieces else number + 1
            groups.setdefault((each.answer, alone, each.is_sampled), []).append(each)
        for group in groups.values():
            self._write(group)

    def _write(self, group: list[_Noted]) -> None:
        first = group[0]
        model, recording = first.model, first.recording
        found = [(each, content) for each in group if (content := self._input(each)) is not None]
        output, base = self._output(group)
        requests = []
        for each, (data, header) in found:
            span = each.answer_header if not base else pack_span(0, unpack_span(each.answer_header)[1])
            requests.append((*each.words, len(data), header, span if output else 0, base))
        is_written = bool(found)
        if is_written:
            parts, nbytes = entry.pack(
                recording.description, requests, [content for _, (content, _) in found], output,
                is_sampled=first.is_sampled, wall_offset_ns=self._wall_offset_ns,
            )  # fmt: skip
            is_written = self._ring.push(parts, nbytes)
        num_written = len(found) if is_written else 0
        cells = model.row.cells
        cells[_DROPPED] += len(group) - num_written
        if first.is_sampled:
            cells[_RECORDED] += num_written
        self._counted.add(model)

    def _input(self, each: _Noted) -> tuple[bytes | memoryview, int] | None:
        """The tensors and the header of a request, one behind the other, and the header's span; None if they cannot be
        read: a payload that no slab takes lies in a segment that the batcher has not mapped."""
        client = each.client
        if client is None:
            return b"", 0
        block = self._blocks.open(each.block)
        if block is None:
            return None
        offset, nbytes = unpack_span(each.header)
        if client.is_front_end:
            return block[: offset + nbytes], each.header
        own, blocks = block, self._blocks

        def open_block(ref: int) -> memoryview | None:
            if not ref:
                return own
            return None if client.is_guest and not blocks.is_of(client.owner, ref) else blocks.open(ref)

        try:
            return _gathered(own[offset : offset + nbytes].tobytes(), open_block)
        except InternalError:
            return None

    def _output(self, group: list[_Noted]) -> tuple[list[bytes | memoryview], int]:
        """The part of a response's block that has tensors and headers of these requests, and where the tensors' offsets
        count from: behind the header if the response lies in several blocks."""
        first = group[0]
        block = self._blocks.open(first.answer) if first.answer else None
        if block is None:
            return [], 0
        if not first.num_pieces:
            return [block[: max([sum(unpack_span(each.answer_header)) for each in group])]], 0
        offset, nbytes = unpack_span(first.answer_header)
        refs = block[: first.num_pieces * WORD].cast("Q").tolist()
        pieces = [piece for ref in refs if (piece := self._blocks.open(ref)) is not None]
        if len(pieces) < len(refs):
            return [], 0
        return [block[offset : offset + nbytes], bytes(-nbytes % WORD), *pieces], nbytes + -nbytes % WORD


#: What is recorded whatever the sample is.
_ALWAYS = frozenset({Outcome.FAILED, Outcome.DIED})


class ModelRecording:
    """The recording of one model version: its description, and which share of its batches is sampled. The arguments of
    its methods are as for `Recording.add`; they are called before the reply is sent."""

    __slots__ = ("_recording", "description", "threshold")

    def __init__(self, recording: Recording, model: ScheduledModel, name: str, sample: float) -> None:
        self._recording = recording
        self.description = entry.describe_model(name, model.version, model.groups)
        self.threshold = round(sample * (1 << 64))

    def note(
        self, request: OpenRequest, answer: Answer, compute: statistics.Compute, now_ns: int,
        running: RunningBatch | None = None, refusal: tuple[int, int] = NO_REFUSAL,
    ) -> None:  # fmt: skip
        """Note a request that ends now."""
        outcome = Outcome.REFUSED if refusal[0] else Outcome.FAILED if answer[0] else Outcome.OK
        self._recording.add(self, outcome, request, running, answer, compute, refusal, now_ns)

    def note_part(self, request: OpenRequest, answer: Answer, now_ns: int) -> None:
        """Note a response that is not the last one of its request."""
        self._recording.add(self, Outcome.PART, request, None, answer, _NO_COMPUTE, NO_REFUSAL, now_ns)

    def note_death(self, request: OpenRequest, running: RunningBatch, refusal: tuple[int, int], now_ns: int) -> None:
        """Note a request that an instance was executing when it died; what becomes of it is noted later."""
        answer = InternalError.wire, 0, 0, 0
        self._recording.add(self, Outcome.DIED, request, running, answer, _NO_COMPUTE, refusal, now_ns)


def _gathered(header: bytes, open_block: Callable[[int], memoryview | None]) -> tuple[bytes, int]:
    """A request whose tensors may lie in several blocks as one that lies in one, and its header's span. Raises
    InternalError for a header that is damaged, or a block that is gone."""
    opened: dict[int, memoryview] = {}

    def nbytes_of(ref: int) -> int:
        block = open_block(ref)
        if block is None:
            return 0
        opened[ref] = block
        return len(block)

    request, inputs = unpack_lent_request(header, nbytes_of)
    gathered, refs = bytearray(), []
    for each in inputs:
        if each.ref == ON_GPU:
            raise InternalError("an input lies in CUDA shared memory, which the batcher cannot read")
        gathered += bytes(-len(gathered) % _ALIGNMENT)
        refs.append(TensorRef(each.name, each.datatype, each.shape, len(gathered), each.nbytes))
        if each.nbytes:
            gathered += opened[each.ref][each.offset : each.offset + each.nbytes]
    packed = pack_request(
        InferRequest(request.id, tuple(refs), request.requested_outputs, request.parameters, request.sequence)
    )
    return bytes(gathered) + packed, pack_span(len(gathered), len(packed))
