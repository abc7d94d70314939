"""The limits of processes and of address space: which are too low for a server, and what it says of them."""

import os
import re
import resource
import shlex
import subprocess
from pathlib import Path

import pytest

from shoal.supervisor.process_limits import find_low_limit, num_tasks_left
from tests.end_to_end.command_line import SHOAL

MIB = 1 << 20


@pytest.mark.parametrize(
    ("num_tasks", "nbytes", "sentence"),
    [
        (None, None, "^"),
        (24, 512 * MIB, "^"),
        (23, None, "the server may start 23 processes and threads, and needs 24 .* TasksMax= .* or ulimit -u"),
        (None, 511 * MIB, "may have 511 MiB of address space, and the batcher of one model needs 512. .* or ulimit -v"),
    ],
)
def test_a_limit_that_is_too_low_is_named(num_tasks: int | None, nbytes: int | None, sentence: str) -> None:
    assert re.search(f"{sentence}$", find_low_limit(num_tasks, nbytes))


@pytest.mark.parametrize(
    ("uid", "limit", "groups", "num_tasks"),
    [
        (1000, 50, {}, 50),
        (0, 50, {}, None),
        (1000, resource.RLIM_INFINITY, {"pids.max": "max", "pids.current": "7"}, None),
        (1000, 50, {"pids.max": "40", "pids.current": "12"}, 28),
        (0, 50, {"pids.max": "40", "pids.current": "12"}, 28),
        (0, 50, {"pids.max": "10", "pids.current": "12"}, 0),
        (1000, 50, {"pids.max": "10", "pids.current": "few"}, 50),
        (1000, 50, {"pids.max": "", "pids.current": "12"}, 50),
    ],
)
def test_the_users_limit_and_the_groups_count(
    uid: int, limit: int, groups: dict[str, str], num_tasks: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (limit, limit))
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("8:pids:/docker/1234\n0::/\n")
    (tmp_path / "pids").mkdir()
    for name, text in groups.items():
        (tmp_path / "pids" / name).write_text(f"{text}\n")
    assert num_tasks_left(tmp_path, tmp_path) == num_tasks


def test_a_server_without_address_space_says_so_and_ends(tmp_path: Path) -> None:
    command = shlex.join([*SHOAL, "serve", "--model-repository", str(tmp_path), "--http-port=0", "--grpc-port=0"])
    ended = subprocess.run(
        ["sh", "-c", f"ulimit -v 300000; exec {command}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1
    assert "may have 292 MiB of address space" in ended.stderr
    assert "Traceback" not in ended.stderr
