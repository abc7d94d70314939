"""Messages between a gRPC lane and the road about requests in streams by keys with limits, which the road counts. Pure.

    lane → road    [number, name, requests a second, burst, in flight]    a request by this key asks to begin
    lane → road    [number]                                               one that was admitted has ended
    road → lane    [number, sentence, seconds until another attempt]      admitted if the sentence is empty

A msgpack array each, in one message of a pair of sockets that keeps messages apart. The end of the socket ends all that
was admitted on it.
"""

from typing import NamedTuple

import msgpack

from shoal.api_keys import ApiKey, KeyLimits

#: The bytes by which the road knows the socket that a lane hands over for these messages.
GREETING = b"admissions"
#: Most bytes of a message: a name of 64 characters, or a sentence with one.
MAX_BYTES = 4096


class Question(NamedTuple):
    """A request that asks to begin, or, without a key, one that has ended."""

    number: int
    key: ApiKey | None


class Verdict(NamedTuple):
    """The road's answer: admitted, if there is no sentence."""

    number: int
    sentence: str = ""
    retry_after_s: int = 0


def pack_question(question: Question) -> bytes:
    """The message of a lane."""
    key = question.key
    words = (question.number,) if key is None else (question.number, key.name, *key.limits)
    return msgpack.packb(words)  # type: ignore[no-any-return]


def unpack_question(data: bytes) -> Question:
    """The message of a lane, read. Only a name and limits are left of its key."""
    number, *words = msgpack.unpackb(data)
    if not words:
        return Question(number, None)
    name, *limits = words
    return Question(number, ApiKey(name, b"", ("infer",), limits=KeyLimits(*limits)))


def pack_verdict(verdict: Verdict) -> bytes:
    """The message of the road."""
    return msgpack.packb(verdict)  # type: ignore[no-any-return]


def unpack_verdict(data: bytes) -> Verdict:
    """The message of the road, read."""
    return Verdict(*msgpack.unpackb(data))
