"""The sequences in the slots of an instance, written to the batcher's memory so that a successor continues them.

The batcher writes the table before it publishes a batch to the worker, and before it counts an answer as passed on; its
successor reads the table, which `shm/layout.py` draws.
"""

from collections.abc import Iterator

from shoal.batcher.scheduling.sequence_values import SlotChange, SlotState
from shoal.shm.layout import SLOT_WORDS, WORD, S
from shoal.shm.segment import Segment

_CORRELATION, _NUMBER, _STATE = S.CORRELATION, S.NUMBER, S.STATE


class SlotTable:
    """The table of one worker."""

    __slots__ = ("_words",)

    def __init__(self, link: Segment) -> None:
        header = link.header
        first = header.slab_offset // WORD
        self._words = link.words[first : first + header.slab_nbytes // WORD]

    def note(self, change: SlotChange) -> None:
        """Write a change of a slot's sequence or of that sequence's state."""
        words, first = self._words, SLOT_WORDS * change.slot
        if first + SLOT_WORDS <= len(words):
            # The state is FREE until all other words are written, so that a half-written sequence counts as none.
            words[first + _STATE] = SlotState.FREE
            words[first + _CORRELATION], words[first + _NUMBER] = change.correlation, change.number
            words[first + _STATE] = change.state

    def read(self) -> Iterator[tuple[int, int, int, SlotState]]:
        """(slot, correlation, number, state) of each slot that has a sequence."""
        words = self._words.tolist()
        for slot in range(len(words) // SLOT_WORDS):
            row = words[SLOT_WORDS * slot : SLOT_WORDS * (slot + 1)]
            if row[_STATE] != SlotState.FREE:
                yield slot, row[_CORRELATION], row[_NUMBER], SlotState(row[_STATE])
