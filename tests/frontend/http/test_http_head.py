"""frontend/http/http_head.py: which heads the lane takes upon itself, and that gunicorn reads them alike.

Whoever stands in front of the server must not be able to make the two disagree about where a request ends. So the
property is not "what is wrong is refused" but "what is accepted, gunicorn accepts, too, and as the same request".
"""

import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.frontend.http.http_head import parse_head
from shoal.frontend.response import Response
from shoal.frontend.router import RouteMatch
from tests.frontend.gunicorn_judge import Judge, assert_gunicorn_agrees, head_judge
from tests.frontend.heads import GET, get, infer


def sized(nbytes: int) -> bytes:
    """A GET of exactly so many bytes."""
    return get(b"A: " + b"a" * (nbytes - len(get(b"A: "))))


# --- what is accepted, and as what ---


class Accepted(NamedTuple):
    id: str
    raw: bytes
    headers: dict[str, str]
    content_length: int = 0
    json_length: int | None = None
    is_infer: bool = False
    keep_alive: bool = True


X = {"host": "x"}
ACCEPTED = [
    Accepted("least", get(), X),
    Accepted("no space behind the colon", GET + b"Host:x\r\n\r\n", X),
    Accepted("white space around a value", get(b"A: \t b c\t "), X | {"a": "b c"}),
    Accepted("white space alone", get(b"A:  "), X | {"a": ""}),
    Accepted("no value", get(b"A:"), X | {"a": ""}),
    Accepted("names in any case", GET + b"hOsT: x\r\naCCept: B\r\n\r\n", X | {"accept": "B"}),
    Accepted("every token character", get(b"!#$%&'*+-.^`|~09aZ: b"), X | {"!#$%&'*+-.^`|~09az": "b"}),
    Accepted("colons in a value", get(b"A: b:c: d"), X | {"a": "b:c: d"}),
    Accepted("repeated", get(b"A: b", b"B: c", b"a: d"), X | {"a": "b,d", "b": "c"}),
    Accepted("length 0", get(b"Content-Length: 0"), X | {"content-length": "0"}),
    Accepted("zeros in front", infer(b"Content-Length: 0012"), X | {"content-length": "0012"}, 12, is_infer=True),
    Accepted(
        "fifteen digits",
        infer(b"Content-Length: 999999999999999"),
        X | {"content-length": "999999999999999"},
        999999999999999,
        is_infer=True,
    ),
    Accepted(
        "infer",
        infer(b"Content-Length: 95", b"Inference-Header-Content-Length: 71"),
        X | {"content-length": "95", "inference-header-content-length": "71"},
        95,
        71,
        is_infer=True,
    ),
    Accepted(
        "raw",
        infer(b"Content-Length: 24", b"inference-header-content-length: 0"),
        X | {"content-length": "24", "inference-header-content-length": "0"},
        24,
        0,
        is_infer=True,
    ),
    Accepted("infer with a query", infer().replace(b"infer", b"infer?a=/b"), X, is_infer=True),
    Accepted("keep-alive", get(b"Connection: Keep-Alive"), X | {"connection": "Keep-Alive"}),
    Accepted("close", get(b"Connection: cLose"), X | {"connection": "cLose"}, keep_alive=False),
    Accepted("identity", get(b"Content-Encoding: identity"), X | {"content-encoding": "identity"}),
    Accepted("brotli is welcome", get(b"Accept-Encoding: br, identity"), X | {"accept-encoding": "br, identity"}),
    Accepted(
        "a hundred fields", get(*[b"A%d: b" % each for each in range(99)]), X | {f"a{each}": "b" for each in range(99)}
    ),
    Accepted("8190 bytes", sized(8190), X | {"a": "a" * (8190 - len(get(b"A: ")))}),
]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_accepted(case: Accepted) -> None:
    head = parse_head(case.raw)
    assert head is not None
    assert (head[1:-5], head.raw, head.is_head) == (case[2:], case.raw, False)


def test_paths_are_resolved_with_the_head() -> None:
    def found(target: bytes, method: bytes = b"GET") -> RouteMatch | Response:
        head = parse_head(method + b" " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head is not None
        return head.found

    for target in (b"/v2/models/a%20b/versions/3/ready", b"/v2/models/a%20b/versions/3/ready?x=/infer"):
        ready = found(target)
        assert isinstance(ready, RouteMatch)
        assert ready[1:3] == ("a b", "3")
        head = parse_head(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head is not None
        assert head.path == "/v2/models/a%20b/versions/3/ready"
    missing, not_allowed, bad_name = found(b"/none"), found(b"/v2", b"POST"), found(b"/v2/models/%2e%2e")
    assert [each.status for each in (missing, not_allowed, bad_name) if isinstance(each, Response)] == [404, 405, 400]


@pytest.mark.parametrize("target", [b"/v2/models/infer", b"/v2/models/infer/stats"])
def test_metadata_of_a_model_called_infer_is_no_inference(target: bytes) -> None:
    head = parse_head(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head is not None
    assert not head.is_infer


# --- what takes the road ---

REFUSED = {
    # The shape of a head.
    "nothing": b"",
    "no end": get()[:-2],
    "more behind the end": get() + b"G",
    "two heads": get() + get(),
    "empty line first": b"\r\n" + get(),
    "8191 bytes": sized(8191),
    "101 fields": get(*[b"A%d: b" % each for each in range(100)]),
    # Line ends and characters.
    "bare line feeds": get().replace(b"\r\n", b"\n"),
    "one bare line feed": get(b"A: b\nB: c"),
    "line feed in the request line": get().replace(b"/v2", b"/v2\n"),
    "CR in a value": get(b"A: b\rc"),
    "CR before CRLF": get(b"A: b\r"),
    "NUL in a value": get(b"A: b\0c"),
    "DEL in a value": get(b"A: b\x7fc"),
    "escape in a value": get(b"A: b\x1b[31m"),
    "latin-1 in a value": get(b"A: caf\xe9"),
    "UTF-8 in a value": get("A: é".encode()),
    "latin-1 in a name": get(b"\xe9: b"),
    "folded": get(b"A: b", b" c"),
    "folded with a tab": get(b"A: b", b"\tc"),
    "space before the colon": get(b"A : b"),
    "space before a name": get(b" A: b"),
    "no name": get(b": b"),
    "no colon": get(b"A"),
    "underscore in a name": get(b"Content_Length: 7"),
    "names that gunicorn lets proxies set": get(b"SCRIPT_NAME: /elsewhere", b"PATH_INFO: /v2"),
    "parenthesis in a name": get(b"A(: b"),
    # The request line.
    "another method": get().replace(b"GET", b"PUT"),
    "method in lower case": get().replace(b"GET", b"get"),
    "two spaces": get().replace(b"GET ", b"GET  "),
    "tab for a space": get().replace(b"GET ", b"GET\t"),
    "space at the end": get().replace(b"1.1\r", b"1.1 \r"),
    "space in the target": get().replace(b"/v2", b"/v 2"),
    "latin-1 in the target": get().replace(b"/v2", b"/v\xe9"),
    "NUL in the target": get().replace(b"/v2", b"/v\0"),
    "DEL in the target": get().replace(b"/v2", b"/v\x7f"),
    "no target": get().replace(b"/v2 ", b""),
    "whole URI": get().replace(b"/v2", b"http://x/v2"),
    "asterisk": get().replace(b"/v2", b"*"),
    "HTTP/1.0": get().replace(b"1.1", b"1.0"),
    "HTTP/1.2": get().replace(b"1.1", b"1.2"),
    "HTTP/2.0": get().replace(b"1.1", b"2.0"),
    "HTTP/1.10": get().replace(b"1.1", b"1.10"),
    "http/1.1": get().replace(b"HTTP", b"http"),
    # Host.
    "no Host": GET + b"\r\n",
    "two Hosts": get(b"Host: x"),
    # The body's end.
    "two lengths": infer(b"Content-Length: 5", b"content-length: 5"),
    **{
        f"length {value!r}": infer(b"Content-Length:" + value)
        for value in [b"5,5", b"5, 5", b"-5", b"+5", b"5.", b"0x5", b"1e1", b"", b" ", b"1_0", b"5 5", b"1" * 16]
    },
    "chunked": infer(b"Transfer-Encoding: chunked"),
    "length and chunked": infer(b"Content-Length: 5", b"transfer-encoding: chunked"),
    "identity as a transfer coding": infer(b"Transfer-Encoding: identity"),
    "no transfer coding": infer(b"Transfer-Encoding:"),
    **{
        f"json length {value!r}": infer(b"Content-Length: 5", b"Inference-Header-Content-Length:" + value)
        for value in [b"-1", b"+1", b"0x1", b"1.0", b"", b"1" * 16]
    },
    "two json lengths": infer(*[b"Inference-Header-Content-Length: 5"] * 2),
    # What a connection becomes.
    "expectation": infer(b"Expect: 100-continue"),
    "another expectation": infer(b"Expect: 200-ok"),
    "upgrade": get(b"Upgrade: h2c"),
    "HTTP/2 settings": get(b"HTTP2-Settings: AAMAAABk"),
    "TE": get(b"TE: trailers"),
    "trailer": infer(b"Trailer: A"),
    "proxy connection": get(b"Proxy-Connection: close"),
    "two options of a connection": get(b"Connection: close, TE"),
    "upgrade of a connection": get(b"Connection: Upgrade"),
    "no option of a connection": get(b"Connection:"),
    "two connections": get(b"Connection: close", b"Connection: keep-alive"),
    # What takes long.
    "gzip": infer(b"Content-Encoding: gzip"),
    "identity in upper case": infer(b"Content-Encoding: IDENTITY"),
    "two encodings": infer(b"Content-Encoding: identity", b"Content-Encoding: gzip"),
    # gunicorn refuses it.
    "two content types": infer(b"Content-Type: a/b", b"Content-Type: a/b"),
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
def test_refused(raw: bytes) -> None:
    assert parse_head(raw) is None


def test_refused_cases_differ_from_accepted_ones_in_what_they_say() -> None:
    """These are what the refusals are made of: they must not be refused for something else."""
    for raw in (get(), infer(), sized(8190), infer(b"Content-Length: 5"), get(b"A: b"), get(b"A: b", b"B: c")):
        assert parse_head(raw) is not None


# --- the other judge ---


@pytest.fixture(scope="module")
def judge() -> Judge:
    """gunicorn's parser with the settings that the front ends run it with; None where it refuses."""
    return head_judge()


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_gunicorn_agrees_with_what_is_accepted(case: Accepted, judge: Judge) -> None:
    assert assert_gunicorn_agrees(case.raw, judge) is not None


def test_the_judge_refuses(judge: Judge) -> None:
    """The property says nothing if it never does."""
    for id_ in ("bare line feeds", "two lengths", "folded", "latin-1 in the target", "two content types", "101 fields"):
        assert judge(REFUSED[id_]) is None, id_


@pytest.mark.parametrize(
    "fields",
    [
        (b"X-Forwarded-Proto: http", b"X-Forwarded-Ssl: on"),
        (b"X-Forwarded-Proto: https", b"X-Forwarded-Protocol: http"),
    ],
    ids=lambda fields: fields[0].decode(),
)
def test_fields_of_proxies_do_not_part_the_judges(fields: tuple[bytes, ...], judge: Judge) -> None:
    """Nobody here asks what a proxy says about schemes and scripts, so gunicorn must not, either."""
    assert assert_gunicorn_agrees(get(*fields), judge) is not None


TOKEN = st.text("!#$%&'*+-.^_`|~0123456789ABCxyz", min_size=1, max_size=8).map(str.encode)
NAMES = st.sampled_from(
    [
        b"Host", b"host", b"Content-Length", b"CONTENT-LENGTH", b"Content_Length", b"Content-Type", b"Connection",
        b"Inference-Header-Content-Length", b"Content-Encoding", b"Accept-Encoding", b"Transfer-Encoding", b"Expect",
        b"X-Forwarded-Proto", b"X-Forwarded-Ssl", b"Keep-Alive", b"Cookie", b"Accept", b"A",
    ]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        [b"", b"x", b"0", b"5", b"05", b" 5\t", b"5, 5", b"-1", b"close", b"keep-alive", b"identity", b"gzip", b"br",
         b"chunked", b"100-continue", b"https", b"on", b"application/json"]
    ),
    st.integers(0, 10**18).map(lambda number: b"%d" % number),
    st.text("abc,;:=\"()\\ \t09~", max_size=20).map(str.encode),
)  # fmt: skip
FIELDS = st.lists(st.tuples(st.one_of(NAMES, TOKEN), VALUES), max_size=6)
TARGETS = st.one_of(
    st.sampled_from(
        [b"/", b"/v2", b"//", b"//x/y", b"/v2/models/m/infer", b"/v2/models/infer", b"/a?b#c", b"/[", b"/:"]
    ),
    st.text('/abv2%?#[]@:;=&$!*.~"<>\\^`{|}', max_size=20).map(lambda path: b"/" + path.encode()),
)


@given(method=st.sampled_from([b"GET", b"POST"]), target=TARGETS, fields=FIELDS)
@settings(max_examples=400)
def test_gunicorn_agrees_with_any_head(
    judge: Judge, method: bytes, target: bytes, fields: list[tuple[bytes, bytes]]
) -> None:
    lines = b"".join(b"%s: %s\r\n" % field for field in fields)
    assert_gunicorn_agrees(b"%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (method, target, lines), judge)


WHOLE = st.sampled_from([case.raw for case in ACCEPTED if len(case.raw) < 300])
PIECES = st.one_of(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b":", b",", b"\0", b"\x0b", b"\x0c", b"\x85",
                     b"\xa0", b"\xff", b"0", b"9", b"Host: y\r\n", b"Content-Length: 3\r\n", b"_"]),
    st.binary(min_size=1, max_size=3),
)  # fmt: skip
#: Where (as a share of the head), how many bytes go, and what comes in their place.
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.one_of(st.just(b""), PIECES)), min_size=1, max_size=3)


@given(raw=WHOLE, edits=EDITS)
@example(infer(b"Content-Length: 5"), [(0.5, 0, b"\r\nContent-Length: 3")])
@settings(max_examples=800)
def test_gunicorn_agrees_with_damaged_heads(judge: Judge, raw: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    for share, length, piece in edits:
        start = int(share * len(raw))
        raw = raw[:start] + piece + raw[start + length :]
    assert_gunicorn_agrees(raw, judge)


@pytest.mark.parametrize(
    "filling",
    [b" ", b"\t", b":", b"a", b"a:", b"/", b"%", b"\r", b"\n", b"\r\n", b"a:\r\n", b"a: \r\n", b":\r\n", b"a\r\n",
     b" HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n", b"\xff"],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("before", [b"", b"GET ", b"GET /", GET, get()[:-2], get(b"A: ")[:-4]], ids=repr)
def test_hostile_input_is_read_once(before: bytes, filling: bytes, judge: Judge) -> None:
    """Any backtracking over eight thousand bytes would hold every client of the lane up; here it would hang."""
    filled = before + filling * ((8190 - len(before)) // len(filling))
    for raw in (filled, filled[:-4] + b"\r\n\r\n"):
        assert_gunicorn_agrees(raw, judge)


def test_a_client_cannot_fill_the_memos_with_long_lines() -> None:
    """What is kept is the heads, each with its fields' text; of their lines, and of what was made of them, nothing."""
    long = b"a" * 8000
    tracemalloc.start()
    try:
        for number in range(1100):
            for line in (b"X-%d: %b" % (number, long), b"Accept-Encoding: %d%b" % (number, long)):
                assert parse_head(get(line)) is not None
            assert parse_head(b"GET /v2?%d%b HTTP/1.1\r\nHost: x\r\n\r\n" % (number, long)) is not None
        kept_nbytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_nbytes < 9 << 20
