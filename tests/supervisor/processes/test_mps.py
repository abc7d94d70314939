"""supervisor/processes/mps.py and its guard around a program that plays NVIDIA's daemon: real processes."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check.finding import FAKES
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.placement import Gpu, Machine
from shoal.supervisor import mps_guard
from shoal.supervisor.event_loop import EventLoop, sleep
from shoal.supervisor.processes import mps
from shoal.supervisor.processes.mps import Mps, check_mps

GPU = Gpu(0, "GPU-x", "9.0", (0,))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipe directory; the daemon on the PATH is a fake."""
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_MPS", str(tmp_path / "quit"))
    return tmp_path / "mps"


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


def run(loop: EventLoop, flow: Callable[[], Any]) -> None:
    """Run the loop until a flow has ended, and raise what it raises."""
    task = loop.begin(flow())
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():
        loop.run()
    task.result()


def group(directory: Path) -> list[int]:
    """The daemon and its server, as they have noted themselves."""
    return [int((directory / name).read_text()) for name in ("daemon.pid", "server.pid")]


def has_new_group(directory: Path, before: list[int]) -> bool:
    """Whether a daemon has come up after another, whose files may still be there, or vanish while they are read."""
    try:
        return (directory / mps_guard.CONTROL).exists() and group(directory) != before
    except (FileNotFoundError, ValueError):
        return False


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_runs_and_ends_with_all_that_it_has_started(loop: EventLoop, directory: Path) -> None:
    made, pids = Mps(loop, directory), list[int]()

    async def flow() -> None:
        await made.start()
        pids.extend(group(directory))
        assert not any(map(has_ended, pids))
        await made.stop()

    run(loop, flow)
    assert all(map(has_ended, pids))
    assert not directory.exists()
    assert (directory.parent / "quit").exists()  # it was asked first


@pytest.mark.parametrize("victim", ["daemon.pid", "guard"])
def test_it_is_started_again_and_nothing_of_the_first_is_left(
    loop: EventLoop, directory: Path, victim: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = Mps(loop, directory)

    async def flow() -> None:
        await made.start()
        assert made._child is not None
        first = made._child
        before = group(directory)
        os.kill(first.pid if victim == "guard" else before[0], signal.SIGKILL)
        while made._child is first or not has_new_group(directory, before):
            await sleep(0.01)
        while not all(map(has_ended, before)):
            await sleep(0.01)
        await made.stop()

    run(loop, flow)
    assert "it is started again in 0 s, and workers on GPUs that have lost it are replaced" in caplog.text


def test_a_daemon_that_ends_at_once_is_the_reason_why_the_server_does_not_start(
    loop: EventLoop, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / mps_guard.PROGRAM).write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / mps_guard.PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UnavailableError, match=r"^--cuda-mps: nvidia-cuda-mps-control does not take clients: it exit"):
        run(loop, Mps(loop, directory).start)
    assert not directory.exists()


def test_nor_does_it_with_one_that_takes_no_clients(
    loop: EventLoop, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "START_S", 0.1)
    monkeypatch.setattr(mps, "CONTROL", "never")
    with pytest.raises(UnavailableError, match=r"^--cuda-mps: nvidia-cuda-mps-control does not take clients\. Its"):
        run(loop, Mps(loop, directory).start)
    assert not directory.exists()


def test_all_of_it_ends_when_the_supervisor_dies(directory: Path) -> None:
    """As the kernel says it, to the guard."""
    program = (
        "import sys; from pathlib import Path; from shoal.supervisor.event_loop import EventLoop\n"
        "from shoal.supervisor.processes.mps import Mps\n"
        f"loop = EventLoop(); made = Mps(loop, Path({str(directory)!r})); task = loop.begin(made.start())\n"
        "task.add_done_callback(lambda _: loop.stop()); loop.run(); task.result()\n"
        "print(made._child.pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        guard = int(parent.stdout.readline())
        pids = [guard, *group(directory)]
        ends = [os.pidfd_open(pid) for pid in pids]
        parent.kill()
        for end in ends:
            assert select.select([end], [], [], 60)[0]
            os.close(end)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("machine", "path", "sentence"),
    [
        (Machine((0,)), None, "--cuda-mps needs a GPU, and the server would use none"),
        (Machine((0,), (GPU,)), "/nowhere", "--cuda-mps needs the program nvidia-cuda-mps-control, which comes with"),
    ],
)
def test_what_it_needs(machine: Machine, path: str | None, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{sentence}"):
        check_mps(machine, path)


def test_where_it_can_run(directory: Path) -> None:
    assert not directory.exists()
    check_mps(Machine((0,), (GPU,)))
