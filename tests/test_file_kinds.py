"""What lies at a path, and an error where the system cannot tell, on every Python."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from shoal.errors import InvalidArgumentError
from shoal.file_kinds import exists, is_dir, is_file
from shoal.repository.scan import version_directories


def test_a_file_a_directory_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")

    def told(path: Path) -> tuple[bool, bool, bool]:
        return exists(path), is_dir(path), is_file(path)

    assert told(tmp_path) == (True, True, False)
    assert told(tmp_path / "file") == told(tmp_path / "link") == (True, False, True)
    assert told(tmp_path / "fifo") == (True, False, False)
    for name in ("nothing", "loop", "file/below", "nul\0"):
        assert told(tmp_path / name) == (False, False, False)


@pytest.mark.parametrize("ask", [exists, is_dir, is_file])
def test_a_name_that_no_file_can_have_is_an_error(tmp_path: Path, ask: object) -> None:
    assert callable(ask)
    with pytest.raises(OSError, match="File name too long"):
        ask(tmp_path / ("n" * 300))


def test_a_disk_that_fails_does_not_empty_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1").mkdir()

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "stat", fail)
    monkeypatch.setattr(os, "stat", fail)  # of which os.path.isdir makes False
    with pytest.raises(InvalidArgumentError, match="Input/output error"):
        version_directories(tmp_path)
