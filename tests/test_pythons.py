"""What Shoal takes from the standard library is there in every Python that pyproject.toml promises."""

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ["shoal", "supervisor", "repository", "tracer", "recorder", "frontend", "batcher", "workers", "shm"]
#: Also the classifiers of pyproject.toml. scripts/_python takes a later one if there is no other.
SUPPORTED = ["3.10", "3.11", "3.12", "3.13", "3.14"]

#: Reads [[module, name, whether it is subscripted], ...]; prints those that this interpreter does not have.
CHECK = """
import importlib, json, sys

def has(module, name, is_subscripted):
    try:
        found = getattr(importlib.import_module(module), name)
    except AttributeError:
        try:
            found = importlib.import_module(f"{module}.{name}")
        except ImportError:
            return False
    return not is_subscripted or hasattr(found, "__class_getitem__") or module == "typing"

print(json.dumps([each for each in json.load(sys.stdin) if not has(*each)]))
"""


def ask(python: str, version: str, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    # pyenv's stand-ins choose the interpreter by this variable.
    environment = {**os.environ, "PYENV_VERSION": version}
    return subprocess.run(
        [python, *arguments], input=said, capture_output=True, text=True, check=False, env=environment
    )


def taken_at_import(source: str) -> Iterator[tuple[str, str, bool]]:
    """Of a module: what its imports name of the standard library, and which of that a class statement subscripts."""
    tree = ast.parse(source)
    known: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in sys.stdlib_module_names:
            for alias in node.names:
                known[alias.asname or alias.name] = (node.module, alias.name)
                yield node.module, alias.name, False
    classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    for subscripted in [base.value for each in classes for base in each.bases if isinstance(base, ast.Subscript)]:
        match subscripted:
            case ast.Name(id=name) if name in known:
                yield *known[name], True
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in sys.stdlib_module_names:
                yield module, name, True


@functools.cache
def all_taken() -> set[tuple[str, str, bool]]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {each for path in paths for each in taken_at_import(path.read_text())}


def test_a_class_that_is_generic_only_in_later_pythons_is_found() -> None:
    source = "import logging\nfrom typing import TextIO\nclass Mine(logging.StreamHandler[TextIO]): ...\n"
    assert list(taken_at_import(source)) == [("typing", "TextIO", False), ("logging", "StreamHandler", True)]


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_standard_library_has_what_is_imported(version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or ask(python, version, "-c", "").returncode != 0:
        pytest.skip(f"NOT CHECKED: Python {version}, since no python{version} is on the PATH (pyenv install {version})")
    checked = ask(python, version, "-c", CHECK, said=json.dumps(sorted(all_taken())))
    assert json.loads(checked.stdout) == []


def test_what_became_generic_later_is_not_subscripted() -> None:
    """What the oldest interpreter would say, where it is not installed."""
    assert not all_taken() & {("logging", "StreamHandler", True), ("logging", "LoggerAdapter", True)}


def test_every_list_of_pythons_is_this_one() -> None:
    classifiers = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', classifiers) == SUPPORTED
    wheels = (ROOT / "scripts" / "wheels").read_text()
    assert re.findall(r"python(3\.\d+)", wheels) == SUPPORTED
    considered = re.search(r"for name in python3 (.*);", (ROOT / "scripts" / "_python").read_text())
    assert considered
    later = f"3.{int(SUPPORTED[-1].removeprefix('3.')) + 1}"
    assert re.findall(r"python(3\.\d+)", considered[1]) == [*reversed(SUPPORTED), later]
    [newest] = re.findall(r"sys.version_info >= \(3, (\d+)\)", (ROOT / "shoal" / "interpreter.py").read_text())
    assert f"3.{newest}" == later
    tried = f"{SUPPORTED[0]} to {SUPPORTED[-1]}"
    for file, words in (
        ("scripts/_venv", "tried with Python "),
        ("README.md", "but Python "),
        ("SECURITY.md", "classifiers ("),
    ):
        assert words + tried in (ROOT / file).read_text()
