"""Names of the configuration and tensors of the model, paired by each of Triton's conventions."""

from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.workers.backends.pytorch import naming

TENSOR, STRINGS, LIST = ("TensorType", "Tensor"), ("ListType", "List[str]"), ("ListType", "List[Tensor]")
TUPLE, DICT, NUMBER = ("TupleType", "Tuple[Tensor, Tensor]"), ("DictType", "Dict[str, Tensor]"), ("FloatType", "float")


def arguments(names: list[str], **declared: tuple[str, str]) -> naming.Template:
    return naming.arguments("m", names, [(name, *types) for name, types in declared.items()])


@pytest.mark.parametrize(
    ("names", "declared", "template"),
    [
        (["b", "a"], {"a": TENSOR, "b": STRINGS}, ["a", "b"]),  # arguments of forward
        (["b__1", "a__0"], {"x": TENSOR, "y": TENSOR}, ["a__0", "b__1"]),
        (["b", "a__0"], {"x": TENSOR, "y": TENSOR}, ["b", "a__0"]),  # the configuration's order
        (["left", "right"], {"x": DICT}, [{"left": "left", "right": "right"}]),
        (["ARGS[0][l]", "ARGS[0][r]"], {"x": DICT}, [{"l": "ARGS[0][l]", "r": "ARGS[0][r]"}]),
        (
            ["ARGS[0][l]", "ARGS[1]", "ARGS[0][r]", "ARGS[3][1]", "ARGS[3][0]", "ARGS[2][0]"],
            {"x": DICT, "y": TENSOR, "z": LIST, "t": TUPLE},
            [
                {"l": "ARGS[0][l]", "r": "ARGS[0][r]"},
                "ARGS[1]",
                ["ARGS[2][0]"],
                ("ARGS[3][0]", "ARGS[3][1]"),
            ],
        ),
    ],
)
def test_arguments(names: list[str], declared: dict[str, Any], template: naming.Template) -> None:
    assert arguments(names, **declared) == template


@pytest.mark.parametrize(
    ("names", "declared", "kind", "sentence"),
    [
        (
            ["x"],
            {"x": TENSOR, "y": TENSOR},
            InvalidArgumentError,
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            ["x__0", "y__2"],
            {"a": TENSOR, "b": TENSOR},
            InvalidArgumentError,
            "The input y__2 in the model configuration refers to an input index which doesn't exist. "
            "This model has 2 inputs",
        ),
        (
            ["x__0", "y__0"],
            {"a": TENSOR, "b": TENSOR},
            InvalidArgumentError,
            "unable to load model 'm', two of its inputs name the same tensor: x__0 is number 0, y__0 is number 0",
        ),
        (
            ["x", "y"],
            {"x": TENSOR, "y": NUMBER},
            InternalError,
            "An input of type 'float' was detected in the model. Only a single input of type Dict(str, Tensor) or "
            "input(s) of type Tensor are supported. Name the tensors in others by their paths: ARGS[0][key], "
            "ARGS[1][0]",
        ),
        (
            ["ARGS[0][0]", "ARGS[0][2]"],
            {"x": LIST},
            InvalidArgumentError,
            "unable to load model 'm', argument 0 is of type List[Tensor], the inputs for it are: ARGS[0][0], "
            "ARGS[0][2]",
        ),
        (
            ["ARGS[0]", "ARGS[2]"],
            {"x": TENSOR, "y": TENSOR},
            InvalidArgumentError,
            "unable to load model 'm', argument 1 is of type Tensor, the inputs for it are: none",
        ),
        (
            ["ARGS[0]", "ARGS[1]"],
            {"x": TENSOR},
            InvalidArgumentError,
            "unable to load model 'm', it has 1 arguments, the inputs are: ARGS[0], ARGS[1]",
        ),
    ],
)
def test_arguments_that_do_not_fit(
    names: list[str], declared: dict[str, Any], kind: type[ShoalError], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        arguments(names, **declared)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("names", "warning"),
    [
        (["left", "right"], ""),
        (["left", "right", "scale"], ""),
        (["A__0", "B__1"], ""),
        (["A__1", "B__2"], ""),  # by order, whatever is the first number
        (["ARGS[0]", "ARGS[1]"], ""),
        (["A__1", "B"], ""),  # not all of them have an index
        (
            ["right", "left"],
            "the inputs right, left of model 'm' are given to its forward(left, right, scale) in this order, which is "
            "the configuration's, whatever they are called",
        ),
        (["left", "scale"], "are given to its forward(left, right, scale) in this order"),
    ],
)
def test_arguments_of_a_python_file(names: list[str], warning: str, caplog: pytest.LogCaptureFixture) -> None:
    assert naming.arguments_in_order("m", names, ["left", "right", "scale"], required=2) == names
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.text)


@pytest.mark.parametrize(
    ("names", "required", "sentence"),
    [
        (["x"], 2, "configuration expects 1 inputs, model provides 2"),
        (["x", "y", "z"], 1, "configuration expects 3 inputs, model provides 1 to 2"),
        *(
            (
                names,
                2,
                "the inputs of a Python file are the arguments of its forward in the configuration's order, and their "
                f"names say another: {', '.join(names)}",
            )
            for names in (["A__1", "A__0"], ["A__0", "B__0"], ["ARGS[1]", "ARGS[0]"])
        ),
    ],
)
def test_arguments_that_a_python_file_does_not_take(names: list[str], required: int, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        naming.arguments_in_order("m", names, ["left", "right"], required)
    assert str(caught.value) == f"unable to load model 'm', {sentence}"


@pytest.mark.parametrize(
    ("names", "found", "warns"),
    [
        (["b", "a"], {"b": 1, "a": 0}, False),
        (["OUT__1"], {"OUT__1": 1}, False),
        (["OUT__1", "OTHER"], {"OUT__1": 0, "OTHER": 1}, True),
        (["a", "c"], {"a": 0, "c": 1}, True),  # not all of them are known
        (["only"], {"only": 0}, False),  # there is no order to mistake
        (["x__a", "y__1"], {"x__a": 0, "y__1": 1}, True),
    ],
)
def test_positions(names: list[str], found: dict[str, int], warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert naming.positions("m", "output", names, {"a": 0, "b": 1}) == found
    assert ("Falling back to enforcing strict ordering from model configuration." in caplog.text) == warns


def test_paths() -> None:
    names = ["RESULT", "RESULT[key][0]", "KWARGS[a.b]", "ARGS[]", "RESULTS[0]", "x", "ARGS[0]x"]
    assert [naming.path(name) for name in names] == [
        ("RESULT", ()),
        ("RESULT", ("key", "0")),
        ("KWARGS", ("a.b",)),
        ("ARGS", ("",)),
        None,
        None,
        None,
    ]


def test_a_template_is_filled() -> None:
    template = ["x", {"k": "y"}, ("x", "y")]
    assert naming.fill(template, {"x": 1, "y": 2}) == [1, {"k": 2}, (1, 2)]


def test_a_path_is_followed() -> None:
    result = {"a": (1, [2, 3])}
    assert naming.follow(result, ("a", "1", "0")) == 2
    for steps in (("b",), ("a", "2"), ("a", "x"), ("a", "0", "0")):
        with pytest.raises(LookupError):
            naming.follow(result, steps)
