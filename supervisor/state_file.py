"""A file of state that outlives the server, such as rollouts and shadows. Runs in the supervisor.

One JSON object, {"version": 1, "repositories": [...], NAME: [rows]}, where NAME says what is kept. It is written beside
and renamed: a reader sees the old contents or the new ones, whole. A server of other model repositories ignores the
file. Its default path is NAME-PORT.json in the state directory of systemd or of the user.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from shoal.errors import ShoalError
from shoal.model_config.files import read
from shoal.supervisor.event_loop import EventLoop, first
from shoal.supervisor.memory.measuring import LAST_S, MeasuringThread

_log = logging.getLogger(__name__)
_FORMAT = 1
#: The most bytes of a file that is read (ours): 20,000 rollouts.
MAX_NBYTES = 16 << 20
#: How long a client that has changed what is kept waits for the disk (ours); the change is in force.
SETTLE_S = 5.0

T = TypeVar("T")


class StateFile(Generic[T]):
    """One file, of values of one kind; without a path nothing is kept."""

    def __init__(
        self, path: Path | None, name: str, from_row: Callable[[Any], T], to_row: Callable[[T], Mapping[str, Any]],
        repositories: Sequence[object] = (),
    ) -> None:  # fmt: skip
        """`name` is the key of the rows in the file, a noun in the plural. `from_row` raises LookupError, TypeError,
        ValueError or ShoalError for a malformed row."""
        self.path = path
        self.name = name
        self._from_row = from_row
        self._to_row = to_row
        self._repositories = sorted(map(str, repositories))

    def read(self) -> list[T]:
        """The values in the file; none if there is no file. A malformed row is logged and left out.

        An unreadable file is logged and counts as empty. A file that is not in this format is renamed to NAME.damaged,
        so that the next `write` does not destroy a file that can be repaired by hand.
        """
        found = []
        for row in self._rows():
            try:
                found.append(self._from_row(row))
            except (LookupError, TypeError, ValueError, ShoalError) as error:
                self._complain(error)
        return found

    def _rows(self) -> list[Any]:
        if self.path is None:
            return []
        try:
            text = read(self.path, MAX_NBYTES + 1)
            if len(text) > MAX_NBYTES:
                raise ValueError(f"it has more than {MAX_NBYTES} bytes")
            found = json.loads(text)
            if type(found) is not dict or found.get("version") != _FORMAT or type(found.get(self.name)) is not list:
                raise ValueError(f'it is no object of JSON with "version": {_FORMAT} and a list "{self.name}"')
        except FileNotFoundError:
            return []
        except OSError as error:
            self._complain(error)
            return []
        except (ValueError, RecursionError) as error:
            self._complain(error)
            self._set_aside(self.path)
            return []
        if found.get("repositories") != self._repositories:
            _log.info("%s in %s are of other model repositories, and are ignored", self.name, self.path)
            return []
        rows: list[Any] = found[self.name]
        return rows

    def _complain(self, error: object) -> None:
        _log.error("%s of before cannot be read from %s: %s", self.name, self.path, error)

    def not_written(self, seconds: float) -> str:
        """The sentence that the file is still being written after so long."""
        return f"{self.name}: {self.path} has not been written within {seconds:g} s"

    def _set_aside(self, path: Path) -> None:
        beside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(beside)
        except OSError as error:
            _log.error("%s cannot be renamed to %s: %s", path, beside, error)
        else:
            _log.error("%s is now %s", path, beside)

    def write(self, values: Iterable[T]) -> None:
        """Replace the file's contents. An error is logged, not raised: a rollout goes on without its file."""
        if self.path is None:
            return
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("w", encoding="utf-8") as file:
                rows = [self._to_row(each) for each in values]
                said = {"version": _FORMAT, "repositories": self._repositories, self.name: rows}
                json.dump(said, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            _log.error("%s cannot be kept in %s: %s; a restart forgets them", self.name, self.path, error)
            with suppress(OSError):
                beside.unlink()


class StateWriter(Generic[T]):
    """Replaces a state file's contents in a thread: a disk that is slow, or one over a network that hangs, must not
    hold up the event loop.

    At an upgrade the file has one writer at a time: the old server until the upgrade begins, then none, then the new
    server.
    """

    def __init__(self, file: StateFile[T], loop: EventLoop) -> None:
        self._file = file
        self._loop = loop
        self._thread = MeasuringThread("state")
        #: Whether the contents wait, since another server may read or write the file. Changed by upgrades: `hold` and
        #: `release`, and before the first `write`.
        self.is_held = False
        # Changed by write and _write_all: the next contents, and whether all before are written.
        self._next: list[T] | None = None
        self._written = loop.done_future()

    def write(self, values: Iterable[T]) -> None:
        """Have the file's contents replaced; of several contents that wait for the disk, only the last are written."""
        self._next = list(values)
        self._begin()

    def _begin(self) -> None:
        if self._written.done() and not self.is_held:
            self._written = self._loop.start(self._write_all())

    async def hold(self) -> None:
        """Write nothing more until `release`; returns when the file has its last contents. Raises TimeoutError, and
        holds nothing, where the disk takes longer than SETTLE_S."""
        ends_s = self._loop.now_s() + SETTLE_S
        while not self._written.done():
            if not await first(self._written, limit_s=ends_s - self._loop.now_s()):
                raise TimeoutError(self._file.not_written(SETTLE_S))
        self.is_held = True

    def check_held(self) -> None:
        """Raise ValueError where the contents have changed since `hold`: a server that has read the file knows the ones
        before."""
        if self.is_held and self._next is not None:
            raise ValueError(f"{self._file.name} have changed since {self._file.path} was read")

    def release(self) -> None:
        """Write again, first what has waited since `hold`."""
        self.is_held = False
        if self._next is not None:
            self._begin()

    async def settle(self) -> None:
        """Return when the file has its last contents, or after SETTLE_S, which is logged."""
        if not await first(self._written, limit_s=SETTLE_S):
            self._complain(SETTLE_S)

    def _complain(self, seconds: float) -> None:
        _log.error("%s; a restart may forget the last", self._file.not_written(seconds))

    def close(self) -> None:
        """Write what has not been written yet: the event loop has ended. A disk that hangs is waited for briefly. A
        held file is left alone: it is another server's."""
        if self._written.done() or self.is_held:
            return
        if not self._thread.close():
            self._complain(LAST_S)
        elif self._next is not None:
            self._file.write(self._next)

    async def _write_all(self) -> None:
        while (values := self._next) is not None:
            self._next = None
            write = partial(self._file.write, values)
            try:
                written = self._thread.answer(write, self._loop)
            except OSError:
                write()  # the system is short of descriptors or threads
            else:
                await written


def state_path(given: str, environ: Mapping[str, str], port: int, name: str) -> Path | None:
    """The path of a state file: `given` if a flag names one, else NAME-PORT.json in the state directory; None without a
    state directory, and for a server whose HTTP port is 0: the kernel chooses the port, or there is none."""
    if given:
        return Path(given).absolute()
    directory = state_directory(environ)
    return directory / f"{name}-{port}.json" if port and directory is not None else None


def state_directory(environ: Mapping[str, str]) -> Path | None:
    """Where the server keeps what is to outlive it: systemd's directory for the service, or the user's; None for a user
    without a home directory."""
    if systemd := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(systemd)
    user = environ.get("XDG_STATE_HOME", "")
    if user.startswith("/"):
        return Path(user) / "shoal"
    try:
        return Path.home() / ".local" / "state" / "shoal"
    except RuntimeError:
        return None
