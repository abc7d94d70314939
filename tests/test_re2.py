"""shoal/re2.py: flags within patterns mean what they mean to RE2."""

import re

import pytest

from shoal.re2 import to_python


@pytest.mark.parametrize(
    "pattern", ["", "^x-|^priority$", "(a|b)c", r"\(?-i\)", "[(?-i)]", r"[]()\]|]", "(?i:a)b", "(?P<n>a)", "a)", "(a"]
)
def test_what_sets_no_flags_stays_as_it_is(pattern: str) -> None:
    assert to_python(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("(?-i)My_.*|HTTP_x", ["My_a", "a HTTP_x"], ["my_a", "http_x", "MY_A"]),
        ("a|(?-i)b|c", ["A", "b", "c"], ["B", "C"]),
        ("(a(?-i)b|c)d", ["Abd", "cD"], ["ABd", "CD"]),
        ("x(?-i)a(?i)b", ["XaB"], ["XAb"]),
        ("(?-i)a+[(?i)]?", ["a(", "aa"], ["A", "A("]),
        (r"(?-i)\(a|b", ["(a", "b"], ["(A", "B"]),
        ("(?s-i)a.b", ["a\nb"], ["A\nB"]),
    ],
)
def test_flags_count_to_the_end_of_their_group(pattern: str, matching: list[str], others: list[str]) -> None:
    searched = re.compile(to_python(pattern), re.IGNORECASE)
    assert [text for text in (*matching, *others) if searched.search(text)] == matching
