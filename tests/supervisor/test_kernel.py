"""What a server and `shoal doctor` say where the kernel, a container's filter or the interpreter lacks a call."""

import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import tests.refusing
from shoal.errors import UnavailableError
from shoal.supervisor.kernel import check_kernel, find_lack
from tests.end_to_end.command_line import SHOAL
from tests.refusing import PIDFD_OPEN


def without_pidfd_open(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`shoal` with these arguments, as on Linux 5.2."""
    command = [sys.executable, tests.refusing.__file__, str(PIDFD_OPEN), *SHOAL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_this_machine_lacks_nothing() -> None:
    assert find_lack() == ""
    check_kernel()


def test_a_call_that_the_kernel_refuses_is_named() -> None:
    def refused() -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    assert find_lack((("pidfd_open", refused),)) == (
        f"the kernel, Linux {platform.release()}, refuses pidfd_open: Operation not permitted. Shoal needs Linux 5.3 "
        "or newer, and in a container a seccomp profile that allows the call"
    )


def test_a_call_that_the_interpreter_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(UnavailableError, match="no server can run here: this Python was built without pidfd_open"):
        check_kernel()


def test_a_server_on_an_old_kernel_says_so_and_ends(tmp_path: Path) -> None:
    ended = without_pidfd_open("serve", "--model-repository", str(tmp_path), "--http-port=0", "--grpc-port=0")
    assert ended.returncode == 1
    assert "refuses pidfd_open and pidfd_send_signal: Function not implemented. Shoal needs Linux 5.3" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_doctor_on_an_old_kernel_says_what_keeps_a_server_from_starting() -> None:
    ended = without_pidfd_open("doctor", "--json")
    (row,) = [row for row in json.loads(ended.stdout) if row["subject"] == "kernel"]
    assert ended.returncode == 2
    assert row["state"] == "BAD"
    assert "Shoal needs Linux 5.3 or newer" in row["advice"]
