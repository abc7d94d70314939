"""scripts/release: every place that knows the version gets the new one, and the change log its heading."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import release

LOG = """\
# Changelog

## [Unreleased]

### Added

- A fin.

## [0.1.0] - 2026-01-02

### Added

- A tail.
"""
#: Tracked files that name versions of Shoal of which figures were taken, or of packages that are not Shoal.
OTHERS = ("docs/benchmarks.md", "tests/bench", "tests/cli", "tests/scripts", "CHANGELOG.md")


def test_what_is_unreleased_gets_the_heading_of_the_version() -> None:
    log = release.with_release(LOG, "0.2.0", "2026-11-29")
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-11-29\n\n### Added\n\n- A fin.\n\n## [0.1.0]" in log
    assert release.notes(log, "0.2.0") == "### Added\n\n- A fin."
    assert release.notes(log, "0.1.0") == "### Added\n\n- A tail."
    with pytest.raises(ValueError, match=r"does not say what changed in 0\.2\.0"):
        release.notes(LOG, "0.2.0")
    with pytest.raises(ValueError, match="has nothing under 'Unreleased'"):
        release.with_release(log, "0.3.0", "2026-11-30")
    with pytest.raises(ValueError, match=r"or 0\.1\.0 already"):
        release.with_release(LOG, "0.1.0", "2026-11-30")


def test_every_file_that_knows_the_version_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = release.current()
    words = ["git", "grep", "-lF", old, "--", "."]
    listed = subprocess.run(words, cwd=release.ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    known = {name for name in listed if not name.startswith(OTHERS)}
    for name in (*known, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(release.ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    release.main(["9.8.7"])
    assert release.current() == "9.8.7"
    for name in known:
        text = (tmp_path / name).read_text()
        assert old not in text, name
        assert "9.8.7" in text, name
    assert "## [9.8.7] - 20" in (tmp_path / "CHANGELOG.md").read_text()


def test_the_sbom_lists_what_is_needed_and_no_installer(tmp_path: Path) -> None:
    """With a program in place of cyclonedx-py, which scripts/release installs for itself."""

    def listed(*names: str) -> int:
        parts: list[dict[str, Any]] = [{"name": name, "bom-ref": f"{name}==1"} for name in names]
        parts[0]["licenses"] = [{"expression": "BSD-3-Clause"}]
        bom = {
            "metadata": {"component": {"name": "shoal"}},
            "components": parts,
            "dependencies": [{"ref": each["bom-ref"], "dependsOn": ["setuptools==1"]} for each in parts],
        }
        program = tmp_path / "cyclonedx-py"
        program.write_text(f"#!/bin/sh\n[ $1 = environment ] && cat > $5 <<'END'\n{json.dumps(bom)}\nEND\n")
        program.chmod(0o755)
        python = tmp_path / "python"
        python.write_text(
            """#!/bin/sh\necho '{"Flask": null, "numpy": "3-Clause BSD", "pipdeptree": "MIT", "bare": null}'\n"""
        )
        python.chmod(0o755)
        return release.write_bom(program, python, tmp_path / "bom.json")

    assert listed("Flask", "numpy", "pip", "setuptools", "pipdeptree") == 4
    bom = json.loads((tmp_path / "bom.json").read_text())
    assert [each["name"] for each in bom["components"]] == ["Flask", "numpy", "pipdeptree"]
    assert [each["ref"] for each in bom["dependencies"]] == ["Flask==1", "numpy==1", "pipdeptree==1"]
    assert not any(each["dependsOn"] for each in bom["dependencies"])
    licences = [each["licenses"][0] for each in bom["components"]]
    assert licences == [
        {"expression": "BSD-3-Clause"}, {"license": {"name": "3-Clause BSD"}}, {"license": {"name": "MIT"}}
    ]  # fmt: skip
    with pytest.raises(ValueError, match="has no licence of bare"):
        listed("Flask", "numpy", "bare")
    with pytest.raises(ValueError, match="lists 2 packages, and not Shoal with what it needs"):
        listed("numpy")


@pytest.mark.parametrize("arguments", [["1.2"], ["v1.2.3"], ["1.2.3.dev1"], ["--help"], []])
def test_what_is_no_version_changes_nothing(arguments: list[str]) -> None:
    before = (release.ROOT / "shoal" / "version.py").read_bytes()
    with pytest.raises(SystemExit):
        release.main(arguments)
    assert (release.ROOT / "shoal" / "version.py").read_bytes() == before
