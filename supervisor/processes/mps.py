"""--cuda-mps: NVIDIA's MPS for workers on GPUs, started before the first of them, watched, and ended with the server.

    starting ─takes clients─► running ─ended─► started again after a pause: workers that lose it end, and are replaced
        └─not within START_S─► the server does not start

MPS runs within a guard (supervisor/mps_guard.py), in a pipe directory of this server's own, so that it meets no other
MPS of the machine. Runs in the supervisor.
"""

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.open_files import explain_start
from shoal.placement import Machine
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, first, shared, sleep
from shoal.supervisor.mps_guard import CONTROL, LOG_DIRECTORY, PIPE_DIRECTORY, PROGRAM, QUIT_S
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.restarts import Pauses

_log = logging.getLogger(__name__)

#: Seconds that MPS may take until it takes clients, and seconds between two checks of that (ours).
START_S, LOOK_S = 20.0, 0.05
#: The beginning of the names of MPS's programs.
_PROGRAMS = b"nvidia-cuda-mps-"


def check_mps(machine: Machine, path: str | None = None) -> None:
    """Raise InvalidArgumentError where --cuda-mps can have no effect. `path` is where programs are looked for, in place
    of PATH."""
    if not machine.gpus:
        raise InvalidArgumentError("--cuda-mps needs a GPU, and the server would use none; start it without the flag")
    if shutil.which(PROGRAM, path=path) is None:
        raise InvalidArgumentError(
            f"--cuda-mps needs the program {PROGRAM}, which comes with NVIDIA's driver, and none is on the PATH; in a "
            "container, NVIDIA_DRIVER_CAPABILITIES must have 'compute'"
        )


class Mps:
    """MPS's control daemon and its successors."""

    def __init__(self, loop: EventLoop, directory: Path | None) -> None:
        """`directory` is made by each daemon's guard, and removed by it. None: MPS is not wanted, and `start` and
        `stop` do nothing."""
        self._loop = loop
        self._directory = directory
        #: The variables by which processes find this MPS; none where it is not wanted.
        self.environment: Mapping[str, str] = (
            {} if directory is None else {PIPE_DIRECTORY: str(directory), LOG_DIRECTORY: str(directory / "log")}
        )
        # Changed as MPS starts and ends.
        self._child: Child | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Start MPS; returns when it takes clients. Raises UnavailableError if it does not, OSError if the system
        refuses the process."""
        if self._directory is None:
            return
        child = self._spawn()
        waited_s = 0.0
        while not (self._directory / CONTROL).exists():
            if child.is_over or waited_s >= START_S:
                ended = f": it {describe_exit(child.exited.result())}" if child.is_over else ""
                await self._end(child, self._directory)
                raise UnavailableError(
                    f"--cuda-mps: {PROGRAM} does not take clients{ended}. Its log is in the "
                    "server's; start the server without the flag, or see docs/gpu.md"
                )
            await sleep(LOOK_S)
            waited_s += LOOK_S
        _log.info("MPS runs for workers on GPUs (pid %d, %s)", child.pid, self._directory)
        self._loop.start(self._watch(child, self._directory))

    async def stop(self) -> None:
        """End MPS; returns when nothing of it is left."""
        self._is_stopping = True
        if self._child is not None and self._directory is not None:
            await self._end(self._child, self._directory)

    def _spawn(self) -> Child:
        self._child = spawn(self._loop, "MPS guard", ["shoal.supervisor.mps_guard"], self.environment)
        return self._child

    async def _watch(self, child: Child, directory: Path) -> None:
        pauses = Pauses()
        pauses.started(self._loop.now_s())
        while True:
            code = await shared(child.exited)
            _kill_leftovers(directory)
            if self._is_stopping:
                return
            pause_s = pauses.ended(self._loop.now_s())
            _log.error(
                "MPS (pid %d) %s; it is started again in %g s, and workers on GPUs that have lost it are replaced",
                child.pid, describe_exit(code), pause_s,
            )  # fmt: skip
            await sleep(pause_s)
            if self._is_stopping:
                return
            pauses.started(self._loop.now_s())
            child = await self._again()

    async def _again(self) -> Child:
        while True:
            try:
                return self._spawn()
            except OSError as error:
                _log.error("MPS cannot be started: %s; it is tried again in %g s", explain_start(error), START_S)
                await sleep(START_S)

    async def _end(self, child: Child, directory: Path) -> None:
        child.signal(signal.SIGTERM)
        if not await first(child.exited, limit_s=2 * QUIT_S):
            child.signal(signal.SIGKILL)
            await first(child.exited)
        _kill_leftovers(directory)


def mps_directory() -> Path:
    """A new path for a server's MPS: short, since the paths of sockets are."""
    parent = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(parent, f"shoal-mps-{os.getpid()}")


def _kill_leftovers(directory: Path) -> None:
    """Kill the processes of MPS with this pipe directory, which a guard that was killed leaves behind. They are
    sought by their environment, since MPS's server leaves its parent's process group."""
    variable = f"{PIPE_DIRECTORY}={directory}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if _PROGRAMS in (process / "cmdline").read_bytes():
                variables = (process / "environ").read_bytes().split(b"\0")
                if variable in variables:
                    os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # the process has ended meanwhile, or is another user's
            continue
