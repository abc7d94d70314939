"""readiness.py: the table has the first word, and a model is asked only where it has one, too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shoal.star.known_server import is_ready
from shoal.star.models import ModelEntry


@pytest.mark.parametrize(
    ("num_up", "has_ready_check", "says", "expected", "num_asked"),
    [
        (1, False, False, True, 0),
        (0, False, True, False, 0),
        (0, True, True, False, 0),
        (1, True, True, True, 1),
        (2, True, False, False, 1),
    ],
)
def test_who_decides(
    make_entry: Callable[..., ModelEntry],
    num_up: int,
    has_ready_check: bool,
    says: bool,
    expected: bool,
    num_asked: int,
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def ask(verb: str, arguments: dict[str, Any]) -> bool:
        asked.append((verb, arguments))
        return says

    entry = replace(make_entry("m", 0, []), num_instances_up=num_up, has_ready_check=has_ready_check)
    assert is_ready(entry, ask) is expected
    assert asked == [("is_ready", {"model": 7})] * num_asked
