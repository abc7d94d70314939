"""requirements.py: what is part of an environment's name, and what is not."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.environments.requirements import contents


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def found(requirements: Path) -> list[bytes]:
    return list(contents(requirements, digest))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Files that a requirements.txt can name."""
    place = tmp_path / "model"
    for name in (
        "base.txt", "deep/more.txt", "x-1.0-py3-none-any.whl", "wheels/y.whl", "project/pyproject.toml",
        "project/src/p.py", "1/model.py", "name with blanks.whl",
    ):  # fmt: skip
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("before")
    return place


def write(place: Path, text: str) -> Path:
    (place / "requirements.txt").write_text(text)
    return place / "requirements.txt"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("-r base.txt", "base.txt"),
        ("-rbase.txt", "base.txt"),
        ("numpy\n  --requirement=base.txt  # what everybody has", "base.txt"),
        ("-c base.txt", "base.txt"),
        ("--constraint base.txt", "base.txt"),
        ("-r \\\n base.txt", "base.txt"),
        ('-r "base.txt"', "base.txt"),
        ("\ufeff-r base.txt", "base.txt"),
        ("./x-1.0-py3-none-any.whl", "x-1.0-py3-none-any.whl"),
        ("x-1.0-py3-none-any.whl", "x-1.0-py3-none-any.whl"),
        ("./x-1.0-py3-none-any.whl[extra] ; python_version > '3'", "x-1.0-py3-none-any.whl"),
        ("x @ file:./x-1.0-py3-none-any.whl", "x-1.0-py3-none-any.whl"),
        ("x[extra]@file:x-1.0-py3-none-any.whl#sha256=0", "x-1.0-py3-none-any.whl"),
        ("file:name%20with%20blanks.whl", "name with blanks.whl"),
        ("--no-index\n--find-links wheels\ny", "wheels/y.whl"),
        ("-f wheels", "wheels/y.whl"),
        ("--find-links=./wheels/", "wheels/y.whl"),
        ("-e ./project", "project/src/p.py"),
        ("-e ./project[extra]", "project/pyproject.toml"),
        ("project/", "project/pyproject.toml"),
        (".", "1/model.py"),
    ],
)
def test_what_it_names_is_part_of_it(place: Path, text: str, name: str) -> None:
    requirements = write(place, text)
    before = found(requirements)
    assert found(requirements) == before
    (place / name).write_text("after")
    assert found(requirements) != before


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "file://localhost", "x @ file://"])
def test_whole_paths(place: Path, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "z.whl").write_text("before")
    requirements = write(place, f"{scheme}{tmp_path}/z.whl")
    before = found(requirements)
    (tmp_path / "z.whl").write_text("after")
    assert found(requirements) != before


def test_a_file_s_own_files_lie_beside_it_and_its_packages_where_pip_is_run(place: Path) -> None:
    requirements = write(place, "-r deep/again.txt")
    (place / "deep" / "again.txt").write_text("-r more.txt\nx-1.0-py3-none-any.whl\n-r ../requirements.txt\n")
    assert found(requirements) == [
        b"-r deep/again.txt",
        b"-r more.txt\nx-1.0-py3-none-any.whl\n-r ../requirements.txt\n",
        digest(place / "x-1.0-py3-none-any.whl").encode(),
        b"before",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# -r base.txt",
        "project == 1",  # no path, though there are directories of these names
        "numpy  # and what lies in ./project",
        "-r https://example.com/base.txt",
        "-r missing.txt\n./missing.whl\n-e\n-r",
        "https://example.com/x-1.0-py3-none-any.whl",
        "--hash=sha256:" + 10_000 * "0",
        "null\0byte",
    ],
)
def test_what_is_no_path_of_this_machine_is_passed_over(place: Path, text: str) -> None:
    requirements = write(place, text)
    assert found(requirements) == [requirements.read_bytes()]


def test_what_an_installation_leaves_in_a_project_changes_nothing(place: Path) -> None:
    requirements = write(place, "-e ./project")
    before = found(requirements)
    for name in ("build/lib/p.py", "src/p.egg-info/PKG-INFO", "src/__pycache__/p.pyc", ".git/HEAD", ".coverage"):
        (place / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "project" / name).write_text("new")
    assert found(requirements) == before


@pytest.mark.parametrize("change", [lambda source: source.rename(source.with_name("q.py")), Path.unlink])
def test_names_count_in_a_project(place: Path, change: Callable[[Path], object]) -> None:
    requirements = write(place, "./project")
    before = found(requirements)
    change(place / "project" / "src" / "p.py")
    assert found(requirements) != before
