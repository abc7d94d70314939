"""The text that the text samples are made of: sentences on five topics, some composed of word lists, some by hand.

The composed ones train the tokenizer and the encoder (`scripts/make_text_models.py`); the ones written by hand are only
ever tested with. All of it was written for Shoal, and stands in topics.json.
"""

import json
import random
import re
from pathlib import Path
from typing import NamedTuple


class Topic(NamedTuple):
    """How sentences on a topic are composed: `{name}` in a pattern stands for a word of that list."""

    patterns: list[str]
    words: dict[str, str]  # by name, the words of a list, separated by commas
    held_out: list[str]


_TEXTS = json.loads(Path(__file__).with_suffix(".json").read_text())
#: Words that belong to no topic.
COMMON: dict[str, str] = _TEXTS["common"]
TOPICS = {name: Topic(**topic) for name, topic in _TEXTS["topics"].items()}


class Labelled(NamedTuple):
    """A sentence and the index of its topic."""

    text: str
    topic: int


def composed(per_topic: int) -> list[Labelled]:
    """So many sentences of each topic, every pattern as often as the others, the words drawn."""
    draw = random.Random(0)
    found = []
    for index, topic in enumerate(TOPICS.values()):
        lists = {name: words.split(", ") for name, words in {**COMMON, **topic.words}.items()}
        for number in range(per_topic):
            pattern = topic.patterns[number % len(topic.patterns)]
            text = re.sub(r"\{(\w+)\}", lambda name, lists=lists: draw.choice(lists[name[1]]), pattern)  # type: ignore[misc]
            found.append(Labelled(text, index))
    return found


def held_out() -> list[Labelled]:
    """The sentences that were written by hand."""
    return [Labelled(text, index) for index, topic in enumerate(TOPICS.values()) for text in topic.held_out]
