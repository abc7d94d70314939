"""The sentences of the text samples, on five topics: some composed of word lists, some written by hand.

The composed sentences train the tokenizer and the encoder (`scripts/make_text_models.py`); those written by hand
serve only for testing. topics.json has the patterns, word lists and hand-written sentences; all were written for Shoal.
"""

import json
import random
import re
from pathlib import Path
from typing import NamedTuple


class Topic(NamedTuple):
    """A topic and the parts of its sentences: `{name}` in a pattern stands for a word of that list."""

    patterns: list[str]
    words: dict[str, str]  # by list name, its words, separated by commas
    held_out: list[str]


_TEXTS = json.loads(Path(__file__).with_suffix(".json").read_text())
#: Lists of words that belong to no topic.
COMMON: dict[str, str] = _TEXTS["common"]
TOPICS = {name: Topic(**topic) for name, topic in _TEXTS["topics"].items()}


class Labelled(NamedTuple):
    """A sentence and the index of its topic."""

    text: str
    topic: int


def composed(per_topic: int) -> list[Labelled]:
    """Sentences of all topics, `per_topic` of each, taking the patterns in turn, with random words."""
    draw = random.Random(0)
    sentences = []
    for index, topic in enumerate(TOPICS.values()):
        lists = {name: words.split(", ") for name, words in {**COMMON, **topic.words}.items()}
        for number in range(per_topic):
            pattern = topic.patterns[number % len(topic.patterns)]
            text = re.sub(r"\{(\w+)\}", lambda match, lists=lists: draw.choice(lists[match[1]]), pattern)  # type: ignore[misc]
            sentences.append(Labelled(text, index))
    return sentences


def held_out() -> list[Labelled]:
    """The sentences written by hand."""
    return [Labelled(text, index) for index, topic in enumerate(TOPICS.values()) for text in topic.held_out]
