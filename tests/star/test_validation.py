"""Core validation: each rule's sentence, the order of the rules, rows, shape keys and reshapes."""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from shoal.datatypes import BY_NAME, INT32, num_elements
from shoal.errors import InvalidArgumentError
from shoal.model_config.ragged_batching import ALL
from shoal.model_config.signature import Signature, TensorSpec
from shoal.star.models import ModelEntry
from shoal.star.validation import ParsedInput, validate

Make = Callable[..., ModelEntry]
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
UNKNOWN = "[request id: <id_unknown>] "
AB = [("A", "TYPE_FP32", [2]), ("B", "TYPE_FP32", [2])]
OPTIONAL = [("A", "TYPE_FP32", [2]), ("B", "TYPE_FP32", [2], {"optional": True})]
OPEN = [("A", "TYPE_FP32", [-1, 2]), ("B", "TYPE_FP32", [-1])]
TEXT = [("T", "TYPE_STRING", [2])]


def tensor(name: str, *shape: int, datatype: str | None = "FP32", data: bytes | None = None) -> ParsedInput:
    known = None if datatype is None else BY_NAME[datatype]
    itemsize = 0 if known is None else known.itemsize
    sent = bytes(num_elements(shape) * itemsize) if data is None else data
    return ParsedInput(name, known, shape, memoryview(sent), -1)


@pytest.mark.parametrize(
    ("max_batch_size", "spec", "inputs", "outputs", "sentence"),
    [
        (8, AB, [], ["OUTA", "NO"], "unexpected inference output 'NO' for model 'm'"),
        (
            8,
            AB,
            [],
            [],
            UNKNOWN
            + "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['A','B']. Please provide all required input(s).",
        ),
        (
            8,
            AB,
            [tensor("B", 1, 2)],
            [],
            UNKNOWN + "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['B'], but missing required "
            "input(s) ['A']. Please provide all required input(s).",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 2), tensor("B", 1, 2), tensor("C", 1, 2)],
            [],
            UNKNOWN
            + "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['A','B','C'], but missing required "
            "input(s) []. Please provide all required input(s).",
        ),
        (
            8,
            OPTIONAL,
            [tensor("B", 1, 2)],
            [],
            UNKNOWN
            + "expected number of inputs between 1 and 2 but got 1 inputs for model 'm'. Got input(s) ['B'], but "
            "missing required input(s) ['A']. Please provide all required input(s).",
        ),
        (8, AB, [tensor("A", 1, 2), tensor("X", 1, 2)], [], "unexpected inference input 'X' for model 'm'"),
        (
            8,
            AB,
            [tensor("A"), tensor("B", 1, 2)],
            [],
            UNKNOWN + "input 'A' has no shape but model requires batch dimension for 'm'",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 2), tensor("B", 2, 2)],
            [],
            UNKNOWN + "input 'B' batch size does not match other inputs for 'm'",
        ),
        (
            8,
            AB,
            [tensor("A", 9, 2), tensor("B", 9, 2)],
            [],
            UNKNOWN + "inference request batch-size must be <= 8 for 'm'",
        ),
        (
            8,
            TEXT,
            [
                ParsedInput("T", BY_NAME["BYTES"], (-1, 1), memoryview(b"no string"), -1)
            ],  # -1 strings are not counted yet
            [],
            UNKNOWN + "inference request batch-size must be <= 8 for 'm'",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 2), tensor("B", 1, 2, datatype="INT32")],
            [],
            UNKNOWN + "inference input 'B' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 2, datatype=None), tensor("B", 1, 2)],
            [],
            UNKNOWN + "inference input 'A' data-type is '<invalid>', but model 'm' expects 'FP32'",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 3), tensor("B", 1, 2)],
            [],
            UNKNOWN + "unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [1,3]. " + NOTE,
        ),
        (
            8,
            AB,
            [tensor("A", 2), tensor("B", 2)],
            [],
            UNKNOWN + "unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [2]. " + NOTE,
        ),
        (
            0,
            OPEN,
            [tensor("A", 1, 3), tensor("B", 1)],
            [],
            UNKNOWN + "unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [1,3]. ",
        ),
        (
            0,
            OPEN,
            [ParsedInput("A", BY_NAME["FP32"], (-1, 2), memoryview(b""), -1), tensor("B", 1)],
            [],
            UNKNOWN + "All input dimensions should be specified for input 'A' for model 'm', got [-1,2]",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 2, data=b"\0" * 7), tensor("B", 1, 2)],
            [],
            UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 7",
        ),
        (
            0,
            TEXT,
            [tensor("T", 2, datatype="BYTES", data=b"\1\0\0\0a")],
            [],
            UNKNOWN + "expected 2 string elements for inference input 'T' for model 'm', got 1",
        ),
        (
            0,
            TEXT,
            [tensor("T", 2, datatype="BYTES", data=b"\0\0\0\0" * 3)],
            [],
            UNKNOWN + "unexpected number of string elements 3 for inference input 'T' for model 'm', expecting 2",
        ),
        # A batch of no rows must have the data of one, as in Triton; what has them is refused, other than there.
        (
            8,
            AB,
            [tensor("A", 0, 2), tensor("B", 0, 2)],
            [],
            UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 0",
        ),
        (
            8,
            OPEN,
            [tensor("A", 0, 0, 2), tensor("B", 0, 3)],
            [],
            UNKNOWN + "input byte size mismatch for input 'B' for model 'm'. Expected 12, got 0",
        ),
        (
            8,
            TEXT,
            [tensor("T", 0, 2, datatype="BYTES")],
            [],
            UNKNOWN + "expected 2 string elements for inference input 'T' for model 'm', got 0",
        ),
        (
            8,
            TEXT,
            [ParsedInput("T", BY_NAME["BYTES"], (0, 2), memoryview(b""), 0)],  # of JSON
            [],
            UNKNOWN + "expected 2 string elements for inference input 'T' for model 'm', got 0",
        ),
        (
            8,
            AB[:1],
            [tensor("A", 0, 2, data=bytes(8))],
            [],
            UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 0, got 8",
        ),
        # The order: outputs, count, names, batch, then input by input type, shape, size.
        (8, AB, [tensor("X", 9, 2)], ["NO"], "unexpected inference output 'NO' for model 'm'"),
        (8, AB, [tensor("A"), tensor("X")], [], "unexpected inference input 'X' for model 'm'"),
        (
            8,
            AB,
            [tensor("A", 9, 3, datatype="INT8"), tensor("B", 9, 2)],
            [],
            UNKNOWN + "inference request batch-size must be <= 8 for 'm'",
        ),
        (
            8,
            AB,
            [tensor("A", 1, 2, data=b""), tensor("B", 1, 2, datatype="INT8")],
            [],
            UNKNOWN + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 0",
        ),
    ],
)
def test_refuses(
    make_entry: Make, max_batch_size: int, spec: Any, inputs: list[ParsedInput], outputs: list[str], sentence: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        validate(make_entry("m", max_batch_size, spec).signature, "", inputs, outputs)
    assert str(caught.value) == sentence


def test_names_the_request(make_entry: Make) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^\[request id: 7a\] input byte size mismatch"):
        validate(make_entry("m", 0, AB[:1]).signature, "7a", [tensor("A", 2, data=b"")], [])


def test_an_answer_does_not_repeat_a_million_names(make_entry: Make) -> None:
    inputs = [tensor(f"I{number}", 1, 2) for number in range(100_000)]
    with pytest.raises(InvalidArgumentError) as caught:
        validate(make_entry("m", 8, AB).signature, "", inputs, [])
    assert len(str(caught.value)) < 2000
    assert "'I99',…], but missing required input(s) ['A','B']" in str(caught.value)


def test_counts_rows(make_entry: Make) -> None:
    batching, plain = make_entry("m", 8, AB[:1]).signature, make_entry("m", 0, AB[:1]).signature
    assert validate(batching, "", [tensor("A", 8, 2)], []).rows == 8
    assert validate(make_entry("m", 8, OPEN).signature, "", [tensor("A", 0, 0, 2), tensor("B", 0, 0)], []).rows == 1
    assert validate(make_entry("m", 0, OPEN).signature, "", [tensor("A", 0, 2), tensor("B", 0)], []).rows == 1
    assert validate(plain, "", [tensor("A", 2)], []).rows == 1


def test_applies_reshape_after_the_batch_dimension(make_entry: Make) -> None:
    spec = [("A", "TYPE_FP32", [-1, 3, -1], {"reshape": {"shape": [3, -1, 1, -1]}})]
    (prepared,) = validate(make_entry("m", 8, spec).signature, "", [tensor("A", 2, 5, 3, 7)], []).inputs
    assert prepared.shape == (2, 3, 5, 1, 7)
    scalar: Any = [("A", "TYPE_FP32", [1], {"reshape": {"shape": []}})]
    assert validate(make_entry("m", 8, scalar).signature, "", [tensor("A", 2, 1)], []).inputs[0].shape == (2,)
    assert validate(make_entry("m", 0, scalar).signature, "", [tensor("A", 1)], []).inputs[0].shape == ()


def test_the_shape_key_tells_apart_what_may_not_share_a_batch(make_entry: Make) -> None:
    def key(spec: Any, *inputs: ParsedInput) -> int:
        return validate(make_entry("m", 8, spec).signature, "", list(inputs), []).shape_key

    assert key(AB, tensor("A", 1, 2), tensor("B", 1, 2)) == 0
    assert key(OPTIONAL, tensor("A", 1, 2), tensor("B", 1, 2)) == 0
    without = key(OPTIONAL, tensor("A", 1, 2))
    one = key(OPEN, tensor("A", 1, 5, 2), tensor("B", 1, 7))
    other = key(OPEN, tensor("A", 1, 7, 2), tensor("B", 1, 5))
    assert len({0, without, one, other}) == 4
    assert all(0 <= each < 2**63 for each in (without, one, other))
    assert one == key(OPEN, tensor("B", 4, 7), tensor("A", 4, 5, 2))  # neither the rows nor the order counts
    ragged = [("A", "TYPE_FP32", [-1], {"allow_ragged_batch": True})]
    assert key(ragged, tensor("A", 1, 3)) == key(ragged, tensor("A", 1, 4)) == 0


def test_the_shape_key_is_the_same_in_every_process(make_entry: Make) -> None:
    inputs = [tensor("A", 1, 5, 2), tensor("B", 1, 7)]
    assert validate(make_entry("m", 8, OPEN).signature, "", inputs, []).shape_key == hash((1, 2, 5, 2, 1, 1, 7)) & (
        2**63 - 1
    )


LENGTHS = {"IDS": 0, "EMBEDDED": 1}


def of_lengths(**shapes: tuple[int, ...]) -> int:
    """The shape key of a request to a model whose requests are padded to one length."""
    specs = {
        "IDS": TensorSpec("IDS", INT32, (-1,), None, False, False, ""),
        "EMBEDDED": TensorSpec("EMBEDDED", INT32, (2, -1), None, False, False, ""),
        "LABEL": TensorSpec("LABEL", INT32, (1,), None, False, False, ""),
    }
    asked = [ParsedInput(name, INT32, shape, memoryview(bytes(4 * prod(shape))), -1) for name, shape in shapes.items()]
    return validate(Signature("m", 4, specs, {}, lengths=LENGTHS), "7", asked, ()).shape_key


def test_of_a_padded_model_the_length_is_the_shape_key() -> None:
    assert of_lengths(IDS=(2, 5), EMBEDDED=(2, 2, 5), LABEL=(2, 1)) == 5
    assert of_lengths(LABEL=(2, 1), EMBEDDED=(2, 2, 9), IDS=(2, 9)) == 9
    assert of_lengths(IDS=(2, 0), EMBEDDED=(2, 2, 0), LABEL=(2, 1)) == 1


def test_a_request_of_two_lengths_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        of_lengths(IDS=(2, 5), EMBEDDED=(2, 2, 6), LABEL=(2, 1))
    assert str(refusal.value) == (
        "[request id: 7] inputs of model 'm' are padded together and must have one length, but input 'IDS' has 5, and "
        "another one has 6"
    )


def test_of_a_packed_model_the_elements_of_the_largest_input_count() -> None:
    specs = {name: TensorSpec(name, INT32, (-1,), None, False, True, "") for name in "AB"}
    asked = [ParsedInput(name, INT32, (2, n), memoryview(bytes(8 * n)), -1) for name, n in (("A", 3), ("B", 5))]
    assert validate(Signature("m", 4, specs, {}, lengths={"A": ALL, "B": ALL}), "", asked, ()).shape_key == 10
