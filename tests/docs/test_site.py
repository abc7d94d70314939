"""scripts/docs: the site has every page, and whatever pages link to."""

import re
from pathlib import Path

from scripts.docs_pages import ROOT, lay_out, linked_files, pages


def test_each_page_is_in_the_navigation_and_is_there() -> None:
    named = re.findall(r"([\w./-]+\.md)", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1])
    rooms = {page for page in pages() if page.parent.name == "decisions" and page.name != "README.md"}
    assert len(named) == len(set(named))
    assert {ROOT / name for name in named} == set(pages()) - rooms  # of the decisions, their index


def test_pages_lie_where_their_links_find_them(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    lay_out(tmp_path / "old")
    for page in pages():
        assert (tmp_path / "old" / page.relative_to(ROOT)).read_bytes() == page.read_bytes()
    assert [file.name for file in linked_files(ROOT / "docs" / "client.md")] == ["client.svg"]
    assert (tmp_path / "old" / "docs" / "client.svg").is_file()
    (tmp_path / "old" / "stale.md").write_text("")
    lay_out(tmp_path / "old")
    assert not (tmp_path / "old" / "stale.md").exists()
