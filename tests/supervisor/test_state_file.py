"""A state file on a disk that hangs, simulated by a pipe that no reader has opened yet."""

import os
from pathlib import Path
from typing import Any

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory import measuring
from shoal.supervisor.state_file import SETTLE_S, StateFile, StateWriter
from tests.supervisor.clock import ClockLoop


def numbers(path: Path) -> StateFile[int]:
    to_row: Any = lambda number: {"number": number}  # noqa: E731
    return StateFile[int](path, "numbers", lambda row: row["number"], to_row)


def test_a_disk_that_hangs_stops_neither_the_loop_nor_a_client_for_long_and_gets_the_last_contents(
    clock: ClockLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, loop = tmp_path / "numbers.json", EventLoop(clock)
    file = numbers(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    os.mkfifo(beside)
    writer = StateWriter(file, loop)
    writer.write([1])
    clock.settle()
    for number in (2, 3):
        writer.write([number])
    settled = loop.begin(writer.settle())
    clock.pass_time(SETTLE_S - 0.1)
    assert not settled.done()
    clock.pass_time(0.2)
    settled.result()
    assert f"numbers: {path} has not been written within 5 s; a restart may forget the last" in caplog.text
    reader = os.open(beside, os.O_RDONLY | os.O_NONBLOCK)
    clock.until(writer._written.done)
    os.close(reader)
    assert file.read() == [3]
    assert [each.name for each in tmp_path.iterdir()] == ["numbers.json"]
    clock.run(writer.settle())


def test_what_is_not_written_yet_is_written_when_the_loop_has_ended(clock: ClockLoop, tmp_path: Path) -> None:
    file = numbers(tmp_path / "numbers.json")
    writer = StateWriter(file, EventLoop(clock))
    writer.close()
    assert not file.read()
    writer.write([1])
    writer.close()
    assert file.read() == [1]


def hanging(clock: ClockLoop, directory: Path) -> "tuple[StateFile[int], StateWriter[int], Path]":
    """A file and its writer, which has begun to write [1] to a disk that hangs, until the pipe beside it is read."""
    file, beside = numbers(directory / "numbers.json"), directory / f".numbers.json.{os.getpid()}"
    os.mkfifo(beside)
    writer = StateWriter(file, EventLoop(clock))
    writer.write([1])
    clock.settle()
    return file, writer, beside


def test_the_last_contents_are_written_behind_those_that_the_disk_has_kept_waiting(
    clock: ClockLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "LAST_S", 60.0)
    file, writer, beside = hanging(clock, tmp_path)
    writer.write([2])
    reader = os.open(beside, os.O_RDONLY | os.O_NONBLOCK)
    writer.close()
    os.close(reader)
    assert file.read() == [2]


def test_a_file_that_is_held_is_another_servers_until_it_is_released(clock: ClockLoop, tmp_path: Path) -> None:
    """At an upgrade the old server wrote its last contents over those of the new one."""
    file = numbers(tmp_path / "numbers.json")
    old, new = (StateWriter(file, EventLoop(clock)) for _ in range(2))
    old.write([1])
    clock.until(old._loop.begin(old.hold()).done)
    assert file.read() == [1]
    old.check_held()
    new.is_held = True
    new.write([2])
    clock.settle()
    assert file.read() == [1]
    new.release()
    clock.until(new._written.done)
    assert file.read() == [2]
    old.write([3])
    with pytest.raises(ValueError, match=r"numbers have changed since .*numbers.json was read"):
        old.check_held()
    clock.settle()
    old.close()
    assert file.read() == [2]


def test_what_has_changed_in_a_held_file_is_written_when_the_upgrade_has_failed(
    clock: ClockLoop, tmp_path: Path
) -> None:
    file = numbers(tmp_path / "numbers.json")
    writer = StateWriter(file, EventLoop(clock))
    clock.run(writer.hold())
    writer.write([1])
    clock.run(writer.settle())
    assert file.read() == []
    writer.release()
    writer.check_held()
    clock.until(writer._written.done)
    assert file.read() == [1]


def test_a_file_is_not_held_as_long_as_its_disk_hangs(clock: ClockLoop, tmp_path: Path) -> None:
    file, writer, beside = hanging(clock, tmp_path)
    writer.write([2])
    held = writer._loop.begin(writer.hold())
    clock.pass_time(SETTLE_S + 0.1)
    assert str(held.exception()) == f"numbers: {tmp_path / 'numbers.json'} has not been written within 5 s"
    reader = os.open(beside, os.O_RDONLY | os.O_NONBLOCK)
    clock.until(writer._loop.begin(writer.hold()).done)
    os.close(reader)
    assert file.read() == [2]


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    clock: ClockLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(measuring, "LAST_S", 0.0)
    _, writer, beside = hanging(clock, tmp_path)
    writer.close()
    assert "has not been written within" in caplog.text
    reader = os.open(beside, os.O_RDONLY | os.O_NONBLOCK)
    clock.until(writer._written.done)
    os.close(reader)
