"""frontend/http/submission.py: requests whose first bytes, up to the tensors or the JSON of their body, came before.

`submit`, which parses and validates, is the measure; nothing may be known that it would not do in the same way.
"""

import pytest

from shoal.errors import NotFoundError, ShoalError, UnavailableError
from shoal.frontend.http.http_head import parse_head
from shoal.frontend.http.submission import KnownPrefix
from tests.frontend.lane_star import GRID, ONE, TWO, Seen, Star, binary, config, inputs, message

JSON = b'{"inputs":[{"name":"A","datatype":"INT32","shape":[2],"data":[%d,%d]}]}'


def head(model: str, nbytes: int, json_nbytes: int | None, more: bytes = b"") -> bytes:
    more += b"" if json_nbytes is None else b"Inference-Header-Content-Length: %d\r\n" % json_nbytes
    fields = b"Host: x\r\nContent-Length: %d\r\n" % nbytes + more
    return b"POST /v2/models/%b/infer HTTP/1.1\r\n%b\r\n" % (model.encode(), fields)


def submit(star: Star, raw: bytes, body: bytes | bytearray) -> Seen:
    """As the lane does with a request that it does not know."""
    parsed = parse_head(raw)
    assert parsed is not None
    star.submission.submit(parsed, memoryview(body), None, raw)
    return star.seen()


def submit_known(star: Star, known: KnownPrefix, request: bytes) -> Seen:
    star.submission.submit_known(known, request)
    return star.seen()


def learn(star: Star, raw: bytes, json: bytes, tail: bytes) -> KnownPrefix | None:
    """The JSON becomes a template with the first request, and the request is known with the second."""
    for _ in range(2):
        submit(star, raw, json + tail)
    return star.submission.find(raw + json, len(raw + json + tail))


def test_only_the_tensors_of_a_known_request_are_new(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    assert star.submission.find(raw + GRID, len(raw + GRID) + 8) is None
    known = learn(star, raw, GRID, ONE)
    assert known is not None
    assert known.keep_alive
    assert submit_known(star, known, raw + GRID + TWO) == submit(star, raw, GRID + TWO)
    assert submit_known(star, known, raw + GRID + ONE) == star.as_the_road("grid", GRID, ONE)


def test_of_a_body_of_json_the_head_is_known(star: Star) -> None:
    raw = head("fixed", len(JSON % (1, 2)), None)
    submit(star, raw, JSON % (1, 2))
    known = star.submission.find(raw, len(raw + JSON % (1, 2)))
    assert known is not None
    for body in (JSON % (1, 2), JSON % (3, 4)):
        assert submit_known(star, known, raw + body) == star.as_the_road("fixed", body)


def test_what_is_wrong_with_the_json_behind_a_known_head_is_refused(star: Star) -> None:
    raw = head("fixed", len(JSON % (1, 2)), None)
    submit(star, raw, JSON % (1, 2))
    known = star.submission.find(raw, len(raw + JSON % (1, 2)))
    assert known is not None
    for wrong in ((JSON % (1, 2))[:-1] + b"]", (JSON % (1, 2)).replace(b"INT32", b"INT16")):
        with pytest.raises(ShoalError):
            star.submission.submit_known(known, raw + wrong)
    assert (star.num_waiting(), star.port.counts["requests_open"]) == (0, 1)


@pytest.mark.parametrize(
    ("model", "json", "more"),
    [
        ("same", GRID, b""),
        ("grid/versions/1", GRID, b""),
        ("grid", inputs(binary("A", "FP32", [2, 1], 8)), b""),
        ("grid", inputs(binary("A", "FP32", [1, 2], 8), more=b',"id":"7"'), b""),
        ("grid", inputs(binary("A", "FP32", [1, 2], 8), more=b',"outputs":[{"name":"OUT_A"}]'), b""),
        ("grid", GRID, b"Connection: close\r\n"),
        ("grid", GRID, b"x: y\r\n"),
    ],
    ids=["model", "version", "shape", "id", "outputs", "close", "field"],
)
def test_another_request_is_not_known_and_then_known_as_itself(
    star: Star, model: str, json: bytes, more: bytes
) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    learn(star, raw, GRID, ONE)
    other = head(model, len(json) + 8, len(json), more)
    assert star.submission.find(other + json, len(other + json) + 8) is None
    expected = submit(star, other, json + TWO)
    known = learn(star, other, json, ONE)
    assert known is not None
    assert known.keep_alive == (b"close" not in more)
    assert submit_known(star, known, other + json + TWO) == expected
    first = star.submission.find(raw + GRID, len(raw + GRID) + 8)
    assert first is not None
    assert submit_known(star, first, raw + GRID + TWO) == star.as_the_road("grid", GRID, TWO)


def test_a_part_of_a_request_or_more_than_one_is_not_known(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    learn(star, raw, GRID, ONE)
    whole = raw + GRID + ONE
    for nbytes in (len(whole) - 1, len(whole) + 1, 2 * len(whole)):
        assert star.submission.find(raw + GRID, nbytes) is None
    for prefix in (b"", raw, (raw + GRID)[:-1], raw + GRID + ONE[:1]):
        assert star.submission.find(prefix, len(whole)) is None


def test_nothing_is_known_after_a_change_of_the_models(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    learn(star, raw, GRID, ONE)
    configuration = config("grid", 0, ("A", "TYPE_FP32", [-1, -1]))
    star.state.models.apply(message(77, configuration, version=2))
    assert star.submission.find(raw + GRID, len(raw + GRID) + 8) is None
    known = learn(star, raw, GRID, ONE)
    assert known is not None
    assert submit_known(star, known, raw + GRID + ONE).model == 77
    for number, version in ((0, 1), (77, 2)):
        gone = message(number, configuration, version=version, state="UNAVAILABLE")
        star.state.models.apply(gone)
    assert star.submission.find(raw + GRID, len(raw + GRID) + 8) is None
    with pytest.raises(NotFoundError, match="'grid' has no available versions"):
        submit(star, raw, GRID + ONE)


def test_what_is_known_is_bounded(star: Star) -> None:
    body = JSON % (1, 2)
    heads = [head("fixed", len(body), None, b"trace: %d\r\n" % number) for number in range(600)]
    for raw in heads:
        submit(star, raw, body)
        star.refuse(star.records[-1][1])
    found = [star.submission.find(raw, len(raw) + len(body)) is not None for raw in heads]
    assert found[-1]
    assert 0 < sum(found) <= 512
    long = GRID + b" " * 3000
    raw = head("grid", len(long) + 8, len(long), b"trace: %b\r\n" % (b"x" * 6000))
    for _ in range(3):
        submit(star, raw, long + ONE)
        star.refuse(star.records[-1][1])
    assert star.submission.find(raw + long, len(raw + long) + 8) is None


def test_nothing_of_a_body_is_held_by_what_is_known(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    for _ in range(3):
        body = bytearray(GRID + ONE)
        submit(star, raw, body)
        body.clear()  # BufferError where somebody has a view of it
    assert star.submission.find(raw + GRID, len(raw + GRID) + 8) is not None


def test_a_known_request_is_refused_where_there_is_no_memory(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    known = learn(star, raw, GRID, ONE)
    assert known is not None
    while star.port.counts["requests_open"] < 16:
        submit_known(star, known, raw + GRID + ONE)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        star.submission.submit_known(known, raw + GRID + ONE)
    assert (star.num_waiting(), star.port.counts["requests_open"]) == (0, 16)
