"""repository/labels.py: the lines of label files, and what is no label file."""

import os
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.repository.labels import MAX_BYTES, read_labels


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "labels.txt").write_bytes(b"zero\none\n")
    (tmp_path / "outside.txt").write_bytes(b"secret\n")
    return directory


def config(*filenames: str) -> dict[str, Any]:
    return {"name": "m", "output": [{"name": f"O{i}", "label_filename": name} for i, name in enumerate(filenames)]}


def refusal(model_dir: Path, *filenames: str) -> str:
    before = sorted(model_dir.parent.rglob("*"))
    with pytest.raises(InvalidArgumentError) as caught:
        read_labels(model_dir, config(*filenames))
    assert sorted(model_dir.parent.rglob("*")) == before
    return str(caught.value)


def test_each_output_that_names_a_file_has_its_labels(model_dir: Path) -> None:
    (model_dir / "more").mkdir()
    (model_dir / "more" / "names").write_bytes("é\n".encode())
    assert read_labels(model_dir, config("labels.txt", "", "more/names")) == {"O0": ("zero", "one"), "O2": ("é",)}
    assert read_labels(model_dir, config("")) == {}


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (b"", ()),
        (b"\n", ("",)),
        (b"a\n\nb", ("a", "", "b")),
        (b"a\nb\n", ("a", "b")),
        # As Triton: a line ends at a line feed and nowhere else.
        (b"a b\r\nc\x0b\xe2\x80\xa8d\n", ("a b\r", "c\x0b\u2028d")),
    ],
)
def test_one_label_a_line(model_dir: Path, data: bytes, labels: tuple[str, ...]) -> None:
    (model_dir / "labels.txt").write_bytes(data)
    assert read_labels(model_dir, config("labels.txt")) == {"O0": labels}


def test_links_may_point_anywhere_inside_the_model_directory(model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "link").symlink_to(model_dir / "labels.txt")
    (tmp_path / "linked").symlink_to(model_dir)
    assert read_labels(tmp_path / "linked", config("link")) == {"O0": ("zero", "one")}


@pytest.mark.parametrize("filename", ["link", "folder/outside.txt", "../outside.txt", "/etc/hostname", "."])
def test_nothing_outside_the_model_directory_is_read(model_dir: Path, filename: str) -> None:
    (model_dir / "link").symlink_to("../outside.txt")
    (model_dir / "folder").symlink_to("..")
    assert refusal(model_dir, filename) == (
        f"label file path '{filename}' for output 'O0' in model 'm' is outside model directory"
    )


@pytest.mark.parametrize(
    ("filename", "reason"),
    [
        ("none.txt", "No such file or directory"),
        ("folder", "Is a directory"),
        ("dangling", "No such file or directory"),
    ],
)
def test_what_cannot_be_read_is_named(model_dir: Path, filename: str, reason: str) -> None:
    (model_dir / "folder").mkdir()
    (model_dir / "dangling").symlink_to("nowhere")
    path = model_dir / ("nowhere" if filename == "dangling" else filename)
    assert refusal(model_dir, "labels.txt", filename) == (
        f"label file path '{filename}' for output 'O1' in model 'm' cannot be read: {reason}; put a text file with one "
        f"label a line at '{path}' that the server's user can read, or remove label_filename from the configuration"
    )


def test_a_fifo_does_not_keep_the_supervisor_waiting(model_dir: Path) -> None:
    os.mkfifo(model_dir / "fifo")
    assert refusal(model_dir, "fifo").startswith(
        "label file path 'fifo' for output 'O0' in model 'm' cannot be read: it is not a regular file; put a text file "
    )


def test_only_utf_8(model_dir: Path) -> None:
    (model_dir / "labels.txt").write_bytes(b"caf\xe9\n")
    assert refusal(model_dir, "labels.txt") == (
        "label file path 'labels.txt' for output 'O0' in model 'm' is not UTF-8 at byte 3; "
        "save the file as plain UTF-8 text"
    )


def test_all_files_together_are_bounded(model_dir: Path) -> None:
    (model_dir / "labels.txt").write_bytes(b"a" * 10)
    os.truncate(model_dir / "labels.txt", MAX_BYTES - 10)
    (model_dir / "more.txt").write_bytes(b"0123456789")
    assert len(read_labels(model_dir, config("labels.txt", "more.txt"))["O1"]) == 1
    (model_dir / "more.txt").write_bytes(b"0123456789a")
    assert refusal(model_dir, "labels.txt", "more.txt") == (
        "label file path 'more.txt' for output 'O1' in model 'm' is too large: the label files of a model may have "
        "16777216 bytes in all; shorten the labels"
    )
