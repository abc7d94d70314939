"""A real zygote, ordered about by hand: what its children are, and what they have nothing of."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.end_to_end.server import wait_for_deaths

#: ["Begin", 0], after the zero byte that says that it is all here.
GO = b"\x00\x92\xa5Begin\x00"
#: It says what it sees, then waits to be killed.
FACTS = """
import faulthandler, gc, json, os, random, signal, sys
import numpy.random

def main():
    print(json.dumps({
        "pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv, "variable": os.environ["SHOAL_TEST"],
        "threads": len(os.listdir("/proc/self/task")), "collects": gc.isenabled(), "frozen": gc.get_freeze_count() > 0,
        "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")},
        "ignored": [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN],
        "dumps": faulthandler.is_enabled(), "random": [random.random(), numpy.random.random()],
    }))
    signal.pause()
"""


class Zygote:
    """One, and this process in the supervisor's place."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self.process = process
        self.channel = channel

    def hear(self, connection: socket.socket) -> Any:
        """The next message on a connection; None at its end."""
        data = connection.recv(65536)
        return msgpack.unpackb(data[1:]) if data else None

    def order(self, variable: str = "7") -> tuple[socket.socket, int]:
        """Ask for a child: the connection with it, and where its output comes out."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        message = b"\x00\x97\xa4Fork\x00\x91\xa5facts\x81\xaaSHOAL_TEST\xa1" + variable.encode() + b"\xc3\xc3\xc3"
        socket.send_fds(self.channel, [message], [theirs.fileno(), writing, writing])
        theirs.close()
        os.close(writing)
        ours.settimeout(30.0)
        return ours, reading

    def facts(self, variable: str = "7") -> dict[str, Any]:
        """A child from its order to its end by signal 9; what it said of itself."""
        link, output = self.order(variable)
        with link, os.fdopen(output, "rb") as said:
            pid = self.hear(link)[2]
            link.send(GO)
            facts: dict[str, Any] = json.loads(said.readline())
            assert facts["pid"] == pid
            os.kill(pid, signal.SIGKILL)
            assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)
            # The child may have been done before its zygote has closed what came with the order.
            assert self.hear(link) is None
            assert said.read() == b""
        return facts


@contextmanager
def started(directory: Path, source: str, supervisor: int) -> Iterator[Zygote]:
    (directory / "facts.py").write_text(source)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30.0)
    environment = os.environ | {"PYTHONPATH": f"{directory}:{os.environ.get('PYTHONPATH', '')}"}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    environment |= {"SHOAL_ZYGOTE_FD": str(theirs.fileno()), "SHOAL_SUPERVISOR_PID": str(supervisor)}
    command = [sys.executable, "-u", "-m", "shoal.zygote", "test", "facts"]
    with ours, subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], cwd=directory) as process:
        theirs.close()
        try:
            yield Zygote(process, ours)
        finally:
            process.kill()  # it would be waited for for ever


#: It leaves something to be done at its end, and something that must not be.
ENDING = """
import atexit, ctypes, threading

class Last:
    def __del__(self):
        print("freed")

LAST = Last()

def main():
    atexit.register(print, "atexit")
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.fputs(b"library\\n", ctypes.c_void_p(libc.fopen(b"/proc/self/fd/1", b"a")))
    threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
    return 5
"""


@pytest.fixture
def zygote(tmp_path: Path, subreaper: None) -> Iterator[Zygote]:
    with started(tmp_path, FACTS, os.getpid()) as zygote:
        assert zygote.hear(zygote.channel) == ["ZygoteReady", 0]
        yield zygote


def test_a_child_is_its_supervisors_and_like_one_that_was_execd(zygote: Zygote) -> None:
    facts = zygote.facts()
    assert facts["parent"] == os.getpid()
    assert (facts["argv"], facts["variable"], facts["threads"]) == (["facts"], "7", 1)
    assert facts["collects"]
    assert facts["frozen"]
    assert facts["dumps"]
    # The supervisor ends it and is asked for the ledger; SIGPIPE and SIGXFSZ are Python's own. What nohup or a shell's
    # `&` ignored before these tests began is inherited by every process.
    inherited = {number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN}
    own = {signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ}
    assert set(facts["ignored"]) == own | inherited


def test_a_child_has_no_descriptor_but_its_standard_ones(zygote: Zygote) -> None:
    fds = zygote.facts()["fds"]
    assert {number for number, target in fds.items() if target.startswith(("socket:", "anon_inode:"))} == set()
    assert fds["1"] == fds["2"]
    assert fds["1"].startswith("pipe:")
    # libffi of Debian 14, which ctypes calls, keeps its own file open.
    assert {number for number, target in fds.items() if "/libffi.so" not in target} == {"0", "1", "2"}


def test_children_differ_in_their_random_numbers_and_their_environment(zygote: Zygote) -> None:
    one, other = zygote.facts("1"), zygote.facts("2")
    assert not set(one["random"]) & set(other["random"])
    assert (one["variable"], other["variable"]) == ("1", "2")


def test_a_zygote_keeps_nothing_of_its_children(zygote: Zygote) -> None:
    before = os.listdir(f"/proc/{zygote.process.pid}/fd")
    zygote.facts()
    assert os.listdir(f"/proc/{zygote.process.pid}/fd") == before
    children = Path(f"/proc/{zygote.process.pid}/task/{zygote.process.pid}/children")
    assert children.read_text() == ""


def test_a_child_ends_in_order_but_frees_nothing_of_its_zygote_s(tmp_path: Path, subreaper: None) -> None:
    with started(tmp_path, ENDING, os.getpid()) as zygote:
        assert zygote.hear(zygote.channel) == ["ZygoteReady", 0]
        link, output = zygote.order()
        with link, os.fdopen(output, "rb") as said:
            pid = zygote.hear(link)[2]
            link.send(GO)
            lines = said.read().splitlines()
            zygote.process.kill()
            assert lines == [b"thread", b"atexit", b"library"]
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


def test_a_child_that_is_given_up_ends_before_it_begins(zygote: Zygote) -> None:
    link, output = zygote.order()
    pid = zygote.hear(link)[2]
    link.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert os.read(output, 1) == b""
    os.close(output)


def test_a_zygote_that_is_killed_closes_what_was_asked_of_it(zygote: Zygote) -> None:
    os.kill(zygote.process.pid, signal.SIGSTOP)
    link, output = zygote.order()
    os.kill(zygote.process.pid, signal.SIGKILL)
    assert zygote.hear(link) is None
    link.close()
    os.close(output)


def test_the_end_of_the_supervisor_is_the_end_of_a_zygote(zygote: Zygote) -> None:
    zygote.channel.close()
    assert zygote.process.wait(30) == 0


def test_another_process_s_zygote_does_not_begin(tmp_path: Path) -> None:
    with started(tmp_path, FACTS, os.getppid()) as zygote:
        assert zygote.process.wait(30) == 1


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
         "importing facts has started 1 threads"),
        ("import no_such_module", "its imports failed with ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "its imports failed with ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_zygote_that_must_not_fork_says_so(tmp_path: Path, source: str, sentence: str) -> None:
    with started(tmp_path, source, os.getpid()) as zygote:
        assert zygote.hear(zygote.channel) == ["ZygoteUnfit", 0, sentence]
        zygote.channel.close()
        assert wait_for_deaths([zygote.process.pid])


def test_children_outlive_their_zygote(zygote: Zygote) -> None:
    link, output = zygote.order()
    with link, os.fdopen(output, "rb") as said:
        pid = zygote.hear(link)[2]
        zygote.process.kill()
        zygote.process.wait()
        link.send(GO)
        assert json.loads(said.readline())["parent"] == os.getpid()
        assert not select.select([said], [], [], 0)[0]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
