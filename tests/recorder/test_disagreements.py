"""recorder/disagreements.py, recorder/comparison.py: pairs of answers are counted, and the worst are kept."""

import json
import struct
from random import Random

import pytest

from shoal.datatypes import BF16, BYTES, FP32, INT32, encode_bytes_tensor
from shoal.errors import InternalError, ShoalError
from shoal.recorder import entry
from shoal.recorder.disagreements import MAX_VALUES, Disagreements
from shoal.recorder.entry import EntryError, Outcome
from shoal.request import InferRequest, InferResponse, TensorRef, pack_request, pack_response
from shoal.shadow import MAX_EXAMPLES
from shoal.shm.layout import pack_span
from tests.recorder.entries import NO_WORDS, values


def answered(
    version: int, data: bytes, datatype: int = FP32.wire, shape: tuple[int, ...] = (1, 2), **more: int
) -> bytes:
    """An entry of one answer; the first version's with the inputs."""
    tensors, header = (
        values(1, 2),
        pack_request(InferRequest("id", (TensorRef("IN", FP32.wire, (1, 2), 0, 8),), (), {})),
    )
    given = tensors + header if version == 1 else b""
    response = pack_response(InferResponse((TensorRef("OUT", datatype, shape, 0, len(data)),), {}))
    words = NO_WORDS._replace(
        key=7, rows=1, input_nbytes=len(given), input_header=pack_span(8, len(header)) if given else 0,
        output_header=pack_span(len(data), len(response)), compute_start_ns=100, compute_end_ns=100 + version, **more,
    )  # fmt: skip
    parts, _ = entry.pack(
        entry.describe_model("m", version, ()), [words], [given], [data, response], is_sampled=True, wall_offset_ns=0
    )
    return b"".join(parts)


def failed() -> bytes:
    sentence = b"it fell over"
    words = NO_WORDS._replace(
        key=7, outcome=Outcome.FAILED, status=InternalError.wire, output_header=pack_span(0, len(sentence))
    )
    parts, _ = entry.pack(
        entry.describe_model("m", 2, ()), [words], [b""], [sentence], is_sampled=True, wall_offset_ns=0
    )
    return b"".join(parts)


def pair(first: bytes, second: bytes) -> memoryview:
    return memoryview(struct.pack("<Q", len(first)) + first + second)


def found(compare: str, first: bytes, second: bytes) -> tuple[int, int, int]:
    disagreements = Disagreements([("m", 1, 2, 1.0, compare)])
    disagreements.take(pair(first, second))
    (report,) = disagreements.reports()
    assert (report.model, report.primary, report.shadow) == ("m", 1, 2)
    return report.agreed, report.disagreed, report.failed


AGREED, DISAGREED = (1, 0, 0), (0, 1, 0)


@pytest.mark.parametrize(
    ("compare", "one", "other", "outcome"),
    [
        ("", (3, 4), (3, 4), AGREED),
        ("", (3, 4), (3, 4.5), DISAGREED),
        ("atol=0.5", (3, 4), (3, 4.5), AGREED),
        ("atol=0.4", (3, 4), (3, 4.5), DISAGREED),
        ("rtol=0.2", (3, 4), (3, 4.5), AGREED),
        ("top1", (3, 4), (100, 101), AGREED),
        ("top1", (3, 4), (4, 3), DISAGREED),
        ("top1,atol=1", (3, 4), (100, 101), DISAGREED),
        ("cosine=0.999", (3, 4), (6, 8), AGREED),
        ("cosine=0.999", (3, 4), (4, 3), DISAGREED),
        ("cosine=0.999", (3, 4), (0, 0), DISAGREED),
        ("cosine=0.999", (0, 0), (0.0, -0.0), AGREED),
        ("none", (3, 4), (4, 3), AGREED),
        ("OUT:atol=1", (3, 4), (4, 3), AGREED),
        ("atol=1,OUT:exact", (3, 4), (4, 3), DISAGREED),
        ("atol=1", (3, float("nan")), (3, float("nan")), AGREED),
        ("atol=1", (3, float("inf")), (3, 4), DISAGREED),
        ("rtol=0.1", (3, float("inf")), (3, 4), DISAGREED),
        ("rtol=0.1", (3, 4), (3, float("nan")), DISAGREED),
        ("atol=1", (3, float("inf")), (3.5, float("inf")), AGREED),
        ("top1", (4, 3), (float("nan"), float("nan")), DISAGREED),
        ("cosine=0.9", (4, 3), (float("nan"), 3), DISAGREED),
        ("cosine=0.9", (3e38, 3e38), (3e38, 3e38 * 0.99), AGREED),
    ],
)
def test_answers_agree_within_the_tolerance(
    compare: str, one: tuple[float, ...], other: tuple[float, ...], outcome: tuple[int, int, int]
) -> None:
    assert found(compare, answered(1, values(*one)), answered(2, values(*other))) == outcome


def test_texts_whole_numbers_and_failures() -> None:
    texts = [encode_bytes_tensor(each) for each in ([b"a", b"b"], [b"a", b"c"])]
    first, same, other = (
        answered(each, text, BYTES.wire) for each, text in ((1, texts[0]), (2, texts[0]), (2, texts[1]))
    )
    assert (found("", first, same), found("atol=9", first, other)) == (AGREED, DISAGREED)
    numbers = [answered(each, struct.pack("<2i", 5, each), INT32.wire) for each in (1, 2)]
    assert (found("atol=9", *numbers), found("top1", *numbers)) == (DISAGREED, AGREED)
    assert found("none", answered(1, values(3, 4)), failed()) == (0, 1, 1)
    assert found("", answered(1, values(3, 4)), answered(2, values(3, 4, 5, 6), shape=(2, 2))) == DISAGREED


def test_shapes_are_compared_unless_nothing_is() -> None:
    flat, square = answered(1, values(1, 2, 3, 4), shape=(1, 4)), answered(2, values(1, 2, 3, 4), shape=(2, 2))
    assert (found("", flat, square), found("atol=9", flat, square)) == (DISAGREED, DISAGREED)
    assert (found("top1", flat, square), found("none", flat, square)) == (DISAGREED, AGREED)


def test_brain_floats_are_compared_by_their_values() -> None:
    one, other = struct.pack("<2H", 0x3F80, 0x4000), struct.pack("<2H", 0x3F81, 0x4000)  # 1 and 2, 1.0078125 and 2
    pairs = answered(1, one, BF16.wire), answered(2, other, BF16.wire)
    assert (found("atol=0.01", *pairs), found("atol=0.001", *pairs)) == (AGREED, DISAGREED)
    assert (found("", *pairs), found("top1", *pairs)) == (DISAGREED, AGREED)
    assert found("atol=0.01", answered(1, one, BF16.wire), answered(2, values(1, 2))) == DISAGREED
    disagreements = Disagreements([("m", 1, 2, 1.0, "")])
    disagreements.take(pair(*pairs))
    (report,) = disagreements.reports()
    assert report.examples[0]["shadow"][0]["values"] == [1.0078125, 2.0]


def test_the_worst_examples_are_reported_in_json_and_bounded() -> None:
    disagreements = Disagreements([("m", 1, 2, 1.0, "")])
    wide = [values(*[number + step for number in range(1000)]) for step in range(20)]
    for step in range(20):
        disagreements.take(pair(answered(1, wide[0], shape=(1, 1000)), answered(2, wide[step], shape=(1, 1000))))
    disagreements.take(pair(answered(1, wide[0], shape=(1, 1000)), failed()))
    (report,) = disagreements.reports()
    assert (report.agreed, report.disagreed, report.failed) == (1, 20, 1)
    assert (report.primary_ns, report.shadow_ns) == (21 * 1, 20 * 2)
    assert len(report.examples) == MAX_EXAMPLES
    assert [each["max_abs"] for each in report.examples] == [0.0, 19.0, 18.0, 17.0, 16.0, 15.0, 14.0, 13.0]
    assert "it fell over" in report.examples[0]["what"][0]
    second = report.examples[1]
    assert second["id"] == "id"
    assert second["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "values": [1.0, 2.0]}]
    assert len(second["shadow"][0]["values"]) == MAX_VALUES
    assert len(json.dumps(report.examples, allow_nan=False)) < 16_000
    assert disagreements.reports() == []


def test_a_pair_that_is_dropped_is_counted_for_its_versions() -> None:
    disagreements = Disagreements([("m", 1, 2, 1.0, "")])
    disagreements.drop(pair(answered(1, values(3, 4)), answered(2, values(3, 5))))
    (report,) = disagreements.reports()
    assert (report.model, report.primary, report.shadow, report.dropped) == ("m", 1, 2, 1)
    assert (report.agreed, report.disagreed, report.primary_ns, report.examples) == (0, 0, 0, [])


def test_a_pair_that_cannot_be_compared_counts_as_dropped() -> None:
    """Every mirrored request is in one of the figures."""
    disagreements = Disagreements([("m", 1, 2, 1.0, "")])
    whole, empty = answered(1, values(3, 4)), answered(2, values(3, 4), shape=(1, 3))
    with pytest.raises(ValueError, match="reshape"):
        disagreements.take(pair(whole, empty))
    disagreements.take(pair(whole, answered(2, values(3, 4))))
    disagreements.drop(pair(whole, empty))
    (report,) = disagreements.reports()
    assert (report.agreed, report.disagreed, report.dropped) == (1, 0, 2)
    assert report.shadow_ns == 2  # of the compared pair alone


def test_damaged_pairs_raise_what_the_comparator_expects() -> None:
    whole, random = bytes(pair(answered(1, values(3, 4)), answered(2, values(3, 5)))), Random(4)
    disagreements = Disagreements([("m", 1, 2, 1.0, "atol=1")])
    num_refused = 0
    for _ in range(2000):
        damaged = bytearray(whole[: random.choice((len(whole), random.randrange(len(whole))))])
        for _ in range(random.randrange(1, 4)):
            if damaged:
                damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            disagreements.take(memoryview(damaged))
        except (EntryError, ShoalError, ValueError):
            num_refused += 1
    assert num_refused > 500
