"""Messages and descriptors over a real socket; hand-written bytes as the second witness of the format."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shoal import control
from shoal.control import Channel, Listener
from shoal.messages.from_worker import WorkerConnected
from shoal.messages.message import MessageError
from shoal.messages.shared import Acknowledged, LogChanged, Ping, Refused, SegmentAnnounced, SegmentGone
from shoal.messages.to_client import TraceSettingsChanged
from shoal.tracer.settings import TraceSetting
from tests.messages import receive


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield Channel(left), Channel(right)


def test_message_is_a_zero_byte_and_msgpack() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        Channel(left).send(Acknowledged(7))
        assert right.recv(100) == b"\x00\x93\xacAcknowledged\x00\x07"


def test_descriptors_travel_beside_the_message(ends: tuple[Channel, Channel], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    with path.open("rb") as file:
        ends[0].send(SegmentAnnounced(7, file.fileno()), 3)
    message, seq = receive(ends[1])
    fd = message.segment
    assert (message, seq, os.read(fd, 100)) == (SegmentAnnounced(7, fd), 3, b"hello")
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_large_message_travels_in_memory_of_its_own(
    ends: tuple[Channel, Channel], num_descriptors: Callable[[], int]
) -> None:
    read_fd, write_fd = os.pipe()
    before = num_descriptors()
    settings = {"model": TraceSetting(file="x" * (4 * control.MAX_INLINE_BYTES)).fields}
    ends[0].send(TraceSettingsChanged(settings, read_fd))
    message, _ = receive(ends[1])
    assert message.settings == settings
    os.close(message.outlet)
    assert num_descriptors() == before
    os.close(read_fd)
    os.close(write_fd)


def test_a_copy_of_a_process_sends_whatever_another_thread_was_at(ends: tuple[Channel, Channel]) -> None:
    is_packing, go_on = threading.Event(), threading.Event()

    class Slow(dict[str, object]):
        def items(self) -> Any:
            is_packing.set()
            go_on.wait()
            return super().items()

    slow: Any = Slow(log_format="slow")
    thread = threading.Thread(target=ends[0].send, args=(LogChanged(slow),))
    thread.start()
    is_packing.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        ends[1].send(SegmentGone(1))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert status == 0
    assert receive(ends[0])[0] == SegmentGone(1)
    assert receive(ends[1])[0] == LogChanged({"log_format": "slow"})


def test_end_of_file_is_the_news_of_a_death(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        receive(ends[1])


def test_what_the_dead_had_said_is_heard_though_they_had_not_read_all(ends: tuple[Channel, Channel]) -> None:
    ends[1].send(Ping())
    ends[0].send(Refused(4, "no such file"))
    ends[0].close()
    assert receive(ends[1]) == (Refused(4, "no such file"), 0)
    with pytest.raises(EOFError):
        receive(ends[1])


@pytest.mark.parametrize(("is_all_read", "error"), [(True, BrokenPipeError), (False, ConnectionResetError)])
def test_a_death_is_news_to_who_sends_too(
    ends: tuple[Channel, Channel], is_all_read: bool, error: type[OSError]
) -> None:
    if not is_all_read:
        ends[1].send(Ping())
    ends[0].close()
    with pytest.raises(control.GONE) as raised:
        ends[1].send(Ping())
    assert raised.type is error


@pytest.mark.parametrize(
    ("data", "paths", "error"),
    [
        (b"\0\xc1", ["/dev/null"], MessageError),
        (b"\0\xa2\xff\xfe", ["/dev/null"], MessageError),
        (b"\0", ["/dev/null"], MessageError),
        (b"\1", [], MessageError),
        (b"\1", ["/dev/null", "/dev/null"], MessageError),
        (b"\1", ["/"], MessageError),
        (b"\0\x92\xa4Ping", ["/dev/null"], MessageError),
        (b"", ["/dev/null", "/dev/null"], EOFError),
    ],
    ids=[
        "no msgpack",
        "no text",
        "nothing",
        "no file",
        "an empty file",
        "a directory",
        "cut short",
        "descriptors alone",
    ],
)
def test_what_is_no_message_is_refused_and_its_descriptors_closed(
    data: bytes, paths: Sequence[str], error: type[Exception], num_descriptors: Callable[[], int]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, before = Channel(ours), num_descriptors()
    with theirs, ExitStack() as files:
        fds = [os.open(path, os.O_RDONLY) for path in paths]
        for fd in fds:
            files.callback(os.close, fd)
        socket.send_fds(theirs, [data], fds)
        with pytest.raises(error):
            receive(channel)
    assert num_descriptors() == before - 1
    channel.close()


def test_join_introduces_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener.create()
    monkeypatch.setenv(control.ADDRESS_VARIABLE, listener.address)
    child = control.join(WorkerConnected(3))
    accepted = listener.accept()
    assert accepted is not None
    channel, pid = accepted
    assert pid == os.getpid()
    assert receive(channel) == (WorkerConnected(3), 0)
    child.close()
    channel.close()
    listener.close()


def test_listener_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener.create()
    assert listener.address.startswith("@shoal-")
    monkeypatch.setenv(control.ADDRESS_VARIABLE, listener.address)
    listener.close()
    with pytest.raises(control.GONE) as raised:
        control.join(WorkerConnected(3))
    assert raised.type is ConnectionRefusedError


def test_a_process_whose_supervisor_is_gone_before_it_joins_ends_without_a_word() -> None:
    variables = {**os.environ, control.ADDRESS_VARIABLE: "@shoal-nobody", "SHOAL_INSTANCE": "1"}
    modules = [
        "shoal.batcher.main",
        "shoal.recorder.main",
        "shoal.repository.main",
        "shoal.tracer.main",
        "shoal.workers.worker",
    ]
    processes = [
        subprocess.Popen([sys.executable, "-m", module], env=variables, stderr=subprocess.PIPE) for module in modules
    ]
    for process in processes:  # at once, as they start
        assert process.communicate(timeout=60)[1] == b""
        assert process.returncode in (0, 1)
