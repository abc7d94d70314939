"""Heads of HTTP requests, written by hand."""

GET = b"GET /v2 HTTP/1.1\r\n"
INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"


def get(*fields: bytes) -> bytes:
    """A GET with a Host and these fields."""
    return GET + b"Host: x\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def infer(*fields: bytes) -> bytes:
    return INFER + b"".join(field + b"\r\n" for field in fields) + b"\r\n"
