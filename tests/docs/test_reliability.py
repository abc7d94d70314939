"""docs/reliability.md names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([a-z_0-9/]+\.py)(?:::(test_[a-z_0-9]+))?`", (ROOT / "docs" / "reliability.md").read_text())


@pytest.mark.parametrize(("file", "test"), NAMED, ids=["::".join(filter(None, each)) for each in NAMED])
def test_each_promise_has_its_tests(file: str, test: str) -> None:
    assert f"def {test or 'test_'}" in (ROOT / "tests" / file).read_text()
