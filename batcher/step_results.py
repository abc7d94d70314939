"""Results of ensembles' steps: read, held while a step or a client needs them, and released. Lives in the batcher."""

from collections.abc import Sequence
from operator import itemgetter

from shoal import errors, reasons
from shoal.batcher.blocks import Blocks
from shoal.batcher.holders import Holders
from shoal.batcher.passed_on import EnsembleRequest, Passed, ResponseBlocks, StepResponses, read_pieces
from shoal.batcher.peers import ScheduledModel
from shoal.errors import ShoalError
from shoal.request import Parameters
from shoal.shm.layout import SPAN_MASK, SPAN_SHIFT, P, Record

_BLOCK, _MORE, _PIECES = P.BLOCK, P.MORE, P.PIECES
_answer = itemgetter(P.STATUS, P.BLOCK, P.HEADER, P.REASON, P.DETAIL)
#: A held response of a step: the key of the step's request, which holds the blocks; the blocks of its tensors; the
#: reply's block if further responses follow, 0 for the last; whether an ensemble made the response, so that each block
#: is a piece.
Result = tuple[int, Sequence[int], int, bool]


class StepResults:
    """The responses of ensembles' steps, as the batcher receives them in the role of the steps' client."""

    def __init__(self, blocks: Blocks, holders: Holders) -> None:
        self._blocks = blocks
        self._holders = holders
        #: The block that was read last, kept since one block has all responses of a batch. Changed by read and forget.
        self._last: tuple[int, memoryview | None] = (0, None)

    def take(self, key: int, reply: Record) -> Result:
        """Take over the hold on the blocks that a step's `reply` names; `release` ends it."""
        ref = reply[_BLOCK]
        part = ref if reply[_MORE] else 0
        num_pieces = reply[_PIECES]
        if not num_pieces:
            return key, (ref,), part, False
        block = self._blocks.open(ref)
        return key, (ref,) if block is None else read_pieces(block, num_pieces), part, True

    def read(
        self,
        model: ScheduledModel,
        responses: StepResponses,
        reply: Record,
        result: Result,
        asked: EnsembleRequest,
        tensors: dict[str, Passed],
    ) -> tuple[tuple[str, ...], Parameters]:
        """Add the tensors that the step has written to `tensors`. Returns their names, and the parameters. Raises
        ShoalError if the response is an error, or unreadable."""
        status, ref, span, reason, detail = _answer(reply)
        last_ref, block = self._last
        if ref != last_ref:
            block = self._blocks.open(ref) if ref else None
            self._last = ref, block
        if reason or block is None:
            request = asked.request
            reason = reason or reasons.without_memory(status)
            raise refusal(model, reason, detail, request.id, request.sequence[0])
        offset = span >> SPAN_SHIFT
        header = block[offset : offset + (span & SPAN_MASK)].tobytes()
        if status:
            raise errors.from_wire(status, header.decode("utf-8", "replace"))
        _, refs, _, has_pieces = result
        if has_pieces:
            pieces = ResponseBlocks(refs, self._blocks.open)
            outputs, names, parameters = responses.read(model.id, model.signature, header, pieces.nbytes)
            for name, kind, offset in outputs:
                tensors[name] = (kind, *pieces.find(offset))
        else:
            nbytes = len(block)
            outputs, names, parameters = responses.read(model.id, model.signature, header, nbytes)
            for name, kind, offset in outputs:
                tensors[name] = (kind, offset, ref, nbytes)
        return names, parameters

    def forget(self) -> None:
        """Forget the block that was read last: the worker may write another result into it from now on."""
        self._last = (0, None)

    def release(self, result: Result) -> None:
        """Drop an ensemble's hold on a step's result; the result's blocks are freed once no other holder is left."""
        key, refs, part, has_pieces = result
        for ref in (part, *refs) if has_pieces else (part,):
            if unheld := self._holders.release(key, ref):
                self._blocks.free(unheld)


def refusal(
    model: ScheduledModel, reason: int, detail: int, request_id: str, correlation_id: int | str = 0
) -> ShoalError:
    """The error for a request to a step's model that the batcher itself has refused."""
    return reasons.error_for(
        reason,
        detail,
        model=model.signature.name,
        version=model.version,
        request_id=request_id,
        groups=model.groups,
        correlation_id=correlation_id,
    )
