"""frontend/http/submission.py: what a lane puts into shared memory, read as a worker reads it.

The road's way, `prepare` and `write_block`, is the measure: the lane's short cuts must not be seen from outside. What
it makes of replies is in test_responses.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import triton_to_np_dtype

from shoal.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.frontend.http.submission import body_offset
from tests.frontend.lane_star import (
    DATATYPES,
    GRID,
    ONE,
    TWO,
    Pending,
    Seen,
    Star,
    binary,
    config,
    head_of,
    inputs,
    message,
    used_template,
)

# --- templates ---


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
def test_equal_json_is_known_the_second_time(star: Star, received: bool) -> None:
    first = star.submit("grid", GRID, ONE, received=received)
    seen_first = star.seen()
    second = star.submit("grid", GRID, TWO, received=received)
    seen_second = star.seen()
    assert (used_template(first), used_template(second)) == (False, True)
    assert seen_first[:5] == (0, 1, seen_first.shape_key, 0, 0)
    assert seen_first[5:] == ("", (("A", 11, (1, 2), ONE),), (), {})
    assert seen_second == seen_first._replace(inputs=(("A", 11, (1, 2), TWO),))
    assert second.number == first.number + 1


def test_forms_are_shared_by_bodies_that_came_in_one_read_and_in_many(star: Star) -> None:
    star.submit("grid", GRID, ONE)
    seen = star.seen()
    for received in (True, False, True):
        assert used_template(star.submit("grid", GRID, ONE, received=received))
        assert star.seen() == seen


def test_everything_the_json_says_is_in_the_template(star: Star) -> None:
    json = inputs(
        binary("B", "INT32", [3, 2], 24), binary("A", "INT32", [3, 2], 24),
        more=b',"id":"\xc3\xa97","parameters":{"a":1,"b":0.5,"c":"x","d":true,"priority":2,"timeout":9},'
        b'"outputs":[{"name":"OUT_B","parameters":{"binary_data":true}}]',
    )  # fmt: skip
    tails = [bytes(range(48)), bytes(range(1, 49))]
    for tail, is_known in zip(tails, [False, True], strict=True):
        assert used_template(star.submit("batched", json, tail)) == is_known
        seen = star.seen()
        assert seen == (
            4, 3, 0, 2, 9, "é7", (("B", 8, (3, 2), tail[:24]), ("A", 8, (3, 2), tail[24:])), ("OUT_B",),
            {"a": 1, "b": 0.5, "c": "x", "d": True},
        )  # fmt: skip


def test_tensors_of_odd_sizes(star: Star) -> None:
    json = inputs(binary("A", "UINT8", [3], 3), binary("B", "FP32", [2], 8))
    for received in (False, False, True):
        star.submit("odd", json, b"abc" + ONE, received=received)
        assert star.seen().inputs == (("A", 2, (3,), b"abc"), ("B", 11, (2,), ONE))


def test_another_model_json_or_size_is_not_known(star: Star) -> None:
    star.submit("grid", GRID, ONE)
    shape_key = star.seen().shape_key
    assert not used_template(star.submit("same", GRID, ONE))
    assert star.seen() == Seen(1, 1, shape_key, 0, 0, "", (("A", 11, (1, 2), ONE),), (), {})
    assert not used_template(star.submit("grid", inputs(binary("A", "FP32", [2, 1], 8)), ONE))
    assert star.seen().inputs == (("A", 11, (2, 1), ONE),)
    assert not used_template(star.submit("grid", GRID + b" ", ONE))
    star.seen()
    for tail in (ONE[:-1], ONE + b"\0"):
        with pytest.raises(InvalidArgumentError):
            star.submit("grid", GRID, tail)
    assert star.num_waiting() == 0
    assert used_template(star.submit("grid", GRID, TWO))


def test_a_model_that_is_loaded_again_is_another(star: Star) -> None:
    star.submit("grid", GRID, ONE)
    star.seen()
    star.state.models.apply(message(77, config("grid", 0, ("A", "TYPE_FP32", [2, 1]))))
    with pytest.raises(InvalidArgumentError, match="unexpected shape for input 'A'"):
        star.submit("grid", GRID, ONE)
    assert star.num_waiting() == 0


def test_a_form_is_no_way_around_the_readiness_of_a_model(star: Star) -> None:
    star.submit("grid", GRID, ONE)
    star.seen()
    gone = config("grid", 0, ("A", "TYPE_FP32", [-1, -1]))
    star.state.models.apply(message(0, gone, state="UNAVAILABLE", reason="unloaded", num_instances_up=0))
    with pytest.raises(NotFoundError, match="'grid' has no available versions"):
        star.submit("grid", GRID, ONE)
    assert star.num_waiting() == 0


JSON_VALUES = b'{"name":"A","datatype":"INT32","shape":[1,2],"data":[1,2]}'
TEXTS = bytes.fromhex("0200000061620000000003000000636465")
NEVER: dict[str, tuple[str, bytes, bytes | None]] = {
    "BYTES": ("text", inputs(binary("A", "BYTES", [3], len(TEXTS))), TEXTS),
    "JSON and binary": ("batched", inputs(JSON_VALUES, binary("B", "INT32", [1, 2], 8)), ONE),
    "raw": ("fixed", b"", ONE),
    "strings in JSON": ("text", inputs(b'{"name":"A","datatype":"BYTES","shape":[2],"data":["a","b"]}'), None),
    "an array in an array": ("batched", inputs(JSON_VALUES.replace(b"[1,2]}", b"[[1],2]}")), None),
    "JSON of a known length": ("batched", inputs(JSON_VALUES), b""),
    "long": ("grid", inputs(binary("A", "FP32", [1, 2], 8), more=b" " * 4096), ONE),
}


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
@pytest.mark.parametrize("case", NEVER)
def test_what_depends_on_its_data_is_read_each_time(star: Star, case: str, received: bool) -> None:
    model, json, tail = NEVER[case]
    seen = []
    for _ in range(3):
        assert not used_template(star.submit(model, json, tail, received=received))
        seen.append(star.seen())
    assert seen[1:] == seen[:1] * 2
    assert seen[0] == star.as_the_road(model, json, tail)


def test_values_that_change_behind_equal_lengths_are_seen(star: Star) -> None:
    for values in (b"[1,2]", b"[3,4]", b"[1,2]"):
        star.submit(
            "batched", inputs(JSON_VALUES.replace(b"[1,2]}", values + b"}"), binary("B", "INT32", [1, 2], 8)), ONE
        )
        first, second = star.seen().inputs
        assert first[3] == bytes([values[1] - 48, 0, 0, 0, values[3] - 48, 0, 0, 0])
        assert second[3] == ONE


# --- numbers in JSON ---


def test_numbers_in_json_are_read_each_time(star: Star) -> None:
    known = []
    for first, second in [(1, 2), (3, -4), (2147483647, 0), (1, 2)]:
        json = inputs(JSON_VALUES.replace(b"[1,2]}", b"[%d, %d]}" % (first, second)), more=b',"id":"7"')
        known.append(used_template(star.submit("batched", json)))
        seen = star.seen()
        data = first.to_bytes(4, "little", signed=True) + second.to_bytes(4, "little", signed=True)
        assert seen == (4, 1, seen.shape_key, 0, 0, "7", (("A", 8, (1, 2), data),), (), {})
    assert known == [False, True, True, True]


Outcome = tuple[str, Any]


def outcome(ask: Callable[[str, bytes], Seen], json: bytes) -> Outcome:
    try:
        return "request", ask("batched", json)
    except ShoalError as error:
        return type(error).__name__, str(error)


SKELETONS = [
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[%b]}]}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data" :\n[%b ]},'
    b'{"data":[%b],"name":"B","datatype":"INT32","shape":[1,2]}],"id":"x"}',
    # None of these is the tensor, whatever it looks like.
    b'{"x":{"data":[%b]},"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[[1],2]}]}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[[1,2]],"\\"data":[%b]}]}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"d\\u0061ta":[1,2],"x":{"data":[%b]}}]}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[1,2],"data":[%b]}]}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[%b],"data":[[1],2]}]}',
    b'{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[%b]}],"parameters":{"data":[%b]}}',
    b'{"id":"\\"data\\":[1,2]","inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[%b]}]}',
]
ARRAYS = st.sampled_from(
    [b"1,2", b"3,4", b" 5 , 6 ", b"[7],8", b"1", b"1,2,3", b"", b"1,", b"1 2", b"true,false", b"null,1", b'"a",1',
     b"1.0,2", b"1.5,2", b"-0,1", b"01,2", b"1e2,3", b"1e999,1", b"NaN,1", b"2147483648,-1", b"18446744073709551616,1",
     b"1,2}", b"1,\xff", b"0x1,2", b"1_0,2"]
)  # fmt: skip


@given(skeleton=st.sampled_from(SKELETONS), arrays=st.lists(ARRAYS, min_size=2, max_size=4))
@settings(max_examples=300)
def test_known_json_with_other_numbers_is_what_the_road_makes_of_it(
    long_lived: Star, skeleton: bytes, arrays: list[bytes]
) -> None:
    star = long_lived
    for array in (b"1,2", *arrays):
        json = skeleton.replace(b"%b", array)
        expected = outcome(star.as_the_road, json)
        found = outcome(star.submit_and_see, json)
        if found[0] == "request":
            star.refuse(star.records[-1][1])
        assert found == expected, json
        assert (star.port.slab.num_taken, star.port.counts["requests_open"]) == (0, 0)


def test_a_length_past_the_end_is_refused_though_its_json_is_known(star: Star) -> None:
    empty = inputs(binary("A", "FP32", [0, 3], 0))
    for _ in range(2):
        star.submit("grid", empty, b"")
        assert star.seen().inputs == (("A", 11, (0, 3), b""),)
    with pytest.raises(InvalidArgumentError, match=r"inference header size should be in range \(0, "):
        star.submit_head(head_of("grid", empty, json_length=len(empty) + 1), empty, received=False)
    assert (star.num_waiting(), star.port.counts["requests_open"]) == (0, 2)


# --- in place ---


def test_a_received_body_stays_where_it_is(star: Star) -> None:
    for number in range(20):  # JSON of every length against a cache line
        json = GRID + b" " * number * 7
        star.submit("grid", json, ONE, received=True)
        star.seen()
        block_ref_when_copied = star.records[-1][3]
        head = head_of("grid", json, TWO)
        offset = body_offset(head)
        block = star.port.allocate(offset + len(json) + 8 + 4096)
        block.memory[offset : offset + len(json) + 8] = json + TWO
        pending = Pending(*star.submission.submit(head, block.memory[offset : offset + len(json) + 8], block))
        assert star.seen().inputs == (("A", 11, (1, 2), TWO),)
        assert used_template(pending)
        assert star.records[-1][3] == block.ref != block_ref_when_copied
        assert star.first_tensor_offset() % 64 == 0
        for record in star.records[-2:]:
            star.refuse(record[1])
        assert star.port.slab.num_taken == 0


@pytest.mark.parametrize("num_parameters", [0, 330, 336, 338, 340, 440])
def test_a_header_that_does_not_fit_behind_a_received_body(star: Star, num_parameters: int) -> None:
    """Numbers take more of the header than of the JSON, 12 bytes for 9, and the block has 4096 left for it here."""
    parameters = b",".join(b'"%c%c":1e0' % (97 + each % 26, 97 + each // 26) for each in range(num_parameters))
    data = bytes(range(256)) * 96
    json = inputs(binary("A", "FP32", [1, 6144], 24576), more=b',"parameters":{' + parameters + b"}").ljust(4096)
    assert len(json + data) + 4096 == 32768
    expected = star.as_the_road("grid", json, data)
    assert len(expected.parameters) == num_parameters
    for _ in range(3):
        star.submit("grid", json, data, received=True)
        assert star.seen() == expected
        star.refuse(star.records[-1][1])
    assert star.port.slab.num_taken == 0


# --- errors ---

REFUSED: dict[str, tuple[type[ShoalError], str, bytes, bytes | None, str]] = {
    "no model": (NotFoundError, "nobody", GRID, ONE, "Request for unknown model: 'nobody' is not found"),
    "decoupled": (UnsupportedError, "stream", GRID, ONE, "doesn't support models with decoupled transaction policy"),
    "no JSON": (InternalError, "grid", b"{", ONE, "failed to parse the request JSON buffer"),
    "no input": (InvalidArgumentError, "grid", inputs(binary("B", "FP32", [1, 2], 8)), ONE, "unexpected inference in"),
    "datatype": (InvalidArgumentError, "grid", inputs(binary("A", "INT32", [1, 2], 8)), ONE, "data-type is 'INT32'"),
    "too short": (InvalidArgumentError, "grid", GRID, ONE[:-1], "expecting 1 additional bytes"),
    "too long": (InvalidArgumentError, "grid", GRID, ONE + b"\0", "unexpected additional input data"),
    "strings": (InvalidArgumentError, "text", inputs(binary("A", "BYTES", [1], 4)), b"\5\0\0\0", "incomplete string"),
}  # fmt: skip


@pytest.mark.parametrize("received", [False, True], ids=["private", "in-a-block"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_request_leaves_nothing(star: Star, case: str, received: bool) -> None:
    error, model, json, tail, sentence = REFUSED[case]
    for _ in range(2):
        with pytest.raises(error, match=sentence):
            star.submit(model, json, tail, received=received)
        assert (star.port.slab.num_taken, star.port.counts["requests_open"], star.num_waiting()) == (0, 0, 0)


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_without_memory_a_request_is_refused_and_leaves_nothing(star: Star, is_known: bool) -> None:
    if is_known:
        star.submit("grid", GRID, ONE)
        star.seen()
        star.refuse(star.records[-1][1])
    taken = [star.port.allocate(32 * 4096), star.port.allocate(32 * 4096)]
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        star.submit("grid", GRID, ONE)
    assert (star.port.slab.num_taken, star.port.counts["requests_open"], star.num_waiting()) == (2, 0, 0)
    for block in taken:
        star.port.slab.free(block.ref)
    assert used_template(star.submit("grid", GRID, TWO)) or not is_known
    assert star.seen().inputs == (("A", 11, (1, 2), TWO),)


# --- whatever tritonclient sends ---

SHAPES = st.lists(st.integers(0, 3), min_size=2, max_size=2)
#: Name of the input and of its datatype, shape, whether it is sent in binary: FP16 cannot be JSON.
TENSOR = st.tuples(st.sampled_from(DATATYPES), SHAPES, st.booleans()).map(
    lambda each: (each[0], each[1], each[2] or each[0] == "FP16")
)
TENSORS = st.lists(TENSOR, unique_by=lambda each: each[0], max_size=5)


def array_of(datatype: str, shape: list[int], seed: int) -> "np.ndarray[Any, Any]":
    numbers: np.ndarray[Any, Any] = np.random.default_rng(seed).integers(
        0, 1 << 60 if datatype == "BYTES" else 2, shape
    )
    return (
        numbers.astype(str).astype(np.object_) if datatype == "BYTES" else numbers.astype(triton_to_np_dtype(datatype))
    )


@given(
    tensors=TENSORS,
    id_=st.text(max_size=5),
    outputs=st.lists(st.tuples(st.sampled_from(DATATYPES), st.booleans()), unique_by=lambda each: each[0], max_size=3),
    priority=st.integers(0, 3),
    parameters=st.dictionaries(
        st.text("ab", min_size=1, max_size=2), st.one_of(st.booleans(), st.integers(0, 9)), max_size=2
    ),
)
@settings(max_examples=120)
def test_the_lane_and_the_road_give_workers_the_same(
    long_lived: Star,
    tensors: list[tuple[str, list[int], bool]],
    id_: str,
    outputs: list[tuple[str, bool]],
    priority: int,
    parameters: dict[str, Any],
) -> None:
    star = long_lived
    wanted = [triton.InferRequestedOutput(f"OUT_{name}", binary_data=is_binary) for name, is_binary in outputs]
    for seed in range(3):
        sent = []
        for datatype, shape, is_binary in tensors:
            sent.append(triton.InferInput(datatype, shape, datatype))
            sent[-1].set_data_from_numpy(array_of(datatype, shape, seed), binary_data=is_binary)
        body, json_length = triton.InferenceServerClient.generate_request_body(
            sent, wanted, request_id=id_, priority=priority, parameters=parameters
        )
        json, tail = body[:json_length], None if json_length is None else body[json_length:]
        expected = star.as_the_road("types", json, tail)
        is_plain = json_length is not None and all(
            is_binary and datatype != "BYTES" for datatype, _, is_binary in tensors
        )
        for received in (False, True):
            is_known = used_template(star.submit("types", json, tail, received=received))
            assert star.seen() == expected
            assert is_known or not is_plain or (seed, received) == (0, False)
            star.refuse(star.records[-1][1])
    assert (star.port.slab.num_taken, star.port.counts["requests_open"]) == (0, 0)


@pytest.fixture(scope="module")
def long_lived() -> Iterator[Star]:
    """One star for all generated requests, so that known JSON piles up."""
    star = Star()
    yield star
    star.bell.close()
