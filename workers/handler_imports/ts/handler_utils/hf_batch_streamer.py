"""A streamer of transformers' `generate` for a batch: lists of texts, one per sequence, while a model generates.

    TextIteratorStreamerBatch(tokenizer, batch_size=2, skip_prompt=True) ─► model.generate(**inputs, streamer=streamer)
    for texts in streamer: …    texts[i] is the new text of sequence i since the last list, "" if none

`generate` runs in one thread, the loop in another. A text is handed out up to its last space, since further tokens may
change its last word; it is handed out in full at the end of a line, after a Chinese, Japanese or Korean character, and
when `generate` ends.
"""

from collections.abc import Iterator, Sequence
from queue import Queue
from typing import Any

_CJK = range(0x2E80, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x30000)


class TextIteratorStreamerBatch:
    """The texts of one batch's sequences, in the order of their tokens."""

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        """`timeout`, in s, is how long the loop waits for a list before queue.Empty is raised; `decode_kwargs` go to
        `tokenizer.decode`."""
        self.batch_size = batch_size
        self._tokenizer = tokenizer
        self._skips_next = skip_prompt
        self._timeout_s = timeout
        self._decode_kwargs = decode_kwargs
        # Changed by put and end: the tokens of each sequence's last line, and how many characters of that line's text
        # have been handed out.
        self._tokens: list[list[int]] = [[] for _ in range(batch_size)]
        self._num_done = [0] * batch_size
        self._lists: Queue[list[str] | None] = Queue()

    def put(self, value: Any) -> None:
        """Take a tensor of tokens: of shape [batch_size, n] for the prompts, [batch_size] for one more token of each
        sequence. Raises ValueError for another batch size."""
        rows: Sequence[Any] = value.tolist()
        if len(rows) != self.batch_size:
            raise ValueError(f"the streamer is for batches of {self.batch_size}, it got tokens of shape {value.shape}")
        if self._skips_next:
            self._skips_next = False
            return
        self._lists.put(
            [self._decided(index, row if isinstance(row, list) else [row]) for index, row in enumerate(rows)]
        )

    def end(self) -> None:
        """Hand out the rest of each text, and end the loop over lists."""
        texts = [self._text(index)[self._num_done[index] :] for index in range(self.batch_size)]
        if any(texts):
            self._lists.put(texts)
        self._tokens = [[] for _ in range(self.batch_size)]
        self._num_done = [0] * self.batch_size
        self._lists.put(None)

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        texts = self._lists.get(timeout=self._timeout_s)
        if texts is None:
            raise StopIteration
        return texts

    def _decided(self, index: int, tokens: Sequence[int]) -> str:
        self._tokens[index].extend(tokens)
        text = self._text(index)
        if text.endswith("\n"):
            decided = text[self._num_done[index] :]
            self._tokens[index], self._num_done[index] = [], 0
            return decided
        is_whole = bool(text) and any(ord(text[-1]) in each for each in _CJK)
        end = len(text) if is_whole else text.rfind(" ") + 1
        decided = text[self._num_done[index] : end]
        self._num_done[index] = max(self._num_done[index], end)
        return decided

    def _text(self, index: int) -> str:
        return str(self._tokenizer.decode(self._tokens[index], **self._decode_kwargs)) if self._tokens[index] else ""
