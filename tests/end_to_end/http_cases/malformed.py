"""The malformed requests as bytes, and what each must get; rows of one subject share the number in their names."""

from typing import NamedTuple

INFER = b"POST /v2/models/fixed/infer HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"inputs":[{"name":"A","datatype":"INT32","shape":[2,3],"data":[1,2,3,4,5,6]}]}'
CHUNKED = INFER + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT = 1048576  # the server's --max-request-bytes
CLOSED, KEPT = True, False


class Refused(NamedTuple):
    """A malformed request. `fin`: the client says that nothing follows; `part` is found in the sentence."""

    id: str
    sent: bytes
    status: int
    closes: bool
    part: str = ""
    fin: bool = False


def message(*lines: bytes, body: bytes = BODY) -> bytes:
    """A POST to `/infer` with these header lines."""
    return INFER + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def length(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


def path(id_: str, name: bytes, status: int) -> Refused:
    sent = INFER.replace(b"fixed", name) + length(BODY) + b"\r\n\r\n" + BODY
    return Refused(id_, sent, status, CLOSED if status == 400 else KEPT)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


MANY_DIMENSIONS = BODY.replace(b"[2,3]", b"[" + b"1," * 20000 + b"1]")
WHOLE = chunk(BODY) + b"0\r\n\r\n"
FRAMING = [
    Refused("M-01 length and chunks", message(length(WHOLE), b"Transfer-Encoding: chunked", body=WHOLE), 400, CLOSED),
    Refused("M-02 two lengths", message(length(BODY), length(BODY + b" ")), 400, CLOSED),
    Refused("M-02 two equal lengths", message(length(BODY), length(BODY)), 400, CLOSED),
    *(
        Refused(f"M-02 length {value!r}", message(b"Content-Length: " + value), 400, CLOSED)
        for value in [b"13, 13", b"-1", b"+13", b"0x0d", b"1e1", b"", b"1_3", b"\xb2"]
    ),
    Refused("M-03 body cut", message(b"Content-Length: 1000"), 400, CLOSED, "the request body", fin=True),
    Refused("M-04a xchunked", message(b"Transfer-Encoding: xchunked", body=WHOLE), 501, CLOSED),
    Refused("M-04a gzip, chunked", message(b"Transfer-Encoding: gzip, chunked", body=WHOLE), 501, CLOSED),
    Refused("M-04b chunked twice", message(b"Transfer-Encoding: chunked, chunked", body=WHOLE), 400, CLOSED),
    Refused("M-04b chunked, identity", message(b"Transfer-Encoding: chunked, identity", body=WHOLE), 400, CLOSED),
    Refused("M-04b HTTP/1.0", CHUNKED.replace(b"/1.1", b"/1.0") + WHOLE, 400, CLOSED),
    Refused("M-05a size zz", CHUNKED + b"zz\r\n" + BODY, 400, CLOSED),
    Refused("M-05a size -5", CHUNKED + b"-5\r\n12345\r\n0\r\n\r\n", 400, CLOSED),
    Refused("M-05a size with a space", CHUNKED + b" 5\r\n12345\r\n0\r\n\r\n", 400, CLOSED),
    Refused("M-05a terminator", CHUNKED + b"5\r\n12345xx0\r\n\r\n", 400, CLOSED),
    Refused("M-05a cut", CHUNKED + b"50\r\n" + BODY[:20], 400, CLOSED, fin=True),
    Refused("M-05a no last chunk", CHUNKED + chunk(BODY), 400, CLOSED, fin=True),
    Refused("M-05a extensions", CHUNKED + b"5;" + b"x" * 300 + b"\r\n12345\r\n0\r\n\r\n", 400, CLOSED),
    Refused("M-05b size of 72 bits", CHUNKED + b"ffffffffffffffffff\r\n", 400, CLOSED, "exceeds the maximum"),
    Refused(
        "M-06 65,537 chunks",
        CHUNKED + chunk(b" ") * 65537 + b"0\r\n\r\n",
        400,
        CLOSED,
        "Chunked request body exceeds maximum of 65536 non-empty chunks.",
    ),
    Refused("M-06 65,536 chunks", CHUNKED + chunk(b" ") * 65536 + b"0\r\n\r\n", 500, KEPT, "The document is empty."),
    Refused(
        "M-13b many dimensions",
        message(length(MANY_DIMENSIONS), body=MANY_DIMENSIONS),
        500,
        KEPT,
        "Input 'A' has 1 elements by its shape, but 6 in its data",
    ),
    Refused(
        "M-07a length over the limit",
        message(b"Content-Length: %d" % (LIMIT + 1), body=b""),
        400,
        CLOSED,
        f"({LIMIT + 1} bytes) that exceeds the maximum allowed value of {LIMIT} bytes",
    ),
    Refused(
        "M-07a length of 71 bits",
        message(b"Content-Length: 1180591620717411303424", body=b""),
        400,
        CLOSED,
        "exceeds the maximum allowed value",
    ),
    Refused(
        "M-07b chunks over the limit",
        CHUNKED + chunk(bytes(LIMIT // 2)) * 3 + b"0\r\n\r\n",
        400,
        CLOSED,
        f"exceeds the maximum allowed value of {LIMIT} bytes",
    ),
]

HEADS = [
    Refused("M-23a no Host", b"GET /v2 HTTP/1.1\r\n\r\n", 400, CLOSED),
    Refused("M-23b two Hosts", b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, CLOSED),
    Refused("M-23b folded", b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400, CLOSED),
    Refused("M-23b space before the colon", b"GET /v2 HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400, CLOSED),
    Refused("M-23b NUL in a value", b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", 400, CLOSED),
    Refused("M-23b CR in a value", b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400, CLOSED),
    Refused("M-23b bare line feeds", b"GET /v2 HTTP/1.1\nHost: x\n\n\r\n\r\n", 400, CLOSED),
    # No empty line ever comes: the refusal must not wait for one.
    Refused("M-23b bare line feeds alone", b"GET /v2 HTTP/1.1\nHost: x\n\n", 400, CLOSED, "ends in LF"),
    Refused("M-23b a bare line feed at first", b"GET /v2 HTTP/1.1\r\nHost: x\nA: b", 400, CLOSED, "ends in LF"),
    Refused("M-23b HTTP/3.0", b"GET /v2 HTTP/3.0\r\nHost: x\r\n\r\n", 400, CLOSED),
    Refused("M-23b method GE@T", b"GE@T /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, CLOSED),
    Refused("M-23b method post", b"post /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, CLOSED),
    Refused("M-24 long target", b"GET /" + b"a" * 8200 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, CLOSED),
    Refused("M-24 long header", b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431, CLOSED),
    Refused("M-24 many headers", b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431, CLOSED),
    Refused("M-25 another expectation", message(length(BODY), b"Expect: 200-ok"), 417, CLOSED),
    # Silence is an answer, too, to what is no request.
    Refused("M-27 TLS hello", bytes.fromhex("1603010200010001fc0303") + bytes(200), 0, CLOSED, fin=True),
    Refused("M-27 HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, CLOSED),
    Refused("M-27 zeros", bytes(200), 0, CLOSED, fin=True),
    Refused("M-27 nothing", b"", 0, CLOSED, fin=True),
]

#: Names as they stand in the path.
PATHS = [
    path("M-21 escaped slashes", b"..%2f..%2fetc%2fpasswd", 400),
    path("M-21 escaped dots", b"%2e%2e", 400),
    path("M-21 NUL", b"a%00b", 400),
    path("M-21 overlong UTF-8", b"%c0%ae", 400),
    path("M-21 300 characters", b"a" * 300, 400),
    path("M-21 dots", b"..", 400),
    path("M-21 legal", b"..a", 404),
]
