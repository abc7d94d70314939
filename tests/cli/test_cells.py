"""cells.py: widths as terminals have them, and tables of names in any script."""

import pytest

from shoal.cli.cells import clipped, clipped_left, padded, width
from shoal.cli.models import cut, table


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("", 0),
        ("fish", 4),
        ("größe", 5),
        ("魚の群れ", 8),
        ("\uff46\uff49", 4),
        ("e\u0301", 1),
        ("🐟", 2),
        ("\uff8c", 1),
    ],
)
def test_the_cells_of_a_text(text: str, cells: int) -> None:
    assert width(text) == cells


def test_a_text_is_cut_to_cells_at_either_end() -> None:
    assert [clipped("a魚の", each) for each in range(6)] == ["", "a", "a", "a魚", "a魚", "a魚の"]
    assert [clipped_left("魚のa", each) for each in range(6)] == ["", "a", "a", "のa", "のa", "魚のa"]
    assert clipped("fish", 2) == "fi"
    assert padded("魚", 4) == "魚  "
    assert padded("魚", 1) == "魚"


def test_the_middle_of_a_name_is_left_out_by_cells() -> None:
    assert cut("魚の群れ", 8) == "魚の群れ"
    assert cut("魚の群れ", 7) == "魚…れ"
    assert cut("a_long_name", 7) == "a_l…ame"


def test_columns_are_aligned_by_cells() -> None:
    assert table(["MODEL", "VERSION"], [["魚の群れ", "1"], ["fish", "12"]]).splitlines() == [
        "MODEL     VERSION",
        "魚の群れ  1",
        "fish      12",
    ]
