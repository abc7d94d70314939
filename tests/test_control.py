"""Messages and descriptors over a real socket; hand-written bytes as the second witness of the format."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import control
from shoal.control import Channel, Listener


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield Channel(left), Channel(right)


def test_message_is_a_zero_byte_and_msgpack() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        Channel(left).send({"op": "ack", "seq": 7})
        assert right.recv(100) == b"\x00\x82\xa2op\xa3ack\xa3seq\x07"


def test_descriptors_travel_beside_the_message(ends: tuple[Channel, Channel], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    with path.open("rb") as file:
        ends[0].send({"op": "x"}, [file.fileno()])
    message, (fd,) = ends[1].receive()
    assert (message, os.read(fd, 100)) == ({"op": "x"}, b"hello")
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_large_message_travels_in_memory_of_its_own(
    ends: tuple[Channel, Channel], num_descriptors: Callable[[], int]
) -> None:
    read_fd, write_fd = os.pipe()
    before = num_descriptors()
    config = {"op": "model", "config": "x" * (4 * control.MAX_INLINE_BYTES)}
    ends[0].send(config, [read_fd])
    message, (fd,) = ends[1].receive()
    assert message == config
    os.close(fd)
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

    thread = threading.Thread(target=ends[0].send, args=(Slow(op="slow"),))
    thread.start()
    is_packing.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        ends[1].send({"op": "quick"})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert status == 0
    assert ends[0].receive()[0] == {"op": "quick"}
    assert ends[1].receive()[0] == {"op": "slow"}


def test_end_of_file_is_the_news_of_a_death(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()


def test_what_the_dead_had_said_is_heard_though_they_had_not_read_all(ends: tuple[Channel, Channel]) -> None:
    ends[1].send({"op": "unread"})
    ends[0].send({"op": "failed", "sentence": "no such file"})
    ends[0].close()
    assert ends[1].receive() == ({"op": "failed", "sentence": "no such file"}, [])
    with pytest.raises(EOFError):
        ends[1].receive()


@pytest.mark.parametrize(("is_all_read", "error"), [(True, BrokenPipeError), (False, ConnectionResetError)])
def test_a_death_is_news_to_who_sends_too(
    ends: tuple[Channel, Channel], is_all_read: bool, error: type[OSError]
) -> None:
    if not is_all_read:
        ends[1].send({"op": "unread"})
    ends[0].close()
    with pytest.raises(control.GONE) as raised:
        ends[1].send({"op": "x"})
    assert raised.type is error


@pytest.mark.parametrize(
    "data",
    [b"\0\xc1", b"\0\xa2\xff\xfe", b"\0", b"\1", b"\0\x81\xa2op"],
    ids=["no msgpack", "no text", "nothing", "no descriptor", "cut short"],
)
def test_what_is_no_message_ends_the_connection(data: bytes, num_descriptors: Callable[[], int]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, before = Channel(ours), num_descriptors()
    with theirs, open("/dev/null", "rb") as file:
        socket.send_fds(theirs, [data], [file.fileno()] if data[0] == 0 else [])
        with pytest.raises(EOFError, match="no message"):
            channel.receive()
    assert num_descriptors() == before - 1
    channel.close()


def test_join_introduces_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener.create()
    monkeypatch.setenv(control.ADDRESS_VARIABLE, listener.address)
    child = control.join("worker", instance=3)
    accepted = listener.accept()
    assert accepted is not None
    channel, pid = accepted
    assert pid == os.getpid()
    assert channel.receive() == ({"op": "join", "kind": "worker", "pid": os.getpid(), "instance": 3}, [])
    child.close()
    channel.close()
    listener.close()


def test_listener_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener.create()
    assert listener.address.startswith("@shoal-")
    monkeypatch.setenv(control.ADDRESS_VARIABLE, listener.address)
    listener.close()
    with pytest.raises(control.GONE) as raised:
        control.join("worker")
    assert raised.type is ConnectionRefusedError


def test_a_process_whose_supervisor_is_gone_before_it_joins_ends_without_a_word() -> None:
    variables = {**os.environ, control.ADDRESS_VARIABLE: "@shoal-nobody", "SHOAL_INSTANCE": "1"}
    modules = ["shoal.batcher.batcher", "shoal.repository.main", "shoal.tracer.main", "shoal.workers.worker"]
    processes = [
        subprocess.Popen([sys.executable, "-m", module], env=variables, stderr=subprocess.PIPE) for module in modules
    ]
    for process in processes:  # at once, as they start
        assert process.communicate(timeout=60)[1] == b""
        assert process.returncode in (0, 1)
