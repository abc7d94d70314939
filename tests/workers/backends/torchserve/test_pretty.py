"""JSON with an indentation: byte for byte what `json.dumps` writes, and its errors."""

import json
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.workers.backends.torchserve.pretty import dumps

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.floats()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner)
    | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=30,
)  # fmt: skip


@given(VALUES)
def test_any_value_is_written_as_json_dumps_writes_it(value: object) -> None:
    assert dumps(value) == json.dumps(value, indent=2)


class Colour(IntEnum):
    """An int of another type, which `json.dumps` writes as a number."""

    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        {}, [], (), [[]], [{}], {"a": []}, 42, "é\u2028\ud800", [1e16, 1e-7, -0.0, float("nan")], Colour.RED,
        OrderedDict(a=1), {"cat": 0.9, "dog": 0.1}, True, None, 10**400, [True, 1, 1.0],
    ],
)  # fmt: skip
def test_what_handlers_return(value: Any) -> None:
    assert dumps(value) == json.dumps(value, indent=2)


@pytest.mark.parametrize(
    ("value", "error"), [(object(), TypeError), ([b"bytes"], TypeError), ({1, 2}, TypeError), ({(1,): 2}, TypeError)]
)
def test_what_has_no_form_is_an_error(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        dumps(value)


def test_a_value_in_itself_is_an_error() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueError, match="Circular reference"):
        dumps(value)
