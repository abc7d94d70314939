"""docs/tutorials: each page is read to its end on a server that tests share, and prints what it shows."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from shoal.cli import main
from tests.end_to_end.server import Server
from tests.end_to_end.tutorials import ROOT, Reader

PAGES = ROOT / "docs" / "tutorials"
#: Page → how many outputs it shows.
SHOWN = {
    "scikit_learn": 6, "text_pipeline": 4, "streaming": 3, "images": 4, "triton": 2, "systemd": 1, "kubernetes": 0,
}  # fmt: skip
#: Page → the test that reads it, on a server with what it needs.
ELSEWHERE = {
    "python_packages": "test_environments.py",
    "pytorch": "test_backends.py",
    "torchserve": "test_torchserve_command.py",
}


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_is_right(page: str, explicit: Server, shared: Path, tmp_path: Path) -> None:
    if page == "kubernetes":
        (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    elif page == "systemd":
        (tmp_path / "models").mkdir()
    reader = Reader(tmp_path, explicit, shared)
    reader.read((PAGES / f"{page}.md").read_text())
    assert reader.num_compared == SHOWN[page]
    for command in reader.left_out:
        for path in re.findall(r"(?:deploy/\S+|\S+\.yaml)", command):
            assert (tmp_path / path).exists(), command
        if found := re.match(r"sudo /opt/shoal/bin/shoal (install-systemd .*)", command):
            words = [*found[1].replace("www-data", "root").split(), "--output", f"{tmp_path}/shoal.service"]
            assert main([word.replace("/srv/models", f"{tmp_path}/models") for word in words]) == 0
    for manifest in tmp_path.glob("*.yaml"):
        kubernetes_validate.validate(yaml.safe_load(manifest.read_text()), "1.25", strict=True)


def test_every_page_is_read() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*SHOWN, *ELSEWHERE}
    for page, file in ELSEWHERE.items():
        assert f'"tutorials" / "{page}.md"' in (Path(__file__).with_name(file)).read_text()
