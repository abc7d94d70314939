"""supervisor/watched_files.py: files are read again when they change, however they are replaced. A disk that hangs is
simulated by a pipe that no writer has opened yet."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.watched_files import LOOK_S, SLOW_S, WatchedFiles
from tests.supervisor.clock import ClockLoop


class Watched:
    """A watched file; `contents` are all that have been read of it."""

    def __init__(self, clock: ClockLoop, path: Path) -> None:
        self._clock, self._path = clock, path
        self.loop = EventLoop(clock)
        self.contents: list[str] = []
        self.files = WatchedFiles(self.loop, [str(path), ""], self._read)

    def _read(self) -> Callable[[], None]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            text = "none"
        return lambda: self.contents.append(text)

    def look(self) -> None:
        self.files.look()
        self._clock.until(self.files._looked.done)

    def reload(self) -> bool:
        reloaded = self.loop.begin(self.files.reload())
        self._clock.until(reloaded.done)
        return reloaded.result()


def test_each_change_is_seen_once(clock: ClockLoop, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("1")
    watched = Watched(clock, path)

    def changes() -> list[str]:
        watched.contents.clear()
        watched.look()
        watched.look()
        return watched.contents

    assert changes() == []
    path.write_text("22")
    assert changes() == ["22"]
    os.utime(path, ns=(1, 1))
    assert changes() == ["22"]
    part = tmp_path / "part"
    part.write_text("33")
    os.utime(part, ns=(1, 1))
    part.rename(path)  # the same size and time
    assert changes() == ["33"]
    path.unlink()
    assert changes() == ["none"]
    path.write_text("22")
    assert changes() == ["22"]
    assert watched.reload()
    assert watched.contents == ["22", "22"]
    assert changes() == []


def test_without_a_file_there_is_nothing_to_read(clock: ClockLoop) -> None:
    files = WatchedFiles(EventLoop(clock), [""], lambda: pytest.fail("it is read"))
    files.watch()
    files.look()
    clock.until(files._looked.done)
    assert clock.run(files.reload())


def test_a_disk_that_hangs_stops_neither_the_loop_nor_sighup_and_is_read_in_the_end(
    clock: ClockLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    watched = Watched(clock, path)
    watched.files.watch()
    clock.until(watched.files._looked.done)
    os.mkfifo(path)
    clock.pass_time(LOOK_S)  # the look at the pipe has begun
    reloaded = watched.loop.begin(watched.files.reload())
    clock.pass_time(SLOW_S + LOOK_S)
    assert not reloaded.result()
    assert caplog.messages == [
        f"{path}: not read within 5 s, their disk is slow or hangs. What was read before stays in force"
    ]
    spare = tmp_path / "spare"
    os.link(path, spare)
    beside = tmp_path / "beside"
    beside.write_text("new")
    with spare.open("w") as pipe:
        beside.rename(path)
        pipe.write("old")
    clock.until(watched.files._looked.done)
    assert watched.contents == ["old", "new"]


def test_an_unexpected_error_is_raised_in_the_loop_and_the_next_change_is_read(
    clock: ClockLoop, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("1")
    watched = Watched(clock, path)
    path.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        watched.look()
    path.write_text("22")
    watched.look()
    assert watched.contents == ["22"]


def test_files_are_read_once_there_are_descriptors_again(clock: ClockLoop, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("1")
    watched = Watched(clock, path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not watched.reload()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert watched.contents == []
    watched.look()
    assert watched.contents == ["1"]
