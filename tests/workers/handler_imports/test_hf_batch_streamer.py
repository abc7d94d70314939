"""Texts of a batch while it is generated, with a tokenizer of one character per token."""

from queue import Empty

import numpy as np
import pytest
from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch


class Characters:
    def decode(self, tokens: list[int], *, upper: bool = False) -> str:
        text = "".join(map(chr, tokens))
        return text.upper() if upper else text


def steps(streamer: TextIteratorStreamerBatch, *texts: str) -> None:
    """One step for each character of the texts, which are as long as each other."""
    for characters in zip(*texts, strict=True):
        streamer.put(np.array([ord(each) for each in characters]))


def test_words_are_handed_out_once_they_are_decided() -> None:
    streamer = TextIteratorStreamerBatch(Characters(), 2, skip_prompt=True, timeout=5)
    streamer.put(np.array([[80, 80], [81, 81]]))  # the prompt
    steps(streamer, "ab c\n", "x yz ")
    steps(streamer, "d\u4e00", "!?")
    streamer.end()
    lists = list(streamer)
    assert lists == [["", ""], ["", "x "], ["ab ", ""], ["", ""], ["c\n", "yz "], ["", ""], ["d\u4e00", ""], ["", "!?"]]
    assert ["".join(each) for each in zip(*lists, strict=True)] == ["ab c\nd\u4e00", "x yz !?"]


def test_the_prompt_and_the_settings_of_decoding_count() -> None:
    streamer = TextIteratorStreamerBatch(Characters(), 1, timeout=5, upper=True)
    streamer.put(np.array([[97, 32]]))
    streamer.end()
    assert list(streamer) == [["A "]]


def test_another_batch_size_and_a_silent_model_are_errors() -> None:
    streamer = TextIteratorStreamerBatch(Characters(), 2, timeout=0)
    with pytest.raises(ValueError, match="batches of 2"):
        streamer.put(np.array([97]))
    with pytest.raises(Empty):
        next(streamer)
