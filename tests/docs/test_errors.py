"""docs/errors.md: every sentence is one that the source raises, with the statuses of its class."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal import errors
from shoal.frontend.upload_budget import NoUploadMemoryError, UploadTimeoutError, UploadTooLargeError

ROOT = Path(__file__).parents[2]
FOLDERS = ["shoal", "supervisor", "frontend", "batcher", "workers", "shm"]
PLACE = "\x00"  # stands for a name or a figure


class Row(NamedTuple):
    """A section of the page: each sentence has a heading, by which the site's search finds it."""

    sentence: str
    http: int
    grpc: int


ROWS = [
    Row(sentence, int(http), int(grpc))
    for sentence, http, grpc in re.findall(
        r"^### `([^`]+)`\n\nHTTP (\d+), gRPC [A-Z_]+ \((\d+)\)\. .+\n\n\*What to do:\* .+$",
        (ROOT / "docs" / "errors.md").read_text(),
        re.MULTILINE,
    )
]


def words(node: ast.AST | None) -> str:
    """The text of an expression; PLACE stands for whatever is known only when it is evaluated."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words(each) for each in node.values)
    if isinstance(node, ast.BinOp):
        return words(node.left) + words(node.right)
    return PLACE


@cache
def sentences() -> frozenset[tuple[str, str]]:
    """The texts of the source, each with the class of error made of it; "" for a text that is kept elsewhere."""
    return frozenset(each for path in source_files() for each in texts(ast.parse(path.read_text())))


def texts(tree: ast.AST, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts below a node; those of an error's own constructor belong to its class."""
    for node in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(node, ast.ClassDef):
            inner = node.name if node.name.endswith("Error") else ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
            inner = node.func.id
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            yield words(node), inner
        yield from texts(node, inner)


def source_files() -> list[Path]:
    links = [path for path in (ROOT / "shoal").iterdir() if path.is_symlink()]
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if not any(path.is_relative_to(link) for link in links)]


def test_the_page_has_sections_and_no_sentence_twice() -> None:
    lines = re.findall(r"^(?:###|\|) `.*$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(ROWS) == len(lines) > 50, "a section that is not in this form"
    assert len({row.sentence for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence[:60])
def test_the_source_raises_this_sentence_with_these_statuses(row: Row) -> None:
    pieces = [re.escape(piece) for piece in row.sentence.split("…")]
    pattern = re.compile(".*?".join(pieces), re.DOTALL)
    classes = {name for text, name in sentences() if pattern.search(text)}
    assert classes, "no such sentence in the source"
    found = {kind for kind in map(kind_of, classes) if kind is not None}
    assert not found or (row.http, row.grpc) in {(kind.http_status, kind.grpc_status) for kind in found}


def kind_of(name: str) -> type[errors.ShoalError] | None:
    """The class of that name; None for one that is translated before a client sees it."""
    others = {kind.__name__: kind for kind in (NoUploadMemoryError, UploadTimeoutError, UploadTooLargeError)}
    return others.get(name) or getattr(errors, name, None)
