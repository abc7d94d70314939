"""The malformed requests as bytes, and what each must get; rows of one subject share the number in their names."""

import gzip
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


def json_body(id_: str, body: bytes, status: int, *lines: bytes) -> Refused:
    """A body that HTTP delivers whole and the handler refuses."""
    return Refused(id_, message(length(body), *lines, body=body), status, KEPT)


def changed(id_: str, before: bytes, after: bytes, status: int) -> Refused:
    body = BODY.replace(before, after)
    assert body != BODY
    return json_body(id_, body, status)


def path(id_: str, name: bytes, status: int) -> Refused:
    sent = INFER.replace(b"fixed", name) + length(BODY) + b"\r\n\r\n" + BODY
    return Refused(id_, sent, status, CLOSED if status == 400 else KEPT)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


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

DEEP = b'{"inputs":' + b"[" * 110 + b"]" * 110 + b"}"
BODIES = [
    json_body("M-08a gzip too large", gzip.compress(bytes(65537)), 400, b"Content-Encoding: gzip"),
    json_body("M-08a gzip cut", gzip.compress(BODY)[:-4], 400, b"Content-Encoding: gzip"),
    json_body("M-08a gzip and junk", gzip.compress(BODY) + b"junk", 400, b"Content-Encoding: gzip"),
    json_body("M-08b brotli", BODY, 501, b"Content-Encoding: br"),
    json_body("M-08b gzip twice", BODY, 501, b"Content-Encoding: gzip, gzip"),
    *(
        json_body(f"M-09 {value!r}", BODY, 400, b"Inference-Header-Content-Length: " + value)
        for value in [b"99999999999", b"-1", b"abc", b"%d" % (len(BODY) + 1)]
    ),
    json_body("M-10a depth", DEEP, 400),
    changed("M-11 shape of too many elements", b"[2,3]", b"[16,1152921504606846978]", 400),
    changed("M-12 shape of too many bytes", b"[2,3]", b"[4,1152921504606846978]", 400),
    changed("M-13a negative dimension", b"[2,3]", b"[2,-5]", 400),
    # Parse errors of the JSON layer are INTERNAL, Triton's QA pins that.
    *(
        changed(f"M-13b shape {shape!r}", b"[2,3]", shape, 500)
        for shape in [b"[true,16]", b"[1.0]", b'["1"]', b"[null]", b"[18446744073709551616]", b"{}"]
    ),
    changed("M-13b many dimensions", b"[2,3]", b"[" + b"1," * 20000 + b"1]", 500),
    changed("M-14a too few elements", b"[1,2,3,4,5,6]", b"[1]", 500),
    changed("M-14b NaN", b"[1,", b"[NaN,", 500),
    changed("M-14b 1e999", b"[1,", b"[1e999,", 500),
    changed("M-14b 1.5", b"[1,", b"[1.5,", 500),
    changed("M-14b 5,000 digits", b"[1,", b"[" + b"1" * 5000 + b",", 500),
    changed("M-14c input twice", BODY[11:-2], BODY[11:-2] + b"," + BODY[11:-2], 400),
    changed("M-16 NaN in shape", b"[2,3]", b"[NaN,3]", 500),
    changed("M-20 output twice", b"}]}", b'}],"outputs":[{"name":"OUT_A"},{"name":"OUT_A"}]}', 400),
    changed("M-20 undeclared output", b"}]}", b'}],"outputs":[{"name":"B"}]}', 400),
    *(
        json_body(f"M-28 {body!r}", body, 500)
        for body in [b"null", b"[]", b"{}", b'{"inputs":{}}', b'{"inputs":"\xff"}', b"\xef\xbb\xbf" + BODY]
    ),
    changed("M-28 lone surrogate", b'"A"', b'"\\ud800"', 500),
    json_body("M-28 many inputs", b'{"inputs":[' + b"{}," * 20000 + b"{}]}", 400),
]
