"""The process around NVIDIA's MPS control daemon, `python -m shoal.supervisor.mps_guard`: nothing of MPS outlives it.

MPS (Multi-Process Service) lets the work of several processes overlap on one GPU. Its control daemon forks a server
when the first process connects, and neither ends with its parent. So the guard takes them in as their next parent, and
ends them when the daemon has ended, when the supervisor asks by SIGTERM, and when the supervisor has died: the kernel
then sends the same signal.

    exec daemon -f ─► wait ─SIGTERM─► `quit` to the daemon ─at most QUIT_S─► SIGKILL to the rest ─► directory removed
                          └─daemon ended─────────────────────────────────►
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from shoal.process import adopt_orphans, die_with_parent, set_title

#: The program, which comes with NVIDIA's driver, and the variables that name its directories.
PROGRAM = "nvidia-cuda-mps-control"
PIPE_DIRECTORY, LOG_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
#: The part of the pipe directory that is there once the daemon takes clients.
CONTROL = "control"
#: How long MPS may take to quit (ours); MPS waits for the processes that are connected.
QUIT_S = 5.0


def main() -> int:
    """Run the daemon until it ends or SIGTERM comes; returns the daemon's exit code, 0 after SIGTERM."""
    parent = os.getppid()
    wakened, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    set_title("MPS guard")
    directory = Path(os.environ[PIPE_DIRECTORY])
    shutil.rmtree(directory, ignore_errors=True)
    for each in (directory, Path(os.environ[LOG_DIRECTORY])):
        each.mkdir(mode=0o700, parents=True)
    daemon = subprocess.Popen([PROGRAM, "-f"], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
    try:
        while daemon.poll() is None:
            select.select([wakened], [], [])
            if signal.SIGTERM in os.read(wakened, 64):
                quit_daemon(daemon)
                return 0
        return daemon.returncode if daemon.returncode >= 0 else 128 - daemon.returncode
    finally:
        end_children()
        shutil.rmtree(directory, ignore_errors=True)


def quit_daemon(daemon: "subprocess.Popen[bytes]") -> None:
    """Ask the daemon to quit, as NVIDIA documents it; returns when it has, or after QUIT_S."""
    end_s = time.monotonic() + QUIT_S
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run([PROGRAM], input=b"quit\n", stdout=subprocess.DEVNULL, timeout=QUIT_S, check=False)
        daemon.wait(max(0.0, end_s - time.monotonic()))


def end_children() -> None:
    """Kill all processes below this one, and wait for them: children of a dead process become children of this one."""
    while True:
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
