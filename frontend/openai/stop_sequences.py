"""Stop sequences in a text that comes in pieces: the text ends in front of the first of them. Pure.

    stop "END"     pieces "the E", "N", "D of it"     →     "the ", "", "", and the end

The end of a piece that may be the beginning of a stop sequence is kept back until the next piece has come.
"""

from collections.abc import Sequence


class StopSequences:
    """The search in one text."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty."""
        self._stops = stops
        # Changed by feed and rest.
        self._kept = ""
        self.is_found = False

    def feed(self, piece: str) -> str:
        """The part of the text that is certain now; after the first stop sequence, nothing."""
        if not self._stops:
            return piece
        if self.is_found:
            return ""
        text = self._kept + piece
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_found, self._kept = True, ""
            return text[: min(ends)]
        most = max(_num_begun(text, stop) for stop in self._stops)
        self._kept = text[len(text) - most :]
        return text[: len(text) - most]

    def rest(self) -> str:
        """The text that was kept back, once the model's text has ended."""
        kept, self._kept = self._kept, ""
        return kept


def _num_begun(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the beginning of a stop sequence."""
    for num in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:num]):
            return num
    return 0
