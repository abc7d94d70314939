"""shoal/tolerance.py: how a tolerance is written."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.tolerance import OutputTolerance, Tolerance, read_tolerance


def test_tolerances_are_read() -> None:
    assert read_tolerance(None) == read_tolerance("") == read_tolerance("exact") == Tolerance()
    assert read_tolerance("atol=1e-5,rtol=0.1") == Tolerance(OutputTolerance(1e-5, 0.1))
    assert read_tolerance("cosine=0.99, top1").others == OutputTolerance(top1=True, cosine=0.99)
    assert not read_tolerance("none").compares


def test_an_output_may_have_a_rule_of_its_own() -> None:
    found = read_tolerance("top1,scores:atol=1e-3,rtol=1e-2,a:b:none")
    assert found.of("probabilities") == OutputTolerance(top1=True)
    assert found.of("scores") == OutputTolerance(1e-3, 1e-2)
    assert not found.of("a:b").compares
    assert found.compares


def test_a_function_of_the_models_stands_alone_or_beside_other_rules() -> None:
    alone, beside = read_tolerance("python"), read_tolerance("python,atol=1,ids:exact")
    assert (alone.uses_function, alone.compares) == (True, False)
    assert (beside.uses_function, beside.of("scores").atol, beside.of("ids")) == (True, 1, OutputTolerance())
    assert not read_tolerance("top1").uses_function


@pytest.mark.parametrize(
    "wrong",
    [
        "atol",
        "atol=-1",
        "cosine=1.1",
        "atol=nan",
        "rtol=inf",
        "top2",
        "scores:",
        ":top1",
        "top1,",
        "cosine=0",
        "exact,atol=1",
        "atol=1,none",
        "scores:none,top1",
        "scores:python",
        "atol=1_0",
        "atol=\u0661",
        "atol=1e999",
        "x" * 10_000,
        ",".join(map("{}:top1".format, range(65))),
    ],
)
def test_what_is_wrong_is_refused_with_the_syntax(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match="atol=1e-5") as refusal:
        read_tolerance(wrong)
    assert len(str(refusal.value)) < 300
