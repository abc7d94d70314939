"""Memory for headers that the batcher writes: of steps' requests, and of ensembles' responses. Lives in the batcher."""

from array import array

from shoal.errors import UnavailableError
from shoal.shm.layout import SPAN_SHIFT, WORD, pack_span
from shoal.shm.slab import Block, Slab


class NoStepMemoryError(UnavailableError):
    """The batcher's own memory is used up by requests to ensembles and by responses that clients hold."""

    def __init__(self) -> None:
        super().__init__("no memory is left for headers of ensembles")


class StepHeaders:
    """The headers of one iteration of an ensemble. All lie in one block while the block has room, and the response's
    header is then written over them: allocating and freeing a block costs as much as everything else about a step's
    header."""

    __slots__ = ("_end", "_full", "_memory", "_nbytes", "_ref", "_slab")

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        # Changed by every method: the block that has room, where the next header goes, and full blocks.
        self._ref = self._nbytes = self._end = 0
        self._memory = memoryview(b"")
        self._full: list[int] = []

    def add(self, header: bytes) -> tuple[int, int]:
        """Store a header. Returns the block's reference and the header's span; this object keeps and frees the block.
        Raises NoStepMemoryError if there is no room."""
        nbytes = len(header)
        start = self._end
        end = start + nbytes
        if end > self._nbytes:
            self._grow(nbytes)
            start, end = 0, nbytes
        self._memory[start:end] = header
        self._end = end
        return self._ref, start << SPAN_SHIFT | nbytes

    def end_with(self, pieces: list[int], header: bytes) -> tuple[int, int]:
        """Store a response after the references to its tensors' blocks, over headers that no step reads any more.
        Returns the block's reference and the header's span; from now on this object does not free the block. Raises
        NoStepMemoryError if there is no room."""
        offset = len(pieces) * WORD
        nbytes = offset + len(header)
        if nbytes > self._nbytes:
            self._grow(nbytes)
        ref, memory = self._ref, self._memory
        memory[:offset] = array("Q", pieces).tobytes()
        memory[offset:nbytes] = header
        self._ref = self._nbytes = self._end = 0
        self.free()
        return ref, pack_span(offset, len(header))

    def free(self) -> None:
        """Free all blocks, when no step reads its header any more."""
        if self._ref:
            self._slab.free(self._ref)
            self._ref = self._nbytes = self._end = 0
        while self._full:
            self._slab.free(self._full.pop())

    def _grow(self, nbytes: int) -> None:
        block = allocate(self._slab, nbytes)
        if self._ref:
            self._full.append(self._ref)
        self._ref, self._memory, self._nbytes = block.ref, block.memory, len(block.memory)


def allocate(slab: Slab, nbytes: int) -> Block:
    """A block of at least `nbytes` bytes of the batcher's own slab, to be freed by the code that asked for it. Raises
    NoStepMemoryError if there is no room."""
    block = slab.allocate(nbytes)
    if block is None:
        raise NoStepMemoryError
    return block
