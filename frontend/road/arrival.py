"""Whether all bytes of an HTTP/1 request have come. Pure: bytes in, a verdict out.

Only the end of a request is searched for, so that a request takes a thread only once all of it has come. gunicorn's
parser decides the framing of the body: `judge` runs it on the head (connection.py), and the thread parses the whole
request again. A request that this file does not understand, or that is too long, counts as complete: gunicorn
or the application refuses it, without waiting for further bytes.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

#: gunicorn's limits for the first line of a request, and for a head of 100 fields (frontend/gunicorn_conf.py).
MAX_LINE_BYTES, MAX_HEAD_BYTES = 8190, 100 * 8192
#: Triton's limit for the chunks of a body. In Triton each chunk costs stack; here, one loop iteration in Python.
MAX_CHUNKS = 65536
#: Most bytes of a chunk's line, with its size and extensions; the road refuses longer lines (bound_chunks in road.py).
_MAX_SIZE_LINE_BYTES = 1024
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LINE_END = len(b"\r\n")
_SIZE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;.*)?", re.DOTALL)


class Framing(NamedTuple):
    """The framing of a request's body: its length or its chunks, and their limits."""

    length: int | None  # bytes that Content-Length announces, 0 without a body; None: chunked
    limit: int = 0  # bytes beyond which the application refuses the body
    expects_continue: bool = False  # the client waits for an interim response before it sends the body
    chunk_limit: int = 0  # bytes beyond which the road refuses one chunk, unless `limit` is greater


#: The framing that a head announces; None if the request is answered, or refused, without its body.
Judge = Callable[[bytes], Framing | None]


class Arrival:
    """The request that is arriving on one connection."""

    __slots__ = (
        "_in_trailers", "_judge", "_line", "_missing", "_num_chunks", "_searched", "_trailer_nbytes", "body_nbytes",
        "framing", "head", "is_complete",
    )  # fmt: skip

    def __init__(self, judge: Judge) -> None:
        # Changed by add. The judge refers to the connection, which refers to this arrival, so the judge is forgotten
        # once it has judged: the cycle would keep both, and the request's bytes, until the collector of cycles runs.
        self._judge: Judge | None = judge
        self.head = b""  # up to its empty line, once that has come
        self.framing: Framing | None = None
        self.body_nbytes = 0  # bytes of the body that have come, without the framing of chunks
        self.is_complete = False
        self._line = bytearray()  # the head or a line between chunks, as far as it has come
        self._searched = 0  # how far the head has been searched for its end
        self._missing = -1  # bytes to come of the body, or of a chunk and its line's end; -1: a line comes next
        self._num_chunks = 0
        self._in_trailers = False
        self._trailer_nbytes = 0

    def add(self, data: bytes) -> None:
        """Take the bytes that have come next; `is_complete` is true once the whole request has come."""
        rest = memoryview(data)
        if not self.head:
            rest = self._add_to_head(data)
        while rest and not self.is_complete:
            rest = self._add_to_line(rest) if self._missing < 0 else self._add_to_data(rest)

    def _add_to_head(self, data: bytes) -> memoryview:
        line = self._line
        line += data
        empty_line = line.find(b"\r\n\r\n", self._searched)
        if empty_line < 0:
            self._searched = max(0, len(line) - 3)
            lines_end = line.find(b"\r\n")
            self.is_complete = (
                len(line) > MAX_HEAD_BYTES
                or (lines_end < 0 and len(line) > MAX_LINE_BYTES + 2)
                or _BARE_LINE_FEED.search(line, max(0, len(line) - len(data))) is not None
            )
            return memoryview(b"")
        end = empty_line + 4
        self.head, rest = bytes(line[:end]), memoryview(bytes(line[end:]))
        self._line = bytearray()
        judge, self._judge = self._judge, None
        assert judge is not None, "there is one head"
        framing = self.framing = judge(self.head)
        if framing is None or framing.length == 0:
            self.is_complete = True
        elif framing.length is not None:
            self._missing = framing.length
            self.is_complete = framing.length > framing.limit
        return rest

    def _add_to_data(self, data: memoryview) -> memoryview:
        assert self.framing is not None, "the head came first"
        taken = min(self._missing, len(data))
        of_body = self._missing if self.framing.length is not None else max(0, self._missing - _LINE_END)
        self.body_nbytes += min(taken, of_body)
        self._missing -= taken
        if self.body_nbytes > self.framing.limit:
            self.is_complete = True
        elif self._missing == 0:
            if self.framing.length is not None:
                self.is_complete = True
            self._missing = -1
        return data[taken:]

    def _add_to_line(self, data: memoryview) -> memoryview:
        """Read the bytes of one line between chunks; returns the bytes behind the line."""
        line = self._line
        before = len(line)
        # Copy no more than the longest line, not the chunk's data after it.
        limit = MAX_HEAD_BYTES if self._in_trailers else _MAX_SIZE_LINE_BYTES
        line += data[: limit + 2]
        end = line.find(b"\r\n", max(0, before - 1))
        if end < 0:
            self.is_complete = len(line) > limit
            return memoryview(b"")
        taken = bytes(line[:end])
        self._line = bytearray()
        rest = data[end + 2 - before :]
        if self._in_trailers:
            self._trailer_nbytes += len(taken)
            self.is_complete = not taken or self._trailer_nbytes > MAX_HEAD_BYTES
            return rest
        size = _SIZE.fullmatch(taken)
        if size is None:
            self.is_complete = True
        elif nbytes := int(size[1], 16):
            assert self.framing is not None, "the head came first"
            self._missing = nbytes + _LINE_END
            self._num_chunks += 1
            most = max(self.framing.limit, self.framing.chunk_limit)
            self.is_complete = nbytes > most or self._num_chunks > MAX_CHUNKS
        else:
            self._in_trailers = True
        return rest
