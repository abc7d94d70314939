"""frontend/http/known_request.py: requests that differ in their ids are known, and each keeps its own.

The road's way, which parses each request anew, is the measure of what is asked, and `render` of what is answered.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.frontend.http.known_request import cut, is_right
from shoal.frontend.http.responses import known_response
from shoal.frontend.response import response_head
from shoal.frontend.v2.infer import render
from shoal.request import InferResponse, TensorRef
from tests.frontend.lane_star import ONE, Star, binary, inputs, used_template

NUMBERS = b'{"name":"A","datatype":"FP32","shape":[1,2],"data":[1,2]}'


@pytest.mark.parametrize(
    ("json", "rest", "id_", "parameters"),
    [
        (b'{"id":"7","inputs":[]}', (b'{"id":"', b'","inputs":[]}'), b"7", b""),
        (b'{"inputs":[],"id" :\n\t"a b/c"}', (b'{"inputs":[],"id" :\n\t"', b'"}'), b"a b/c", b""),
        (b'{"id":"%b"}' % (b"x" * 128), (b'{"id":"', b'"}'), b"x" * 128, b""),
        (b'{"id":"1","id":"2"}', (b'{"id":"', b'","id":"2"}'), b"1", b""),
        (b'{"parameters":{"a":1},"id":"1"}', (b'{"parameters":', b',"id":"', b'"}'), b"1", b'{"a":1}'),
        (b'{"id":"1","parameters" :{"id":"2"}}', (b'{"id":"', b'","parameters" :', b"}"), b"1", b'{"id":"2"}'),
        (b'{"parameters":{"id":"2"},"id":"1"}', (b'{"parameters":', b',"id":"', b'"}'), b"1", b'{"id":"2"}'),
        (b'{"parameters":{"id":"2"}}', (b'{"parameters":', b"}"), b"", b'{"id":"2"}'),
        (b'{"inputs":[{"parameters":{"a":1}}],"parameters":{"b":2}}',
         (b'{"inputs":[{"parameters":{"a":1}}],"parameters":', b"}"), b"", b'{"b":2}'),
    ],
)  # fmt: skip
def test_id_and_parameters_are_cut_out(json: bytes, rest: tuple[bytes, ...], id_: bytes, parameters: bytes) -> None:
    assert cut(json)[:3] == (rest, id_, parameters)


@pytest.mark.parametrize(
    "json",
    [b"", b'{"inputs":[]}', b'{"id":""}', b'{"id":7}', b'{"id":"\xc3\xa9"}', b'{"id":"a\\n"}', b'{"id":"a\x7f"}',
     b'{"id":"a\n"}', b'{"id":"%b"}' % (b"x" * 129), b'{"name":"id"}', b'{"id"', b'{"parameters":{}}',
     b'{"parameters":{"a":{}}}', b'{"parameters":{"a":"\\n"}}', b'{"parameters":{"a":"%b"}}' % (b"x" * 520),
     b'{"inputs":[{"parameters":{"a":1}}]}', b'{"parameters":[1]}'],
)  # fmt: skip
def test_what_is_not_plain_stays(json: bytes) -> None:
    assert cut(json)[:3] == ((json,), b"", b"")


@pytest.mark.parametrize(
    ("json", "is_so"),
    [
        (b'{"id":"7"}', True),
        (b'{"id":"x"}', True),
        (b'{"inputs":[]}', True),
        (b'{"id":"\xc3\xa9"}', True),
        (b'{"id":"7","parameters":{"id":"7"}}', True),
        (b'{"parameters":{"x":0},"id":"7"}', True),
        (b'{"a":{"id":"7"}}', False),
        (b'{"a":{"id":"7"},"id":"7"}', False),
        (b'{"a":{"id":"x"},"id":"x"}', False),
        (b'{"id":"7","\\u0069d":"7"}', False),
        (b'{"id":"7","id":"7"}', False),
        (b'{"a":{"parameters":{"x":0}}}', False),
        (b'{"a":{"parameters":{"x":0}},"parameters":{"x":0,"y":{}}}', False),
        (b'{"parameters":{"x":0},"parameters":7}', False),
        (b'{"id":"7"', False),
        (b'{"id":"7","a":NaN}', False),
    ],
)
def test_what_was_cut_out_must_be_the_request_s_own(json: bytes, is_so: bool) -> None:
    assert is_right(json, cut(json)) == is_so


#: The value of an id in place of %b, and the inputs in place of %i.
FORMS = [
    b'{"id":"%b","inputs":[%i]}',
    b'{"inputs":[%i] , "id" : "%b"}',
    b'{"inputs":[%i],"id":%b}',
    b'{"inputs":[%i],"parameters":{"id":"%b"}}',
    b'{"parameters":{"id":"%b"},"inputs":[%i],"id":"x"}',
    b'{"parameters":{"id":"x"},"inputs":[%i],"id":"%b"}',
    b'{"parameters":{"id":"%b"},"inputs":[%i],"\\u0069d":"x"}',
    b'{"parameters":{"a":"\\"id\\":"},"id":"%b","inputs":[%i]}',
    b'{"id":"x","inputs":[%i],"id":"%b"}',
    b'{"id":"%b","inputs":[%i],"id":"x"}',
    b'{"id":"%b","inputs":[%i],"outputs":[{"name":"OUT_A","parameters":{"binary_data":true}}]}',
    b'{"id":"%b","inputs":[%i],"parameters":{"n":1,"priority":1},"outputs":[{"name":"OUT_A"}]}',
    b'{"id":"%b","inputs":[%i],"parameters":{"binary_data_output":true}}',
]
IDS = [b"1", b"2", b"x", b"request-17/a b", b"", b"\xc3\xa9", b'\\"', b"\\n", b"\n", b"\x7f", b"7" * 31, b"7" * 32,
       b"x" * 128, b"x" * 129, b"x" * 1024, b"x" * 1025, b"[1]", b'"data":[1,2]', b"\xff"]  # fmt: skip


@pytest.fixture(scope="module")
def long_lived() -> Iterator[Star]:
    """One star for all generated requests, so that known JSON piles up."""
    star = Star()
    yield star
    star.bell.close()


def outcome_on_the_road(star: Star, json: bytes, tail: bytes | None) -> Any:
    try:
        return star.as_the_road("grid", json, tail)
    except ShoalError as error:
        return type(error), str(error)


def outcome_on_the_lane(star: Star, json: bytes, tail: bytes | None, *, received: bool) -> Any:
    """The request as a worker reads it; it has been answered as `render` would answer it."""
    try:
        pending = star.submit("grid", json, tail, received=received)
    except ShoalError as error:
        return type(error), str(error)
    seen = star.seen()
    response = InferResponse((TensorRef("OUT_A", 11, (1, 2), 0, 8),), {"p": 1})
    reply = star.reply(pending.number, response, ONE)
    assert reply.block is not None
    rendered = render(pending.prepared, response, reply.block)
    expected = response_head(rendered) + b"".join(rendered.chunks)
    chunks = known_response(pending.asked, reply) or star.submission.response(pending.asked, reply)
    sent = b"".join(chunks)
    star.port.release(pending.number)
    star.num_waiting()  # the release is read
    star.worker_slab.free(star.replied)
    assert sent == expected
    return seen


@given(
    template=st.sampled_from(FORMS), ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=5), kind=st.integers(0, 2)
)
@settings(max_examples=400)
def test_each_request_keeps_its_id_whatever_came_before(
    long_lived: Star, template: bytes, ids: list[bytes], kind: int
) -> None:
    tensor, tail = (NUMBERS, None) if kind == 0 else (binary("A", "FP32", [1, 2], 8), ONE)
    for id_ in ids:
        json = template.replace(b"%i", tensor).replace(b"%b", id_)
        expected = outcome_on_the_road(long_lived, json, tail)
        assert outcome_on_the_lane(long_lived, json, tail, received=kind == 2) == expected, json
    assert long_lived.port.slab.num_taken == 0


@pytest.mark.parametrize("tail", [None, ONE], ids=["json", "binary"])
def test_only_the_first_of_requests_that_count_with_ids_is_parsed(star: Star, tail: bytes | None) -> None:
    tensor = NUMBERS if tail is None else binary("A", "FP32", [1, 2], 8)
    wants_binary = b"" if tail is None else b',"parameters":{"binary_data_output":true}'
    requests_known, answers_known = [], []
    for number in (7, 8, 9, 10, 1234567):
        pending = star.submit("grid", inputs(tensor, more=b',"id":"%d"' % number + wants_binary), tail)
        assert star.seen()[5] == str(number)
        requests_known.append(used_template(pending))
        reply = star.reply(pending.number, InferResponse((TensorRef("OUT_A", 11, (1, 2), 0, 8),), {}), ONE)
        answers_known.append(known_response(pending.asked, reply) is not None)
        star.submission.response(pending.asked, reply)
        star.port.release(pending.number)
        star.num_waiting()
    # The first shows what a request is, the second what its answer is.
    assert requests_known == [False, True, True, True, True]
    assert answers_known == [False, False, True, True, True]


@pytest.mark.parametrize("tail", [None, ONE], ids=["json", "binary"])
@pytest.mark.parametrize(
    ("known", "damaged"),
    [
        (b'"id":"7"', b'"id":'),
        (b'"id": "7"', b'"id": '),
        (b'"parameters":{"id":5}', b'"parameters":{"id":"7"5}'),
        ('"id":"é"'.encode(), '"id":"7""é"'.encode()),
    ],
)
def test_damaged_json_is_refused_though_it_equals_a_known_request_s_but_for_an_id(
    star: Star, known: bytes, damaged: bytes, tail: bytes | None
) -> None:
    tensor = NUMBERS if tail is None else binary("A", "FP32", [1, 2], 8)
    outcome_on_the_lane(star, inputs(tensor, more=b"," + known), tail, received=False)
    json = inputs(tensor, more=b"," + damaged)
    expected = outcome_on_the_road(star, json, tail)
    assert issubclass(expected[0], ShoalError)
    assert outcome_on_the_lane(star, json, tail, received=False) == expected
