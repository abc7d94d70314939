"""RESP, version 2 (redis.io, "Redis serialization protocol"): commands as bytes, bytes as replies. Pure.

As much of it as a cache needs: replies are texts, numbers, errors and values, and never arrays.
"""

#: A line of a reply; what is longer is not Redis.
_MAX_LINE_BYTES = 64 << 10
_END = b"\r\n"


class ProtocolError(ConnectionError):
    """What came is no reply, and nothing that follows can be understood."""


class Refusal(str):
    """What an error reply says."""

    __slots__ = ()


#: A text or a value, None for one that is not there, or what is wrong.
Reply = bytes | Refusal | None


def command(*words: bytes) -> bytes:
    """A command and its arguments, in the form that takes any bytes."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += (b"$%d\r\n" % len(word), word, _END)
    return b"".join(parts)


class ReplyReader:
    """Cuts what arrives into replies."""

    __slots__ = ("_buffer", "_max_nbytes", "_needed")

    def __init__(self, max_nbytes: int) -> None:
        #: The largest value that is expected.
        self._max_nbytes = max_nbytes
        # Changed by read: what is no whole reply yet, and how long it must be before another look is worth it.
        self._buffer = bytearray()
        self._needed = 0

    def read(self, data: bytes) -> list[Reply]:
        """All replies that are complete with this. Raises ProtocolError."""
        buffer = self._buffer
        buffer += data
        replies: list[Reply] = []
        if len(buffer) < self._needed:
            return replies
        start, self._needed = 0, 0
        while (end := buffer.find(_END, start, start + _MAX_LINE_BYTES)) >= 0:
            kind, line = bytes(buffer[start : start + 1]), bytes(buffer[start + 1 : end])
            after = end + len(_END)
            reply: Reply = line
            if kind == b"-":
                reply = Refusal(line.decode("utf-8", "replace"))
            elif kind == b"$":
                nbytes = self._size(line)
                if nbytes < 0:
                    reply = None
                else:
                    whole = after + nbytes + len(_END)
                    if len(buffer) < whole:
                        self._needed = whole - start
                        break
                    reply, after = bytes(buffer[after : after + nbytes]), whole
                    if bytes(buffer[whole - len(_END) : whole]) != _END:
                        raise ProtocolError("a value does not end where it should")
            elif kind not in (b"+", b":"):
                raise ProtocolError(f"a reply begins with {kind!r}")
            replies.append(reply)
            start = after
        else:
            if len(buffer) - start >= _MAX_LINE_BYTES:
                raise ProtocolError("a line does not end")
        del buffer[:start]
        return replies

    def _size(self, line: bytes) -> int:
        try:
            nbytes = int(line)
        except ValueError:
            raise ProtocolError(f"a value has {line[:20]!r} bytes") from None
        if nbytes > self._max_nbytes:
            raise ProtocolError(f"a value has {nbytes} bytes, and {self._max_nbytes} were asked for at most")
        return nbytes
