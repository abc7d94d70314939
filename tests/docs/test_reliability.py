"""docs/reliability.md names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([a-z_0-9/]+\.py)(?:::(test_[a-z_0-9]+))?`", (ROOT / "docs" / "reliability.md").read_text())


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 1


@pytest.mark.parametrize(("file", "test"), NAMED, ids=["::".join(filter(None, each)) for each in NAMED])
def test_each_promise_has_its_tests(file: str, test: str) -> None:
    assert re.search(rf"^def {f'{test}[(]' if test else 'test_'}", (ROOT / "tests" / file).read_text(), re.MULTILINE)
