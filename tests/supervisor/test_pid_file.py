"""The pid file: one server at a time, told by its lock and not by a number that another process may have."""

import os
from pathlib import Path

import pytest

from shoal.supervisor.pid_file import PidFile, PidFileError, await_end, running_server


def test_one_server_has_the_file_until_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    assert running_server(path) is None
    pid_file = PidFile.take(path)
    assert pid_file is not None
    pid_file.write(4711)
    assert (running_server(path), PidFile.take(path)) == (4711, None)
    os.close(pid_file.descriptor)
    assert running_server(path) is None
    assert await_end(path, 0)


def test_a_pid_that_a_killed_server_has_left_is_no_servers(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert running_server(tmp_path / "pid") is None
    taken = PidFile.take(tmp_path / "pid")
    assert taken is not None
    assert running_server(tmp_path / "pid") is None  # not before the server has written its own
    taken.write(7)
    taken.remove()  # by the server whose place process 7 has taken
    assert (tmp_path / "pid").read_text() == "7"
    taken.write(os.getpid())
    taken.remove()
    assert not (tmp_path / "pid").exists()
    os.close(taken.descriptor)


def test_waiting_for_a_server_that_does_not_end_has_a_limit(tmp_path: Path) -> None:
    taken = PidFile.take(tmp_path / "pid")
    assert taken is not None
    taken.write(4711)
    clock = iter([0.0, 61.0])
    assert not await_end(tmp_path / "pid", 60, lambda: next(clock))
    os.close(taken.descriptor)


def test_a_link_and_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(PidFileError, match="remove it"):
            PidFile.take(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(PidFileError, match=r"^the pid file '.*/none/pid' cannot be opened: .*; make its directory$"):
        PidFile.take(tmp_path / "none" / "pid")
