"""Texts as values."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.workers.backends import parameters
from tests.workers.worker_harness import model, model_config

MODEL = model(model_config([], []))
WORDS = {"on": True, "off": False}


def test_what_is_said() -> None:
    assert parameters.whole_number(MODEL, "k", "0012") == 12
    assert [parameters.number(MODEL, "k", text, 0) for text in ("1", "-.5", "+2.", "1e-3")] == [1, -0.5, 2, 0.001]
    assert [parameters.flag(MODEL, "k", word, WORDS, "on or off", default=None) for word in WORDS] == [True, False]


@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_is_said(nothing: str | None) -> None:
    assert parameters.whole_number(MODEL, "k", nothing) == 0
    assert parameters.number(MODEL, "k", nothing, 0.5) == 0.5
    assert parameters.flag(MODEL, "k", nothing, WORDS, "on or off", default=None) is None


@pytest.mark.parametrize("text", ["-5", "+5", "1_000", " 1", "1\n", "\u0663", "\u00b2", "1.0", "nan", "1" * 5000])
def test_only_digits_are_a_whole_number(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parameters.whole_number(MODEL, "k", text)
    assert str(caught.value) == f"model 'm': parameter 'k' must be a whole number, got '{text}'"


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1_0.5", " 1", ".", "1e", "\u0663.5", "1e999"])
def test_only_finite_numbers_are_numbers(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parameters.number(MODEL, "k", text, 0)
    assert str(caught.value) == f"model 'm': parameter 'k' must be a number, got '{text}'"


def test_a_framework_may_have_a_sentence() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^k of m: on or off, not maybe$"):
        parameters.flag(
            MODEL,
            "k",
            "maybe",
            WORDS,
            "on or off",
            lambda model, key, expected, value: InvalidArgumentError(f"{key} of {model.name}: {expected}, not {value}"),
            default=None,
        )
