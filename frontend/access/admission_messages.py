"""The messages by which a gRPC lane asks the road whether the next request of a stream may begin: the road counts the
requests of each API key that has limits, for all lanes. Pure.

    lane → road    [number, key's name, requests a second, burst, in flight]    a request asks to begin
    lane → road    [number]                                                     the request has ended
    road → lane    [number, reason, seconds until another attempt]              admitted if the reason is empty

Each is a msgpack array in one packet of a SOCK_SEQPACKET pair. When the socket closes, all requests that were admitted
on it have ended.
"""

from typing import NamedTuple

import msgpack

from shoal.api_keys import ApiKey, KeyLimits

#: The bytes with which a lane hands its socket for these messages over to the road.
GREETING = b"admissions"
#: The most bytes of a message, whose longest parts are a key's name of 64 characters and a sentence with that name.
MAX_BYTES = 4096


class AdmissionMessage(NamedTuple):
    """A lane's message about one request: with a key, the request asks to begin; without one, it has ended. `number` is
    the lane's own number of the request."""

    number: int
    key: ApiKey | None

    def pack(self) -> bytes:
        """The bytes of the message, as they are sent."""
        key = self.key
        return msgpack.packb((self.number,) if key is None else (self.number, key.name, *key.limits))  # type: ignore[no-any-return]

    @classmethod
    def unpack(cls, data: bytes) -> "AdmissionMessage":
        """A message from its bytes. Its key has its name and limits, but neither digest nor models."""
        number, *key = msgpack.unpackb(data)
        if not key:
            return cls(number, None)
        name, *limits = key
        return cls(number, ApiKey(name, b"", ("infer",), limits=KeyLimits(*limits)))


class Decision(NamedTuple):
    """The road's answer: the request is admitted, or refused for a reason."""

    number: int
    reason: str = ""  # empty: admitted
    retry_after_s: int = 0

    def pack(self) -> bytes:
        """The bytes of the answer, as they are sent."""
        return msgpack.packb(self)  # type: ignore[no-any-return]

    @classmethod
    def unpack(cls, data: bytes) -> "Decision":
        """An answer from its bytes."""
        return cls(*msgpack.unpackb(data))
