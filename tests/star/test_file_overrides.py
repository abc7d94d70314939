"""shoal/star/model_control.py: where the files of a load request go, and that they go nowhere else."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InternalError, InvalidArgumentError
from shoal.star.model_control import MAX_FILES, place_files, remove_files, write_files


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("1/model.onnx", "1/model.onnx"),
        ("1//./model.onnx", "1/model.onnx"),
        ("1/x/../model.onnx", "1/model.onnx"),
        # As in Triton, the model's directory is the root of all paths.
        ("/etc/passwd", "etc/passwd"),
        ("//1/a b", "1/a b"),
        ("..a/...", "..a/..."),
        ("é/" + "x" * 255, "é/" + "x" * 255),
        ("file:x", "file:x"),
    ],
)
def test_paths_are_normalised(name: str, path: str) -> None:
    assert place_files([f"file:{name}"]) == {path: f"file:{name}"}


@pytest.mark.parametrize(
    ("name", "normalised"),
    [
        ("..", ".."),
        ("../model.onnx", "../model.onnx"),
        ("1/../../m", "../m"),
        ("/../m", "../m"),
        ("1/../../../etc/passwd", "../../etc/passwd"),
        ("../shoal-override-x/../../m", "../../m"),
    ],
)
def test_paths_that_lead_outside(name: str, normalised: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        place_files(["file:1/good", f"file:{name}"])
    assert str(raised.value) == (
        f"Invalid file parameter 'file:{name}' with normalized path '{normalised}' must stay within model directory."
    )


@pytest.mark.parametrize(
    "name", ["", ".", "/", "1/..", "1/", "a\0b", "x" * 256, "é" * 128, "a/" * 600 + "b", "\ud800/"]
)
def test_what_can_be_no_file(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected the path of a file below the model's directory, like"):
        place_files([f"file:{name}"])


def test_a_file_is_no_directory() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'file:a/b/c', directory has been created as a file$"):
        place_files(["file:a/b", "file:a/b/c"])
    with pytest.raises(InvalidArgumentError, match=r"'file:a', file has been created as a directory$"):
        place_files(["file:a/b/c", "file:a"])


def test_of_two_with_one_path_the_last_counts() -> None:
    assert place_files(["file:1/m", "file:1//m"]) == {"1/m": "file:1//m"}


def test_there_are_only_so_many() -> None:
    names = [f"file:{number}" for number in range(MAX_FILES)]
    assert len(place_files(names)) == MAX_FILES
    with pytest.raises(InvalidArgumentError, match=r"^1025 files override the model's, expected at most 1024$"):
        place_files([*names, "file:x"])


PARTS = st.one_of(st.sampled_from(["..", ".", "", "1", "model.onnx", "/"]), st.text(max_size=3))


@given(st.lists(st.lists(PARTS, max_size=6).map("/".join), max_size=4))
def test_no_name_leads_outside(names: list[str]) -> None:
    try:
        places = place_files([f"file:{name}" for name in names])
    except InvalidArgumentError:
        return
    assert set(places.values()) <= {f"file:{name}" for name in names}
    for path in places:
        assert os.path.normpath(os.path.join("/models/m", path)) == f"/models/m/{path}"
        assert not any(other.startswith(f"{path}/") for other in places)


def test_files_are_written_for_this_user_alone(temporary: Path) -> None:
    contents = {"file:1/model.onnx": "AAEC", "file:labels.txt": "b25l\r\nCnR3bw==\n", "file:1/empty": ""}
    path, lock = write_files(place_files(contents), contents)
    directory = Path(path)
    assert (directory.parent, stat.S_IMODE(directory.stat().st_mode)) == (temporary, 0o700)
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert found == {"1/model.onnx": b"\0\1\2", "labels.txt": b"one\ntwo", "1/empty": b""}
    os.close(lock)
    remove_files(str(directory))
    assert not directory.exists()


@pytest.mark.parametrize("text", ["A", "AAE", "AA=E", "****", "AAEC\0", "é"])
def test_what_is_no_base64_leaves_nothing_behind(temporary: Path, text: str) -> None:
    contents = {"file:1/good": "AAEC", "file:2/bad": text}
    with pytest.raises(InvalidArgumentError, match=r"^Invalid file parameter 'file:2/bad': expected base64, "):
        write_files(place_files(contents), contents)
    assert list(temporary.iterdir()) == []


def test_a_full_disk_is_the_server_s_fault_and_leaves_nothing_behind(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "write_bytes", full)
    contents = {"file:1/good": "AAEC"}
    with pytest.raises(InternalError, match=r"cannot be written: No space left on device\. Make room in "):
        write_files(place_files(contents), contents)
    assert list(temporary.iterdir()) == []
