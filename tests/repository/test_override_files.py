"""override_files.py: which directories a sweep removes, and that one that is being made or taken over is not lost."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from shoal import temporary_folders
from shoal.repository import override_files


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_no_process_has_locked_is_removed(temporary: Path) -> None:
    directory, lock = override_files.make()
    (Path(directory) / "1").mkdir()
    (Path(directory) / "1" / "model.py").touch()
    second = temporary_folders.hold(directory)
    os.close(lock)
    override_files.sweep()
    assert list(temporary.iterdir()) == [Path(directory)]
    os.close(second)
    override_files.sweep()
    assert list(temporary.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        temporary_folders.hold(directory)


def test_other_directories_and_links_stay(temporary: Path) -> None:
    """A link could lead to another user's files, or out of the directory for temporary files. On NFS, locks of
    directories are not shown to other machines."""
    (temporary / "shoal-override-abcdefgh").mkdir()  # of a version that did not lock
    (temporary / "kept").mkdir()
    (temporary / f"{override_files.PREFIX}{uuid4()}-abcdefgh").mkdir()  # of another machine, or before a boot
    prefix = override_files._prefix()
    (temporary / f"{prefix}link").symlink_to(temporary / "kept")
    (temporary / f"{prefix}file").touch()
    before = sorted(temporary.iterdir())
    override_files.sweep()
    assert sorted(temporary.iterdir()) == before


def test_a_directory_that_a_sweep_finds_before_it_is_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, mkdtemp = list[str](), tempfile.mkdtemp

    def swept(prefix: str) -> str:
        made.append(mkdtemp(prefix=prefix))
        if len(made) == 1:
            override_files.sweep()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    directory, lock = override_files.make()
    os.close(lock)
    assert made[1:] == [directory]
    assert list(temporary.iterdir()) == [Path(directory)]


def test_without_a_directory_for_temporary_files_nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poller of a server on a read-only file system ended with a traceback, and the server with it."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    override_files.sweep()


def test_where_the_boot_has_no_id_nothing_is_swept(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_folders, "_BOOT_ID", temporary / "missing")
    directory, lock = override_files.make()
    os.close(lock)
    override_files.sweep()
    assert list(temporary.iterdir()) == [Path(directory)]


def test_a_copy_is_swept_once_it_is_adopted_and_unlocked(temporary: Path) -> None:
    """A new server of a version that locks nothing may use it: another server's sweep removed it there."""
    (temporary / "files" / "1").mkdir(parents=True)
    (temporary / "files" / "1" / "model.py").touch()
    copy = override_files.make_copy(temporary / "files")
    override_files.sweep()
    assert (copy / "1" / "model.py").samefile(temporary / "files" / "1" / "model.py")
    adopted, lock = override_files.adopt(str(copy))
    override_files.sweep()
    assert sorted(temporary.iterdir()) == sorted([temporary / "files", Path(adopted)])
    os.close(lock)
    override_files.sweep()
    assert list(temporary.iterdir()) == [temporary / "files"]


def test_a_directory_is_locked_on_a_file_system_that_counts_no_links(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as removed, and `make` made one after the other without an end."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda _fd: SimpleNamespace(st_nlink=0))
        lock = temporary_folders.hold(temporary)
    os.close(lock)
