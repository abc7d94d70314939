"""log_writer.py: whatever stands behind a descriptor, a write ends soon, and says whether all was written."""

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.log_writer import PATIENCE_MS, UNREAD, PatientWriter


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page: its reading end, and its writing end, which blocks."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_a_full_disk_loses_the_line_and_is_named() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer = PatientWriter(full.fileno())
        assert not writer.write(b"lost\n")
        assert writer.problem == "could not be written (No space left on device)"
        writer.close()


def test_a_pipe_that_is_not_read_is_never_waited_for_though_its_descriptor_blocks(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = PatientWriter(writing)
    assert os.get_blocking(writing)
    assert writer.write(b"x" * 4096, patience_ms=0)
    assert not writer.write(b"y", patience_ms=0)
    assert writer.problem == UNREAD
    assert os.get_blocking(writing), "the descriptor belongs to others, too"
    assert os.read(reading, 9000) == b"x" * 4096
    assert writer.write(b"z", patience_ms=0)
    assert os.read(reading, 9000) == b"z"
    writer.close()


def test_long_lines_of_two_processes_do_not_run_into_each_other(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)  # room for all: 3 pages a line
    num_lines, both_begin = 40, threading.Barrier(2)

    def write_lines(line: bytes) -> None:
        writer = PatientWriter(writing)
        both_begin.wait(10)
        for _ in range(num_lines):
            assert writer.write(line)
        writer.close()

    lines = [letter * 9999 + b"\n" for letter in (b"x", b"y")]
    with ThreadPoolExecutor(2) as threads:
        for written in [threads.submit(write_lines, line) for line in lines]:
            written.result()
    with open(os.dup(reading), "rb") as log:
        read = [log.readline() for _ in range(2 * num_lines)]
    assert {line: read.count(line) for line in read} == dict.fromkeys(lines, num_lines)


def test_a_long_line_goes_into_a_socket_as_one_piece() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert PatientWriter(ours.fileno()).write(b"x" * 9999)
        assert theirs.recv(20000) == b"x" * 9999


def test_a_process_waits_for_its_readers_no_longer_than_its_patience_in_a_second(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writing = pipe
    clock, waits = Clock(), list[int]()
    writer = PatientWriter(writing, clock)

    def waited(timeout_ms: int) -> bool:
        waits.append(timeout_ms)
        clock.now_s += timeout_ms / 1000
        return False

    monkeypatch.setattr(writer, "_poll", waited)
    assert writer.write(b"x" * 4096)
    for patience_ms in (60, 60, 60):
        assert not writer.write(b"y", patience_ms)
    clock.now_s += 1.0
    assert not writer.write(b"y", 60)
    assert waits == [60, PATIENCE_MS - 60, 0, 60]
    writer.close()


def test_a_reader_who_has_gone(pipe: tuple[int, int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = PatientWriter(writing)
    assert not writer.write(b"lost\n")
    assert writer.problem == "could not be written (Broken pipe)"
    os.close(writing)
    assert not writer.write(b"lost\n")  # nor is a descriptor that is closed an error


def test_a_socket_that_is_not_read_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = PatientWriter(ours.fileno())
        assert writer.write(b"line\n")
        assert theirs.recv(9) == b"line\n"
        while writer.write(b"x" * 4096, patience_ms=0):
            """On, until it is full."""
        assert writer.problem == UNREAD
        theirs.close()
        assert not writer.write(b"y", patience_ms=0)


def test_a_descriptor_that_is_redirected_is_followed(pipe: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = pipe
    own = os.dup(writing)
    writer = PatientWriter(own)
    assert writer.write(b"pipe\n")
    with (tmp_path / "log").open("wb") as file:
        os.dup2(file.fileno(), own)
        assert writer.write(b"file\n")
    assert (os.read(reading, 99), (tmp_path / "log").read_bytes()) == (b"pipe\n", b"file\n")
    os.dup2(writing, own)
    assert writer.write(b"pipe again\n")
    assert os.read(reading, 99) == b"pipe again\n"
    writer.close()
    os.close(own)
