"""supervisor/watched_files.py: files are read again when they change, however they are replaced."""

import os
from pathlib import Path
from typing import Any

from shoal.supervisor.watched_files import WatchedFiles


def test_each_change_is_seen_once(tmp_path: Path) -> None:
    path, calls, loop = tmp_path / "keys", [], Any
    path.write_text("1")
    watched = WatchedFiles(loop, [str(path), ""], lambda: calls.append(1))  # type: ignore[arg-type]

    def changes() -> int:
        before = len(calls)
        watched.look()
        watched.look()
        return len(calls) - before

    assert changes() == 0
    path.write_text("22")
    assert changes() == 1
    os.utime(path, ns=(1, 1))
    assert changes() == 1
    part = tmp_path / "part"
    part.write_text("33")
    os.utime(part, ns=(1, 1))
    part.rename(path)  # the same size and time
    assert changes() == 1
    path.unlink()
    assert changes() == 1
    path.write_text("22")
    assert changes() == 1
    watched.reload()
    assert changes() == 0
    assert len(calls) == 6


def test_without_a_file_there_is_nothing_to_read() -> None:
    calls: list[int] = []
    watched = WatchedFiles(Any, [""], lambda: calls.append(1))  # type: ignore[arg-type]
    watched.look()
    watched.reload()
    assert calls == []
