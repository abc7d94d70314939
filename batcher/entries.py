"""Entries of a ring: ended requests, with their inputs and outputs copied out of the blocks.

recording.py writes them for the recorder, mirror.py for the comparator. Lives in the batcher.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.batcher import statistics
from shoal.batcher.blocks import Blocks
from shoal.batcher.peers import ClientPeer, OpenRequest
from shoal.errors import InternalError
from shoal.recorder import entry
from shoal.recorder.entry import ASKERS, Outcome
from shoal.request import ON_GPU, PLACED, TensorRef, open_lent_request, pack_request
from shoal.shm.layout import WORD, pack_span, unpack_span

_ASKERS = {name: number for number, name in enumerate(ASKERS)}
#: Tensors begin at multiples of so many bytes in a request that is put together from several blocks.
_ALIGNMENT = 64
#: Status, block, header and number of pieces of a worker's answer.
Answer = tuple[int, int, int, int]
#: Reason and detail of a request that the batcher did not refuse.
NO_REFUSAL = (0, 0)
#: Of a batch: when it was formed, its instance, worker and number, the request's position in it, and its numbers of
#: requests and rows.
BatchWords = tuple[int, int, int, int, int, int, int]
NO_BATCH: BatchWords = (0, 0, 0, 0, 0, 0, 0)


class Noted(NamedTuple):
    """A request that is to be copied; `words` are the fields of RequestWords before `input_nbytes`; the later fields
    are known only when the request is copied."""

    client: ClientPeer | None  # None: its inputs are not copied
    block: int
    header: int
    answer: int  # the block with the response; 0: none
    answer_header: int
    num_pieces: int
    words: tuple[int, ...]


def words_of(
    outcome: Outcome, request: OpenRequest, status: int, compute: statistics.Compute, refusal: tuple[int, int],
    now_ns: int, batch: BatchWords = NO_BATCH,
) -> tuple[int, ...]:  # fmt: skip
    """The `words` of a Noted request that ends now; `refusal` is the reason and its detail."""
    client, model, _, _, _, start_ns, queue_ns, queued = request
    return (
        queued.key, outcome, status, *refusal, _ASKERS.get(client.kind, 0), queued.rows, queued.priority,
        queued.timeout_us, queued.deadline_ns, queued.correlation, queued.flags, start_ns, queue_ns,
        *(model.points(compute) if compute[0] else statistics.NO_COMPUTE), now_ns, *batch,
    )  # fmt: skip


class EntryPacker:
    """Packs noted requests into entries."""

    def __init__(self, blocks: Blocks, wall: statistics.WallClock) -> None:
        self._blocks = blocks
        self._wall = wall

    def pack(
        self, description: bytes, group: Sequence[Noted], *, is_sampled: bool
    ) -> tuple[list[bytes | memoryview], int, int]:
        """Pack requests that one worker has answered in one block. Returns the entry's parts, its size in bytes, and
        its number of requests; requests whose inputs cannot be read are left out ([], 0, 0 if no request is left)."""
        found = [(each, content) for each in group if (content := self._input(each)) is not None]
        if not found:
            return [], 0, 0
        output, base = self._output(group)
        requests = []
        for each, (data, header) in found:
            span = each.answer_header if not base else pack_span(0, unpack_span(each.answer_header)[1])
            requests.append((*each.words, len(data), header, span if output else 0, base))
        parts, nbytes = entry.pack(
            description, requests, [content for _, (content, _) in found], output, is_sampled=is_sampled,
            wall_offset_ns=self._wall.offset_ns,
        )  # fmt: skip
        return parts, nbytes, len(found)

    def _input(self, each: Noted) -> tuple[bytes | memoryview, int] | None:
        """A request's tensors with its header after them, and the header's span; None if the tensors cannot be read,
        for instance because they lie in an oversize segment that the batcher has not mapped."""
        client = each.client
        if client is None:
            return b"", 0
        block = self._blocks.open_of(client, each.block)
        if block is None:
            return None
        offset, nbytes = unpack_span(each.header)
        if client.is_front_end:
            return block[: offset + nbytes], each.header
        try:
            return _gathered(block[offset : offset + nbytes].tobytes(), self._blocks.opener(client, block))
        except InternalError:
            return None

    def _output(self, group: Sequence[Noted]) -> tuple[list[bytes | memoryview], int]:
        """The bytes with these requests' output tensors and headers, and the position from which the tensors' offsets
        count: after the header if the response lies in several blocks, else 0."""
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


def _gathered(header: bytes, open_block: Callable[[int], memoryview | None]) -> tuple[bytes, int]:
    """Copy a request's tensors from their blocks into one buffer, with a new header after them; returns the buffer and
    the header's span. Raises InternalError for a damaged header or a block that is gone."""
    request, inputs, opened = open_lent_request(header, open_block)
    gathered, refs = bytearray(), []
    for each in inputs:
        if each.ref == ON_GPU or each.datatype & PLACED:
            raise InternalError("an input lies on a GPU, where the batcher cannot read it")
        gathered += bytes(-len(gathered) % _ALIGNMENT)
        refs.append(TensorRef(each.name, each.datatype, each.shape, len(gathered), each.nbytes))
        if each.nbytes:
            gathered += opened[each.ref][each.offset : each.offset + each.nbytes]
    packed = pack_request(request._replace(inputs=tuple(refs)))
    return bytes(gathered) + packed, pack_span(len(gathered), len(packed))
