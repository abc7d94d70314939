"""The server as a container runs it: process 1, no privileges, nothing to write to but a small /dev/shm."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, descendants

#: A container runtime in one line: namespaces of its own, in which root has no power over the machine.
NAMESPACES = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
#: Docker's /dev/shm, and a read-only root.
CONTAINER = "mount -t tmpfs -o size=64m tmpfs /dev/shm; mount -o remount,bind,ro /"
ROOT = Path(__file__).parents[2]


def in_container(*command: str) -> list[str]:
    return [*NAMESPACES, "sh", "-ec", f'{CONTAINER}; exec "$@"', "sh", *command]


@pytest.fixture
def container() -> Iterator[Server]:
    probe = subprocess.run(in_container("true"), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    # Whether one may make namespaces is the kernel's and the container's decision (seccomp, user.max_user_namespaces).
    if probe.returncode:
        pytest.skip(f"NOT CHECKED: a container's start, since this user may make no namespaces: {probe.stderr.strip()}")
    command = [sys.executable, "-c", "from shoal.cli import tritonserver; raise SystemExit(tritonserver())"]
    command += [f"--model-repository={SAMPLES}", "--http-address=127.0.0.1", "--http-port=0", "--metrics-port=0"]
    command += ["--allow-grpc=false"]
    with Server(
        subprocess.Popen(in_container(*command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ) as server:
        yield server


def test_it_serves_and_ends_as_process_1(container: Server) -> None:
    assert container.read_log(b"Started HTTPService at 127.0.0.1:"), container.log.decode()
    assert container.read_log(b"\n", start=container.log.index(b"Started HTTPService"))
    found = re.search(rb"Started HTTPService at 127\.0\.0\.1:([0-9]+)", container.log)
    assert found
    request = (SAMPLES / "digits" / "request.json").read_bytes()
    reply = fetch(int(found[1]), "/v2/models/digits/infer", request)
    assert (reply.status, b'"probabilities"' in reply.body) == (200, True)

    process_1 = descendants(container.process.pid)[0]
    assert re.search(r"^NSpid:\t.*\t1$", Path(f"/proc/{process_1}/status").read_text(), re.MULTILINE)
    os.kill(process_1, signal.SIGTERM)
    assert container.wait() == 0
    assert b"Signal (15) received." in container.log
