"""Text to token ids: lower case, words and marks apart, then the longest pieces of the vocabulary (WordPiece)."""

from __future__ import annotations  # Triton has no pb_utils.InferenceRequest while it completes configurations

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

PADDING = "[PAD]"
UNKNOWN = "[UNK]"
MAX_TOKENS = 64  # of a text; what comes after them is cut off
WORD = re.compile(r"[^\W_]+|[^\w\s]|_")


class TritonPythonModel:
    """`text`, one string a row -> `input_ids` and `attention_mask`, as long as the longest text of the request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the vocabulary: one piece a line, its number is its id."""
        vocabulary = Path(__file__).with_name("vocabulary.txt").read_text(encoding="utf-8").splitlines()
        self.ids = {piece: number for number, piece in enumerate(vocabulary)}
        self.pieces = lru_cache(maxsize=10_000)(self._pieces)  # most words come again

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer each request by itself."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        rows = [self.tokenize(text.decode("utf-8", errors="replace")) for text in texts[:, 0]]
        length = max(map(len, rows), default=0)
        input_ids = np.full((len(rows), length), self.ids[PADDING], np.int64)
        attention_mask = np.zeros((len(rows), length), np.int64)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            attention_mask[row, : len(ids)] = 1
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("attention_mask", attention_mask)]
        )

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text. One without any word is a single unknown piece, so that there is something to look at."""
        ids = [number for word in WORD.findall(text.lower()) for number in self.pieces(word)]
        return ids[:MAX_TOKENS] or [self.ids[UNKNOWN]]

    def _pieces(self, word: str) -> list[int]:
        """The longest piece that the word begins with, then of the rest; a piece inside a word is written `##piece`."""
        found = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self.ids.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return [self.ids[UNKNOWN]]
            found.append(number)
            start = end
        return found
