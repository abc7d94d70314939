"""Java's properties by a table of hand-written bytes, after the documentation of java.util.Properties.load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.torchserve.properties import PropertiesError, format_properties, parse_properties, with_variables

READ: list[tuple[bytes, dict[str, str]]] = [
    (b"", {}),
    (b"\n \t\n\f\n", {}),
    (b"a=1", {"a": "1"}),
    (b"a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
    (b"a:1\nb 2\nc\t3\nd", {"a": "1", "b": "2", "c": "3", "d": ""}),
    (b"a = 1\nb : 2\nc\t=\t3\nd  4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
    (b"a==1\nb=:2\nc =: 3", {"a": "=1", "b": ":2", "c": ": 3"}),
    (b"# a=1\n! b=2\n   # c=3\nd=#4", {"d": "#4"}),
    (b"# not continued \\\na=1", {"a": "1"}),
    (b"a=1 \nb= 2\t", {"a": "1 ", "b": "2\t"}),  # blanks at a line's end belong to the value
    (b"a=1\\\n   2\\\r\n\t3", {"a": "123"}),
    (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),  # two backslashes are one, and no continuation
    (b"a=1\\\\\\\nb=2", {"a": "1\\b=2"}),
    (b"a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    (b"a=1\\\n# still a", {"a": "1# still a"}),
    (b"a=1\\", {"a": "1"}),
    (b"a\\ b=1\na\\=b=2\na\\:b:3", {"a b": "1", "a=b": "2", "a:b": "3"}),
    (b"a=\\u0041\\u00e9\\u20AC", {"a": "A\xe9\u20ac"}),
    (b'a=\\n\\r\\t\\f\\q\\"', {"a": '\n\r\t\fq"'}),
    (b"a=\xe9\xff", {"a": "\xe9\xff"}),  # Latin-1
    (b"a=1\na=2", {"a": "2"}),
    (b"=1", {"": "1"}),
    (
        b'models={\\\n  "noop": {\\\n    "1.0": {\\\n        "minWorkers": 1\\\n    }\\\n  }\\\n}\nx=y',
        {"models": '{"noop": {"1.0": {"minWorkers": 1}}}', "x": "y"},
    ),
    (
        b"inference_address=http://0.0.0.0:8080\nallowed_urls=file://.*|http(s)?://.*",
        {"inference_address": "http://0.0.0.0:8080", "allowed_urls": "file://.*|http(s)?://.*"},
    ),
]


@pytest.mark.parametrize(("raw", "expected"), READ)
def test_properties_are_read(raw: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(raw) == expected


@pytest.mark.parametrize("raw", [b"a=\\u12", b"a=\\uXYZ0", b"\\u=1"])
def test_a_malformed_escape_is_refused(raw: bytes) -> None:
    with pytest.raises(PropertiesError, match="Malformed"):
        parse_properties(raw)


def test_variables_are_filled_in() -> None:
    values = {"a": "$$HOME$$/x", "b": "$$A$$$$B$$", "c": "$HOME $$ $$no end", "d": "plain"}
    filled = with_variables(values, {"HOME": "/home", "A": "1", "B": "2"})
    assert filled == {"a": "/home/x", "b": "12", "c": "$HOME $$ $$no end", "d": "plain"}


def test_an_unset_variable_is_refused_in_torchserves_words() -> None:
    with pytest.raises(PropertiesError, match="Invalid Environment Variable GONE"):
        with_variables({"a": "$$GONE$$"}, {})


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=4))
def test_what_is_written_is_read_again(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values).encode("latin-1")) == values
