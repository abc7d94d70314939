"""Lays out the pages of the site: python -m scripts.docs_pages DIRECTORY

Pages link to each other, to README.md and to files of the repository as they do on a code host, by relative paths. The
site is built from a directory in which all of these lie at the same places, so that not one link has to be rewritten.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Patterns of the pages, from the root of the repository.
PATTERNS = ("*.md", "docs/**/*.md", "model_repository/**/*.md")
#: A link or a picture: what it leads to, without an address elsewhere.
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    """All pages, sorted by path."""
    return sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))


def linked_files(page: Path) -> Iterator[Path]:
    """The files that a page links to and that are no pages: pictures, manifests, the license."""
    for target in _LINK.findall(page.read_text()):
        file = (page.parent / target).resolve()
        if file.suffix != ".md" and file.is_file():
            yield file


def lay_out(directory: Path) -> None:
    """Copy the pages, and the files that they link to, into `directory`, whose former content is removed."""
    shutil.rmtree(directory, ignore_errors=True)
    for page in pages():
        for file in (page, *linked_files(page)):
            copy = directory / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
