"""Control of recordings: by the command line from the start, and by the verb `record` while the server runs.

A client names models, a share and a time, never a path: the folder is that of --record, or one of the server's user.
Runs in the supervisor.
"""

import logging
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.options import ServerOptions
from shoal.recording_settings import RecordRule, read_settings
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, first
from shoal.supervisor.memory.measuring import MeasuringThread
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.ring_readers import RecorderProcess
from shoal.supervisor.questions.questions import Verb
from shoal.supervisor.state_file import state_directory

_log = logging.getLogger(__name__)

#: Recordings that clients have asked for at once (ours).
MAX_LIVE = 64
#: How long a request to record waits until its folder has taken a file (ours).
CHECK_S = 5.0


def why_unwritable(folder: Path) -> str:
    """Why a folder, which is made if it is not there, takes no file; "" if it does."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except FileExistsError:
        return "it is no folder"
    except OSError as error:
        return error.strerror or str(error)


class RecordingControl:
    """The rules in force, and the recorder that they call for. Rules of clients count before that of the command line,
    the latest before earlier ones."""

    def __init__(self, star: Star, control_address: str, options: ServerOptions) -> None:
        self._loop = star.loop
        self._options = options
        self._rule, self._limits = read_settings(options.record_config)
        self.recorder = RecorderProcess(star, control_address)
        self._thread = MeasuringThread("recordings")
        self._checked: Future[str] | None = None  # the last check of the folder, which may be under way
        # Changed by the verb and as time passes: rules of clients by number, with the time at which each ends.
        self._live: dict[int, tuple[RecordRule, float]] = {}
        self._num_asked = 0
        self.verbs: dict[str, Verb] = {"record": self.record}

    async def check(self) -> None:
        """Raise UnavailableError if the folder of --record takes no file. If its disk hangs, the log says so and the
        server starts, since only the recorder waits for that disk."""
        if not self._options.record or not (why := await self._why_unwritable(self._folder())):
            return
        what = f"cannot write recordings into '{self._options.record}': {why}"
        if self._checked is None or self._checked.done():
            raise UnavailableError(f"{what}. Give another --record")
        _log.error("%s. The server starts all the same", what)

    def start(self) -> None:
        """Begin to record as the command line says. Raises OutOfSharedMemoryError."""
        if self._options.record:
            self._apply()

    async def record(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Record a model for the next `for_s` seconds; 0 ends its recording. Without a model nothing changes. Returns
        the folder and the rules in force."""
        model = arguments["model"]
        if model and arguments["for_s"] > 0:
            await self._check_folder()
        if model:
            self._live = {number: each for number, each in self._live.items() if each[0].models != (model,)}
            if arguments["for_s"] > 0:
                self._begin(RecordRule((model,), arguments["sample"]), arguments["for_s"], arguments["max_bytes"])
            else:
                self._apply()
        return self._described()

    async def _check_folder(self) -> None:
        """Raise UnavailableError if the recorder could write no file, before a client relies on the recording."""
        folder = self._folder()
        if not folder:
            raise UnavailableError("the server's user has no home directory; start the server with --record=FOLDER")
        if why := await self._why_unwritable(folder):
            raise UnavailableError(
                f"nothing is recorded: the server's user cannot write into '{folder}': {why}. Have it written to, or "
                "start the server with another --record=FOLDER"
            )

    async def _why_unwritable(self, folder: str) -> str:
        """Why the server's user cannot write into a folder, checked in a thread; "" where it can. While a disk hangs
        there is a single check, for which all requests wait."""
        if self._checked is None or self._checked.done():
            try:
                self._checked = self._thread.answer(partial(why_unwritable, Path(folder)), self._loop)
            except OSError as error:  # no descriptor is left, or no thread starts
                return error.strerror or str(error)
        checked = self._checked
        if await first(checked, limit_s=CHECK_S):
            return checked.result()
        return f"it has taken no file within {CHECK_S:g} s, its disk is slow or hangs"

    def _begin(self, rule: RecordRule, for_s: float, max_bytes: int) -> None:
        if len(self._live) >= MAX_LIVE:
            raise InvalidArgumentError(f"{MAX_LIVE} models are recorded already; end one of these recordings first")
        self._num_asked = number = self._num_asked + 1
        self._live[number] = rule, self._loop.now_s() + for_s
        if max_bytes:
            self._limits = self._limits._replace(max_bytes=max_bytes)
        try:
            self._apply()
        except (OutOfSharedMemoryError, OSError) as error:
            del self._live[number]
            raise UnavailableError(f"nothing is recorded: {error}") from error
        self._loop.call_after(for_s, lambda: self._end(number))

    def _end(self, number: int) -> None:
        if self._live.pop(number, None) is not None:
            self._apply()

    def _apply(self) -> None:
        rules = [rule for _, (rule, _) in sorted(self._live.items(), reverse=True)]
        if self._options.record:
            rules.append(self._rule)
        self.recorder.record(self._folder(), self._limits, rules)

    def _folder(self) -> str:
        """The folder of --record, or one in the state directory; "" without either."""
        if self._options.record:
            return str(Path(self._options.record).absolute())
        state = state_directory(os.environ)
        return "" if state is None else str(state / "recordings")

    def _described(self) -> dict[str, Any]:
        now_s = self._loop.now_s()
        live = [(rule, end_s - now_s) for _, (rule, end_s) in sorted(self._live.items(), reverse=True)]
        rows = [
            {"models": list(rule.models), "sample": rule.sample, "left_s": round(left_s, 3)} for rule, left_s in live
        ]
        if self._options.record:
            rows.append({"models": list(self._rule.models), "sample": self._rule.sample, "left_s": None})
        return {"folder": self._folder(), "max_bytes": self._limits.max_bytes, "recording": rows}
