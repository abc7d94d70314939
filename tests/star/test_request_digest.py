"""Which requests are equal, as written into a block by hand."""

from hashlib import blake2b
from typing import Any

import pytest

from shoal.star.request_digest import lent_request_digest, request_digest
from tests.request_headers import packed, request_header

FP32, BYTES = 11, 13  # their wire numbers
X, Y = ("X", FP32, (1, 2), 0, 8), ("Y", FP32, (1, 2), 64, 8)
DATA = b"abcdefgh".ljust(64, b".") + b"ABCDEFGH"


def digest(
    *inputs: tuple[Any, ...], id_: str = "", outputs: tuple[str, ...] = (), data: bytes = DATA, start: int = 1000,
    sequence: tuple[Any, int] | None = None, **parameters: Any,
) -> tuple[int, int]:  # fmt: skip
    header = request_header(id_, inputs or (X, Y), outputs, parameters, *([sequence] if sequence else []))
    memory = bytearray(8192)
    memory[: len(data)] = data
    memory[start : start + len(header)] = header
    return request_digest(memoryview(memory), start << 32 | len(header))


PLAIN = digest()


def test_it_is_blake2b_of_what_is_asked_and_of_the_tensors() -> None:
    asked = packed(([("X", FP32, (1, 2), 8), ("Y", FP32, (1, 2), 8)], [], []))
    expected = blake2b(asked + b"abcdefgh" + b"ABCDEFGH", digest_size=16).digest()
    assert b"".join([word.to_bytes(8, "little") for word in PLAIN]) == expected


@pytest.mark.parametrize(
    "same",
    [
        digest(Y, X),
        digest(id_="another"),
        digest(start=2000),
        digest(data=DATA + b"behind"),
        digest(("X", FP32, (1, 2), 8, 8), ("Y", FP32, (1, 2), 16, 8), data=b"12345678abcdefghABCDEFGH"),
    ],
)
def test_where_things_lie_and_what_the_request_is_called_does_not_matter(same: tuple[int, int]) -> None:
    assert same == PLAIN


def test_whatever_a_model_can_see_does() -> None:
    others = [
        PLAIN,
        digest(data=b"abcdefgX".ljust(64) + b"ABCDEFGH"),
        digest(data=b"ABCDEFGH".ljust(64) + b"abcdefgh"),
        digest(X),
        digest(X, ("Z", FP32, (1, 2), 64, 8)),
        digest(("X", FP32, (2, 1), 0, 8), Y),
        digest(("X", BYTES, (1, 2), 0, 8), Y),
        digest(outputs=("A",)),
        digest(outputs=("A", "B")),
        digest(k=1),
        digest(k=True),
        digest(k="1"),
        digest(k=2),
    ]
    assert len(set(others)) == len(others)
    assert digest(outputs=("B", "A")) == digest(outputs=("A", "B"))
    assert digest(a=1, b=2) == digest(b=2, a=1)


def test_a_long_header_is_read_each_time_and_comes_to_the_same() -> None:
    assert digest(k="x" * 5000) == digest(k="x" * 5000) != PLAIN


@pytest.mark.parametrize("sequence", [(7, 0), ("s", 1)])
def test_a_request_of_a_sequence_has_no_equal(sequence: tuple[Any, int]) -> None:
    assert digest(sequence=sequence) == (0, 0)


def test_a_request_is_the_same_wherever_its_inputs_lie() -> None:
    blocks = {7: memoryview(DATA[64:]), 9: memoryview(b"...." + DATA[:8])}
    lent = ("Y", FP32, (1, 2), 0, 8, 7), ("X", FP32, (1, 2), 4, 8, 9)
    header = request_header("another", lent, (), {})
    assert lent_request_digest(header, blocks.get) == digest()
    blocks[7] = memoryview(DATA)
    assert lent_request_digest(header, blocks.get) != digest()
    sequence = request_header("", lent, (), {}, (1, 1))
    assert lent_request_digest(sequence, blocks.get) == (0, 0)


def test_the_batcher_does_not_stand_still_for_the_digest_of_large_inputs() -> None:
    uint8, mib = 2, 1 << 20
    blocks = {7: memoryview(bytes(mib))}
    lent = ("X", uint8, (mib,), 0, mib, 7)
    assert lent_request_digest(request_header("", [lent], (), {}), blocks.get) != (0, 0)
    one_more = ("Y", uint8, (1,), 0, 1, 7)
    assert lent_request_digest(request_header("", [lent, one_more], (), {}), blocks.get) == (0, 0)
