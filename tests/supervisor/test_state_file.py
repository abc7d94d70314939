"""A state file on a disk that hangs, played by a pipe whose reader has yet to come."""

import os
from pathlib import Path
from typing import Any

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.state_file import SETTLE_S, StateFile, StateWriter
from tests.supervisor.clock import ClockLoop


def test_a_disk_that_hangs_stops_neither_the_loop_nor_a_client_for_long_and_gets_the_last_contents(
    clock: ClockLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, loop = tmp_path / "numbers.json", EventLoop(clock)
    to_row: Any = lambda number: {"number": number}  # noqa: E731
    file = StateFile[int](path, "numbers", lambda row: row["number"], to_row)
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
