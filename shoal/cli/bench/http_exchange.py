"""HTTP/1.1 on one connection of a load: requests that are ready as bytes, and answers of which only the end matters.

Pure. Heads of answers repeat, so parsed heads are kept by their bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.cli.remote import sentence_of

#: The most heads that are kept (ours).
_MAX_HEADS = 1024
#: The most bytes of an error's body that are kept for its sentence.
_MAX_ERROR_BYTES = 64 * 1024
#: Results of `receive` without bytes to send: while the answer is not whole yet, and once it is.
_MORE, _WHOLE = (b"", False), (b"", True)


class _Head(NamedTuple):
    """The head of an answer, parsed."""

    status: int
    num_body_bytes: int
    is_last: bool  # the server closes the connection after this answer
    fault: str | None  # why the answer cannot be read


class HttpExchange:
    """The requests and answers of one connection, one after the other."""

    _heads: dict[bytes, _Head] = {}  # noqa: RUF012  shared by all connections

    def __init__(self, requests: Sequence[bytes]) -> None:
        self._requests = requests
        # Changed by receive: all fields below.
        self._data = b""  # the beginning of a head or of an error's body that has not arrived whole
        self._head: _Head | None = None
        self._num_missing = 0
        self._last_head, self._last_bytes = b"", 0  # of the last answer if one read had it whole, with status 200
        self.error: str | None = None
        self.is_last = False

    def opening(self) -> bytes:
        """No bytes: a connection begins with its first request."""
        return b""

    def request(self, number: int) -> bytes:
        """A whole request."""
        return self._requests[number % len(self._requests)]

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Receive bytes from the server; returns bytes to send (none), and whether the answer is whole."""
        head = self._head
        if head is None:
            if len(data) == self._last_bytes and not self._data and data.startswith(self._last_head):
                self.error = None
                return _WHOLE  # the same head, so the body is as long as the last one's
            if self._data:
                data = self._data + data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._data = data
                return _MORE
            text = data[:end]
            head = self._heads.get(text)
            if head is None:
                head = _read(text)
                if len(self._heads) < _MAX_HEADS:
                    self._heads[text] = head
            self._num_missing = head.num_body_bytes - (len(data) - end)
            if head.status == 200 and self._num_missing == 0 and head.fault is None:
                self._data, self.error, self.is_last = b"", None, head.is_last
                self._last_head, self._last_bytes = (b"", 0) if head.is_last else (text, len(data))
                return _WHOLE
            self._head, self._data = head, data[end:]
        else:
            self._num_missing -= len(data)
            if head.status != 200 and len(self._data) < _MAX_ERROR_BYTES:
                self._data += data
        if self._num_missing > 0 and head.fault is None:
            return _MORE
        self.error = head.fault or (None if head.status == 200 else sentence_of(self._data, f"status {head.status}"))
        self.is_last = head.is_last
        if self._num_missing < 0 and head.fault is None:
            self.error, self.is_last = "the server sent more than its Content-Length says", True
        self._head, self._data = None, b""
        return _WHOLE


def http_request(path: str, host: str, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """The bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _read(text: bytes) -> _Head:
    first, *lines = text.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "")
    status = int(rest[:3]) if version.startswith("HTTP/1.") and rest[:3].isdigit() else 0
    is_last = version != "HTTP/1.1" or headers.get("connection", "").lower() == "close"
    if not status:
        return _Head(0, 0, True, "the answer is not HTTP/1.1")
    if not length.isdigit():
        return _Head(status, 0, True, f"an answer with status {status} has no Content-Length, which bench needs")
    return _Head(status, int(length), is_last, None)
