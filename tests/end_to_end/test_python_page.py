"""docs/python_models.md: the models on it are written down and served, its commands run, their output compared."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python_models.md").read_text()
FILES = re.findall(r"^`(models/\S+)`:\n\n```\w+\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
#: A fenced command and the fenced output that follows it.
EXAMPLES = re.findall(r"```(sh|python)\n((?:(?!```).)*)```\n\n```(?:json|text)\n((?:(?!```).)*)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files of the page lie as it says."""
    root = tmp_path_factory.mktemp("page")
    for name, content in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    assert "shoal serve --model-repository models\n" in PAGE
    with serving_to_the_end(folder / "models") as running:
        yield running


def test_the_page_shows_three_models_and_four_examples() -> None:
    assert len(FILES) == 6
    assert [language for language, _, _ in EXAMPLES] == ["sh", "sh", "sh", "python"]


@pytest.mark.parametrize(("language", "code", "output"), EXAMPLES)
def test_example_prints_what_the_page_shows(
    server: Server, folder: Path, language: str, code: str, output: str
) -> None:
    code = code.replace("localhost:8000", server.url)
    command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout
    if output.startswith("{"):
        assert json.loads(printed) == json.loads(output)
    else:
        assert printed == output
