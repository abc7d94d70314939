"""frontend/http/submission.py: requests like an earlier one but for tensors, options, and fields without a meaning.

`submit`, which parses and validates, is the measure; nothing may be known that it would not do in the same way.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import NotFoundError, ShoalError, UnavailableError
from shoal.frontend.http.http_head import Head, parse_head
from shoal.frontend.http.templates import KnownRequest
from tests.frontend.lane_star import CORRELATED, GRID, ONE, TWO, Seen, Star, binary, config, inputs, message

JSON = b'{"inputs":[{"name":"A","datatype":"INT32","shape":[2],"data":[%d,%d]}]}'


def head(model: str, nbytes: int, json_nbytes: int | None, more: bytes = b"") -> bytes:
    more += b"" if json_nbytes is None else b"Inference-Header-Content-Length: %d\r\n" % json_nbytes
    fields = b"Host: x\r\nContent-Length: %d\r\n" % nbytes + more
    return b"POST /v2/models/%b/infer HTTP/1.1\r\n%b\r\n" % (model.encode(), fields)


def request(model: str, json: bytes, tail: bytes | None, more: bytes = b"") -> bytes:
    """All bytes of a request; `tail` are its binary tensors."""
    body = json + (tail or b"")
    return head(model, len(body), None if tail is None else len(json), more) + body


def parsed(data: bytes) -> Head:
    found = parse_head(data[: data.index(b"\r\n\r\n") + 4])
    assert found is not None
    return found


def submit(star: Star, data: bytes, before: bytes | None = None) -> Seen:
    """As the lane does with a request that it does not know; `before` is an earlier one of the connection."""
    found = parsed(data)
    star.submission.submit(found, memoryview(data)[len(found.raw) :], None, parsed(before or data))
    return star.seen()


def submit_known(star: Star, data: bytes) -> Seen:
    """As the lane does with a request that it knows."""
    found = star.submission.find(data)
    assert found is not None
    assert star.submission.submit_known(*found) is not None
    return star.seen()


def learn(star: Star, data: bytes) -> KnownRequest:
    submit(star, data)
    found = star.submission.find(data)
    assert found is not None
    return found[0]


def test_only_the_tensors_of_a_known_request_are_new(star: Star) -> None:
    assert star.submission.find(request("grid", GRID, ONE)) is None
    known = learn(star, request("grid", GRID, ONE))
    assert known.head.keep_alive
    assert submit_known(star, request("grid", GRID, TWO)) == star.as_the_road("grid", GRID, TWO)
    assert submit_known(star, request("grid", GRID, ONE)) == star.as_the_road("grid", GRID, ONE)


def test_of_a_body_of_json_the_head_is_known(star: Star) -> None:
    learn(star, request("fixed", JSON % (1, 2), None))
    for body in (JSON % (1, 2), JSON % (3, 4)):
        assert submit_known(star, request("fixed", body, None)) == star.as_the_road("fixed", body)


def test_what_is_wrong_with_the_json_behind_a_known_head_is_refused(star: Star) -> None:
    right = JSON % (1, 2)
    learn(star, request("fixed", right, None))
    for wrong in (right[:-1] + b"]", right.replace(b"INT32", b"INT16")):
        with pytest.raises(ShoalError):
            submit_known(star, request("fixed", wrong, None))
    assert (star.num_waiting(), star.port.counts["requests_open"]) == (0, 1)


@pytest.mark.parametrize(
    ("model", "json", "more"),
    [
        ("same", GRID, b""),
        ("grid/versions/1", GRID, b""),
        ("grid", inputs(binary("A", "FP32", [2, 1], 8)), b""),
        ("grid", inputs(binary("A", "FP32", [1, 2], 8), more=b',"outputs":[{"name":"OUT_A"}]'), b""),
        ("grid", GRID, b"Connection: close\r\n"),
        ("grid", GRID, b"x: y\r\n"),
    ],
    ids=["model", "version", "shape", "outputs", "close", "field"],
)
def test_another_request_is_not_known_and_then_known_as_itself(
    star: Star, model: str, json: bytes, more: bytes
) -> None:
    learn(star, request("grid", GRID, ONE))
    other = request(model, json, TWO, more)
    assert star.submission.find(other) is None
    expected = submit(star, other)
    known = learn(star, other)
    assert known.head.keep_alive == (b"close" not in more)
    assert submit_known(star, other) == expected
    assert submit_known(star, request("grid", GRID, TWO)) == star.as_the_road("grid", GRID, TWO)


def test_a_part_of_a_request_or_more_than_one_is_not_known(star: Star) -> None:
    whole = request("grid", GRID, ONE)
    learn(star, whole)
    for data in (b"", whole[: whole.index(b"{")], whole[:-1], whole + b"x", 2 * whole):
        assert star.submission.find(data) is None


def test_the_head_alone_is_known_as_one(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    known = learn(star, raw + GRID + ONE).layout
    assert known.is_head(raw)
    for other in (raw[:-1], raw.replace(b"Host: x", b"Host: y"), raw + GRID):
        assert not known.is_head(other)


def test_nothing_is_known_after_a_change_of_the_models(star: Star) -> None:
    data = request("grid", GRID, ONE)
    learn(star, data)
    configuration = config("grid", 0, ("A", "TYPE_FP32", [-1, -1]))
    star.state.models.apply(message(77, configuration, version=2))
    assert star.submission.find(data) is None
    learn(star, data)
    assert submit_known(star, data).model == 77
    for number, version in ((0, 1), (77, 2)):
        gone = message(number, configuration, version=version, state="UNAVAILABLE")
        star.state.models.apply(gone)
    assert star.submission.find(data) is None
    with pytest.raises(NotFoundError, match="'grid' has no available versions"):
        submit(star, data)


def test_what_is_known_is_bounded(star: Star) -> None:
    body = JSON % (1, 2)
    names = [b"trace%d: 1\r\n" % number for number in range(100, 400)]  # of one size
    sizes = [b"trace: %b\r\n" % (b"x" * number) for number in range(1, 301)]
    for fields, most in ((names, 4), (sizes, 256)):
        every = [request("fixed", body, None, more) for more in fields]
        for data in every:
            submit(star, data)
            star.refuse(star.records[-1][1])
        found = [star.submission.find(data) is not None for data in every]
        assert found[-1]
        assert 0 < sum(found) <= most
    long = request("grid", GRID, ONE, b"trace: %b\r\n" % (b"x" * 6000))
    submit(star, long)
    assert star.submission.find(long) is None


def test_nothing_of_a_body_is_held_by_what_is_known(star: Star) -> None:
    raw = head("grid", len(GRID) + 8, len(GRID))
    for _ in range(3):
        body = bytearray(GRID + ONE)
        star.submission.submit(parsed(raw), memoryview(body), None, parsed(raw))
        body.clear()  # BufferError where somebody has a view of it
    assert star.submission.find(raw + GRID + ONE) is not None


def test_a_known_request_is_refused_where_there_is_no_memory(star: Star) -> None:
    data = request("grid", GRID, ONE)
    learn(star, data)
    while star.port.counts["requests_open"] < 16:
        submit_known(star, data)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        submit_known(star, data)
    assert (star.num_waiting(), star.port.counts["requests_open"]) == (0, 16)


def test_white_space_is_no_memory_of_what_is_known(star: Star) -> None:
    """A template's skeleton is bounded; white space around the array is in no skeleton, and was kept all the same."""
    spaced = (JSON % (1, 2)).replace(b'"data":', b'"data"' + b" " * 12_000 + b":")
    for body in (spaced, spaced, JSON % (3, 4), spaced):
        assert star.submit_and_see("fixed", body) == star.as_the_road("fixed", body)
    (template,) = star.submission._json_templates.entries.values()
    assert template.body is None


# --- fields, ids and parameters that differ ---


def test_the_values_of_fields_without_a_meaning_may_differ(star: Star) -> None:
    first, second = [request("grid", GRID, ONE, b"A: 1\r\ntrace: %d\r\nB: 2\r\n" % number) for number in (17, 18)]
    submit(star, second, first)
    for value in (b"19", b"zz", b" \t", b"-7", b"--", b"a_"):
        data = request("grid", GRID, TWO, b"A: 1\r\ntrace: %b\r\nB: 2\r\n" % value)
        assert submit_known(star, data) == star.as_the_road("grid", GRID, TWO)
    # Bytes that no value has, a value without a space in front, one that had not differed, and another size.
    for more in (
        b"A: 1\r\ntrace: \r\r\r\nB: 2\r\n",
        b"A: 1\r\ntrace: \x7f1\r\nB: 2\r\n",
        b"A: 1\r\ntrace: \xe9a\r\nB: 2\r\n",
        b"A: 1\r\ntrace: -\x00\r\nB: 2\r\n",
        b"A: 1\r\ntrace:171\r\nB: 2\r\n",
        b"A: 2\r\ntrace: 17\r\nB: 2\r\n",
        b"A: 1\r\ntrace: 171\r\nB: 2\r\n",
        b"A: 1\r\ntrace:\r\nX\r\nB: 2\r\n",
    ):
        assert star.submission.find(request("grid", GRID, ONE, more)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"Connection: close\r\n", b"Connection: Close\r\n"),
        (b"Accept-Encoding: gzip\r\n", b"Accept-Encoding: none\r\n"),
        (b"Content-Type: a\r\n", b"Content-Type: b\r\n"),
        (b"a: 1\r\n", b"b: 1\r\n"),
        (b"a: 1\r\nb: 2\r\n", b"a: 1\r\nb:  \r\n\r\n"),
    ],
)
def test_a_field_with_a_meaning_is_no_such_field(star: Star, one: bytes, other: bytes) -> None:
    first, second = request("grid", GRID, ONE, one), request("grid", GRID, ONE, other)
    submit(star, first, second)
    assert star.submission.find(first) is None
    assert star.submission.find(second) is None


def test_where_a_field_admits_requests_all_fields_are_the_same(star: Star) -> None:
    star.state.restrictions = {"inference": ("key", "secret")}
    first, second = [request("grid", GRID, ONE, b"key: secret\r\ntrace: %d\r\n" % number) for number in (17, 18)]
    submit(star, second, first)
    assert star.submission.find(second) is None
    learn(star, second)
    assert star.submission.find(request("grid", GRID, ONE, b"key: guessd\r\ntrace: 18\r\n")) is None


NUMBERS = b'{"name":"A","datatype":"FP32","shape":[1,2],"data":[1,2]}'
#: An id in place of %i and parameters in place of %p.
FORMS = [
    b'{"id":"%i","inputs":[%t],"parameters":%p}',
    b'{"parameters": %p, "inputs":[%t], "id" : "%i"}',
    b'{"inputs":[%t],"parameters":%p}',
    b'{"inputs":[%t],"parameters":%p,"outputs":[{"name":"OUT_A"}]}',
    b'{"inputs":[%t],"parameters":{"n":1},"parameters":%p}',
    b'{"inputs":[%t],"parameters":%p,"parameters":{"n":1}}',
    b'{"inputs":[%t],"parameters":%p,"par\\u0061meters":{"n":1}}',
    b'{"inputs":[%t],"x":{"parameters":%p}}',
    b'{"x":"[","inputs":[%t],"parameters":%p}',
    b'{"inputs":[%t],"parameters":%p,"id":"%i","x":"]"}',
    b'{"inputs":[%t],"a":"\\"parameters\\":","parameters":%p}',
]
PARAMETERS = [
    b"{}", b'{"n":1}', b'{"n":-7}', b'{"n":1.5}', b'{"n":2.5}', b'{"n":true}', b'{"n":"a"}', b'{"n":"}"}', b'{"n":"{"}',
    b'{"id":"a"}', b'{"id":"b"}', b'{"x":0}', b'{"x":1}', b'{"n":null}', b'{"n":[1]}', b'{"n":1,"n":2}', b'{"n":1',
    b'{"n":NaN}', b'{"priority":1}', b'{"priority":2}', b'{"priority":-1}', b'{"timeout":5,"m":3}',
    b'{"sequence_id":1,"sequence_start":true,"sequence_end":false}', b'{"sequence_id":2,"sequence_start":true}',
    b'{"sequence_id":2,"sequence_start":1}', b'{"sequence_id":"a"}', b'{"sequence_id":"b","sequence_end":true}',
    b'{"sequence_id":0}', b'{"sequence_id":18446744073709551615}', b'{"sequence_id":18446744073709551616}',
    b'{"binary_data_output":true}', b'{"binary_data_output":false}', b'{"n":1,"binary_data_output":true}',
    b'{"triton_x":1}', b'{"n":9223372036854775808}', b'{"n":"%b"}' % (b"x" * 600), b'{"n":"\\u0061"}', b"[1]", b"7",
    b'{"n":1}}', b'{"n":1},"m":{"n":2}',
]  # fmt: skip


@pytest.fixture(scope="module")
def long_lived() -> Iterator[Star]:
    """One star for all generated requests, so that what is known piles up."""
    star = Star()
    yield star
    star.bell.close()


def outcome(star: Star, data: bytes, before: bytes) -> Any:
    """What the batcher and a worker see of a request, as the lane submits it; or the error."""
    found = star.submission.find(data)
    try:
        if found is None or (submitted := star.submission.submit_known(*found)) is None:
            head = parsed(data)
            submitted = star.submission.submit(head, memoryview(data)[len(head.raw) :], None, parsed(before))
    except ShoalError as error:
        return type(error), str(error)
    seen = star.seen()
    star.refuse(submitted[0])
    return seen, star.records[-1][9:11]  # correlation and flags


def expected(star: Star, model: str, json: bytes, tail: bytes | None) -> Any:
    try:
        seen = star.as_the_road(model, json, tail)
    except ShoalError as error:
        return type(error), str(error)
    return seen, star.sequence_on_the_road(model, json, tail)


@given(
    form=st.sampled_from(FORMS),
    said=st.lists(
        st.tuples(st.sampled_from([b"1", b"2", b"x", b"17"]), st.sampled_from(PARAMETERS)), min_size=2, max_size=5
    ),
    model=st.sampled_from(["grid", CORRELATED]),
    is_json=st.booleans(),
    traces=st.booleans(),
)  # fmt: skip
@settings(max_examples=600, deadline=None)
def test_each_request_keeps_its_parameters_whatever_came_before(
    long_lived: Star, form: bytes, said: list[tuple[bytes, bytes]], model: str, is_json: bool, traces: bool
) -> None:
    tensor = NUMBERS if is_json else binary("A", "FP32", [1, 2], 8)
    tail = None if is_json else ONE
    before = b""
    for number, (id_, parameters) in enumerate([said[0], *said]):
        json = form.replace(b"%t", tensor).replace(b"%i", id_).replace(b"%p", parameters)
        data = request(model, json, tail, b"trace: %d\r\n" % number if traces else b"")
        assert outcome(long_lived, data, before or data) == expected(long_lived, model, json, tail), json
        before = data
    assert long_lived.port.slab.num_taken == 0


#: Texts in the place of an array's numbers, and of an id: right ones, wrong ones, and some that end the array or the id
#: early, in a way that is right JSON.
ARRAYS = [
    b"1,2", b"3,4", b" 5 ,\t6\n", b"1.5,2", b"1e3,2", b"", b"1", b"1,2,3", b"1,2]", b"[1,2", b"[1,2]", b"[1],[2]",
    b"1,true", b"null,1", b"NaN,1", b"1e400,1", b"1,-0", b'"1",2', b"{},2", b"1,2}", b'1,2,"data":[3,4',
    b'1,2],"data":[3,4', b"1,2//", b'1,2],"id":"q","x":[3', b'1,2],"parameters":{"n":1},"x":[3', b"1,2\\", b"1,\x002",
    b"1 2", b"01,2", b"1,2,",
]  # fmt: skip
IDS = [
    b"1", b"17", b"a]", b"a}", b"", b"\xc3\xa9", b"\xff", b"\\u0061", b"a\\", b"x" * 128, b"x" * 129, b"a\tb",
    b'a","id":"b', b'a","x":"', b'a","parameters":{"n":1},"x":"',
]  # fmt: skip
ENDS = [b"", b" ", b"}", b',"x":1}']
WITH_ARRAYS = [
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[%1]}]}',
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[2,1],"data":[%1]}]}',
    b'{"id":"%i","inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[%1]}]}',
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data" : [%1]}], "id" : "%i"}',
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[%1]}],"x":{"id":"%i"}}',
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[%1]}],"id":"%i","parameters":{"n":1}}',
    b'{"inputs":[{"name":"B","datatype":"INT32","shape":[1,2],"data":[%1]},'
    b'{"name":"A","datatype":"INT32","shape":[1,2],"data":[%2]}],"id":"%i"}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[%1]},'
    b'{"name":"B","datatype":"INT32","shape":[1,2],"data":[%2]}],"outputs":[{"name":"OUT_A"}]}',
]


@given(
    said=st.lists(
        st.tuples(
            st.sampled_from(WITH_ARRAYS), st.sampled_from(ARRAYS), st.sampled_from(ARRAYS), st.sampled_from(IDS),
            st.sampled_from(ENDS),
        ),
        min_size=1, max_size=4,
    ),
    model=st.sampled_from(["grid", "batched"]),
)  # fmt: skip
@settings(max_examples=600, deadline=None)
def test_whatever_stands_in_the_place_of_numbers_or_an_id_is_read_as_if_nothing_were_known(
    long_lived: Star, said: list[tuple[bytes, bytes, bytes, bytes, bytes]], model: str
) -> None:
    for form, first, second, id_, end in said:
        right = form.replace(b"%1", b"1,2").replace(b"%2", b"3,4").replace(b"%i", b"7")
        told = form.replace(b"%1", first).replace(b"%2", second).replace(b"%i", id_) + end
        for json in (right, right, told):
            data = request(model, json, None)
            assert outcome(long_lived, data, data) == expected(long_lived, model, json, None), json
    assert long_lived.port.slab.num_taken == 0


@pytest.mark.parametrize("tail", [None, ONE], ids=["json", "binary"])
def test_only_the_first_of_a_sequence_of_one_size_is_parsed(star: Star, tail: bytes | None) -> None:
    tensor = NUMBERS if tail is None else binary("A", "FP32", [1, 2], 8)
    known = []
    for number in range(10, 16):
        more = b',"id":"%d","parameters":{"sequence_id":%d,"n":%d}' % (number, number, number)
        pending = star.submit(CORRELATED, inputs(tensor, more=more), tail)
        known.append(not isinstance(pending.asked, type(pending.prepared)))
        assert star.seen().parameters == {"n": number}
        assert pending.prepared.correlation_id == number
        assert star.records[-1][9] == number
    assert known == [False, *[True] * 5]


@pytest.mark.parametrize("tail", [None, ONE], ids=["json", "binary"])
@pytest.mark.parametrize("id_", ["7", "\u00e9"])
def test_a_sequence_that_is_refused_names_the_request(star: Star, id_: str, tail: bytes | None) -> None:
    """An id that is not plain ASCII stays in the part by which a known request is recognised."""
    tensor = NUMBERS if tail is None else binary("A", "FP32", [1, 2], 8)
    more = b',"id":"%b","parameters":{"sequence_id":%b}'
    for _ in range(2):
        star.submit(CORRELATED, inputs(tensor, more=more % (id_.encode(), b"1")), tail)
    with pytest.raises(ShoalError, match=rf"^\[request id: {id_}\] sequence batching control"):
        star.submit(CORRELATED, inputs(tensor, more=more % (id_.encode(), b'"a"')), tail)
