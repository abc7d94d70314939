"""deterministic.py: what a client may say, and what the record has of it."""

import pytest

from shoal.deterministic import ALONE, ALONE_KEY, alone_flag
from shoal.errors import InvalidArgumentError
from shoal.request import pack_options, unpack_options
from shoal.sequences import END, FLAGS, START


@pytest.mark.parametrize(("value", "flag"), [(True, ALONE), ("true", ALONE), (1, ALONE), (False, 0), ("false", 0)])
def test_true_and_false_in_the_forms_of_both_protocols(value: bool | str | int, flag: int) -> None:
    assert alone_flag({"deterministic": value}) == flag
    assert alone_flag({}) == alone_flag({"other": True}) == 0


@pytest.mark.parametrize("value", ["yes", "True", "", 2, 0.5])
def test_anything_else_is_the_clients_fault(value: str | float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"parameter 'deterministic' is .*, must be true or false"):
        alone_flag({"deterministic": value})


def test_the_flag_is_none_of_a_sequence_and_in_no_header() -> None:
    assert not ALONE & FLAGS
    assert ALONE_KEY > 2**64 - 1
    assert pack_options("a", {"p": 1}, (0, ALONE)) == pack_options("a", {"p": 1})
    assert unpack_options(pack_options("a", {}, ("s", START | END | ALONE))).sequence == ("s", START | END)
