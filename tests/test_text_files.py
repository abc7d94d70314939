"""Text files are UTF-8, whatever the locale says: the server reads configurations as UTF-8."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ["shoal", "supervisor", "repository", "tracer", "recorder", "frontend", "batcher", "workers", "shm"]
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if not path.is_symlink()]
#: Read by Python's own `site`, in the locale's encoding until Python 3.13.
EXEMPT = {ROOT / "shoal/environments/resolve.py"}
ASCII = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def written_without_encoding(source: str) -> Iterator[int]:
    """The lines of calls that write text in the encoding of the locale."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [each.value for each in node.args if isinstance(each, ast.Constant) and each.value in ("w", "a", "x")]
        if name == "write_text" or (name in ("open", "fdopen") and modes):
            yield node.lineno


def test_calls_that_write_text_are_found() -> None:
    source = (
        'path.write_text(a)\npath.open("w")\nopen(path, "w", encoding="utf-8")\nopen(path, "wb")\nopen(path, "a")\n'
    )
    assert list(written_without_encoding(source)) == [1, 2, 5]


def test_every_text_file_is_written_as_utf_8() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCES if path not in EXEMPT}
    assert [f"{path}:{line}" for path, text in sources.items() for line in written_without_encoding(text)] == []


@pytest.mark.parametrize(
    "script",
    [
        "from shoal.cli.request_arguments import write; write(path, 'gr\\xf6\\xdfe'); print(path.read_bytes())",
        "from shoal.cli.load import _read; path.write_bytes(b'gr\\xc3\\xb6\\xc3\\x9fe'); print(_read(path).encode())",
    ],
    ids=["written", "read"],
)
def test_commands_in_a_locale_without_the_letters(script: str, tmp_path: Path) -> None:
    script = f"import pathlib; path = pathlib.Path('text'); {script}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=ASCII, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("b'gr\\xc3\\xb6\\xc3\\x9fe'\n", "")
