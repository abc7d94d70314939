"""ARCHITECTURE.md, docs/decisions and docs/glossary.md: short, complete, and true of the tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
INDEX = ROOT / "docs" / "decisions" / "README.md"
ROOMS = sorted(set(INDEX.parent.glob("*.md")) - {INDEX})
PAGES = [ARCHITECTURE, ROOT / "docs" / "glossary.md", *ROOMS]
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
#: A path from the root of the repository, and a file named without one.
PATH = re.compile(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./-]*[\w/])")
FILE = re.compile(r"(?<![\w./-])(\w+\.py)\b")
MODULES = {"setup.py", *(path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))}


def decisions(page: Path) -> dict[str, str]:
    """The text of each decision of a room's page, by its title."""
    _, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return {title: text.strip() for title, _, text in (section.partition("\n") for section in sections)}


def named(page: Path) -> set[str]:
    """The paths and files that a page names."""
    text = page.read_text()
    return set(PATH.findall(text)) | set(FILE.findall(text))


def test_the_architecture_is_read_in_ten_minutes() -> None:
    assert len(ARCHITECTURE.read_text().splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    missing = {name for name in named(page) if not ((ROOT / name).exists() if "/" in name else name in MODULES)}
    assert not missing


def test_files_that_are_not_there_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("In `batcher/no_such.py`, frontend/nowhere/ and `no_such_file.py`; not in `/models/M` or shm.")
    assert named(page) == {"batcher/no_such.py", "frontend/nowhere/", "no_such_file.py"}
    assert {"shm/layout.py", "frontend/v2/", "supervisor/main.py"} <= named(ARCHITECTURE)


@pytest.mark.parametrize("page", ROOMS, ids=lambda page: page.name)
def test_a_decision_says_when_it_was_made_and_what_it_costs(page: Path) -> None:
    assert decisions(page)
    for title, text in decisions(page).items():
        assert re.match(r"\d{4}-\d\d-\d\d[.,]", text), title
        assert re.search(r"\*\*Price:\*\*", text), title


def test_the_index_has_a_line_for_each_decision() -> None:
    listed = re.findall(r"^- \[(.*)\]\(([\w-]+\.md)#", INDEX.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted((title, page.name) for page in ROOMS for title in decisions(page))


def test_the_glossary_says_where_each_word_lives() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words = [row for row in rows if row[0] != "word" and not row[0].startswith("-")]
    assert len(words) > 30
    assert all(re.fullmatch(r"`[\w./]+\.py`", where) for _, _, where in words)
