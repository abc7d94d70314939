"""Which sequences the slots of an instance have, in the batcher's memory, so that a successor goes on with them.

Written by the batcher before it shows the worker what runs, and before it counts an answer as passed on; read by the
batcher that takes its place. `shm/layout.py` draws it.
"""

from collections.abc import Iterator

from shoal.batcher.scheduling.sequence_values import SlotChange, SlotState
from shoal.shm.layout import WORD
from shoal.shm.segment import Segment


class SlotTable:
    """That of one worker."""

    __slots__ = ("_words",)

    def __init__(self, link: Segment) -> None:
        header = link.header
        first = header.slab_offset // WORD
        self._words = link.words[first : first + header.slab_nbytes // WORD]

    def note(self, change: SlotChange) -> None:
        """A slot has another sequence, or the same in another state."""
        first = 4 * change.slot
        if first + 3 < len(self._words):
            # In this order: a sequence that is half written down is none.
            self._words[first + 2] = SlotState.FREE
            self._words[first], self._words[first + 1] = change.correlation, change.number
            self._words[first + 2] = change.state

    def read(self) -> Iterator[tuple[int, int, int, SlotState]]:
        """(slot, correlation, number, state) of those that have a sequence."""
        words = self._words.tolist()
        for first in range(0, len(words) - 3, 4):
            if words[first + 2] != SlotState.FREE:
                yield first // 4, words[first], words[first + 1], SlotState(words[first + 2])
