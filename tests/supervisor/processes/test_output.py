"""output.py: lines within a budget, and a real process whose streams are read."""

import fcntl
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import log
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.children import spawn
from shoal.supervisor.processes.output import ChildOutput, Lines, room_of

S = 1_000_000_000
SAID = "worker simple_0_0 writes more than 65536 bytes a second, or than the log takes: ([0-9]+) lines were dropped"


@given(st.lists(st.tuples(st.integers(0, 1), st.text("ab\n", max_size=9)), max_size=50))
def test_few_lines_pass_unchanged_and_in_order(pieces: list[tuple[int, str]]) -> None:
    lines, passed = Lines(2), [b"", b""]
    for stream, text in pieces:
        if text:
            passed[stream] += lines.feed(stream, text.encode(), S)
            assert passed[stream][-1:] in (b"", b"\n")
    for stream in range(2):
        passed[stream] += lines.feed(stream, b"", S)
        written = "".join(text for number, text in pieces if number == stream).encode()
        assert passed[stream] == written + b"\n" * (written[-1:] not in (b"", b"\n"))
    assert lines.take_dropped(9 * S) == 0


def test_beyond_the_budget_lines_are_dropped_and_counted_until_the_second_is_over() -> None:
    lines = Lines(2)
    line = b"x" * 1023 + b"\n"
    assert lines.feed(1, line * 100, 5 * S) == line * 64
    assert lines.feed(0, b"short\n" * 3, 5 * S + 1) == b""
    assert lines.take_dropped(6 * S - 1) == 0
    assert lines.take_dropped(6 * S) == 36 + 3
    assert lines.take_dropped(6 * S) == 0
    assert lines.feed(1, line, 6 * S) == line


def test_output_without_room_is_dropped_and_counted() -> None:
    lines = Lines(1)
    assert lines.feed(0, b"one\ntwo\nthree\n", S, room=9) == b"one\ntwo\n"
    assert lines.feed(0, b"four\n", S + 1, room=0) == b""
    assert lines.take_dropped(2 * S) == 2


def test_half_of_a_pipe_is_for_workers() -> None:
    reading, writing = os.pipe()
    capacity = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as pipe:
        assert room_of(pipe) == capacity // 2
        os.write(writing, b"x" * 1000)
        assert room_of(pipe) == capacity // 2 - 1000
        os.write(writing, b"x" * (capacity // 2))
        assert room_of(pipe) == 0
        reader.read(capacity)
        assert room_of(pipe) == capacity // 2


def test_what_is_no_pipe_has_room(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert room_of(file) == sys.maxsize
    assert room_of(io.StringIO()) == sys.maxsize


def test_after_a_drop_nothing_of_that_second_passes() -> None:
    lines = Lines(1)
    assert lines.feed(0, b"x" * 60_000 + b"\n", S) != b""
    assert lines.feed(0, b"y" * 9000 + b"\n", S) == b""
    assert lines.feed(0, b"z\n", S) == b""
    assert lines.num_dropped == 2


def test_an_endless_line_is_broken() -> None:
    lines = Lines(1)
    assert lines.feed(0, b"x" * 16384, S) == b""
    assert lines.feed(0, b"x", S) == b"x" * 16385 + b"\n"


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 70_000)), max_size=30))
def test_no_second_costs_more_than_the_budget(writes: list[tuple[int, int]]) -> None:
    lines, now_ns = Lines(1), S
    passed = list[tuple[int, int]]()
    for pause_ms, nbytes in writes:
        now_ns += pause_ms * 1_000_000
        passed.append((now_ns, len(lines.feed(0, b"x\n" * (nbytes // 2 + 1), now_ns))))
    for start_ns, _ in passed:
        # A second that begins within one of ours ends within the next.
        assert sum(size for at_ns, size in passed if start_ns <= at_ns < start_ns + S) <= 2 * 65536


def run_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> ChildOutput:
    """A captured child that has ended, and its output, finished."""
    (tmp_path / "child_of_test.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    loop = EventLoop()
    child = spawn(loop, "test", ["child_of_test"], {}, captured=True)
    output = ChildOutput(loop, "simple_0_0", child)
    output.start()

    def ended() -> None:
        output.finish()
        loop.stop()

    loop.after(child.exited, ended)
    loop.run()
    return output


def test_both_streams_come_through_and_the_end_of_stderr_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    num_descriptors: Callable[[], int],
) -> None:
    before = num_descriptors()
    output = run_child(
        tmp_path,
        monkeypatch,
        "import os, signal, sys\n"
        "print('one'); print('two')\n"
        "print('x' * 5000, file=sys.stderr); sys.stderr.write('no end of line')\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert capfd.readouterr() == ("one\ntwo\n", "x" * 5000 + "\nno end of line\n")
    assert output.tail == "x" * (4096 - 15) + "\nno end of line"
    assert num_descriptors() == before + 1  # the loop's epoll


@contextmanager
def full_disk() -> Iterator[TextIO]:
    with open("/dev/full", "w") as file:
        yield file


@contextmanager
def nobody_who_reads() -> Iterator[TextIO]:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        yield pipe


@pytest.mark.parametrize("log_of", [full_disk, nobody_who_reads])
def test_what_cannot_be_written_is_dropped_and_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    log_of: Callable[[], AbstractContextManager[TextIO]],
) -> None:
    with log_of() as file:
        monkeypatch.setattr(sys, "stderr", file)
        output = run_child(tmp_path, monkeypatch, "raise ValueError")
        monkeypatch.undo()
    (said,) = (re.fullmatch(SAID, record.getMessage()) for record in caplog.records)
    assert said is not None
    assert said[1] == str(output.tail.count("\n"))
    assert output.tail.endswith("ValueError\n")


def test_a_process_that_outlives_the_worker_does_not_hold_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_child(
        tmp_path,
        monkeypatch,
        "import subprocess, sys\n"
        "subprocess.Popen(['cat'], stdin=subprocess.PIPE, start_new_session=True)\n"
        "print('done', flush=True)\n"
        "import os; os._exit(0)",
    )
    assert capfd.readouterr() == ("done\n", "")


def test_a_flood_is_cut_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run_child(tmp_path, monkeypatch, "import os\nfor _ in range(100): os.write(1, b'some words\\n' * 1000)")
    passed = capfd.readouterr().out.splitlines()
    assert set(passed) == {"some words"}
    said = [re.fullmatch(SAID, record.getMessage()) for record in caplog.records]
    assert said
    assert len(passed) + sum(int(each[1]) for each in said if each) == 100_000


def test_in_the_json_format_what_a_model_prints_is_an_object_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "is_json", lambda: True)
    own = '{"time":"2024-05-20T20:03:25.829575Z","message":"its own log"}'
    run_child(tmp_path, monkeypatch, f"print('a\\x1b\\udc80'.encode('utf-8', 'replace')); print({own!r})")
    printed, unchanged = capfd.readouterr().out.splitlines()
    assert unchanged == own
    found = json.loads(printed)
    assert (found["level"], found["process"], found["instance"], found["stream"]) == (
        "info", "worker", "simple_0_0", "stdout",
    )  # fmt: skip
    assert found["pid"] > 0
