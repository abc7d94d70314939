"""The folder of a recording: a ring of files by size and age, and next to it the last seconds before each death.

    20261129T134501.123456-0001.shoalrec          one file after another; the oldest are removed
    20261129T134501.123456-died-0002.shoalrec     a model's requests before an instance died; the last
                                                  MAX_DEATHS are kept, whatever the size and age of the others

Files are their owner's alone (mode 0600), since they hold clients' tensors. No file is written by two recorders. A file
dated in the future was begun before the wall clock was set back, and counts as older than all others. Runs in the
recorder.
"""

import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from shoal.file_kinds import is_dir
from shoal.recorder.segment_file import file_head, pack_frame

_log = logging.getLogger(__name__)

SUFFIX = ".shoalrec"
#: Files of deaths that are kept (ours: if one of them lacks the batch that led to a crash, another of sixteen has it).
MAX_DEATHS = 16
#: About how many files a recording has, so that removing the oldest loses little; bounds of a file's bytes (ours).
_NUM_FILES, _LEAST_NBYTES, _MOST_NBYTES = 16, 1 << 20, 256 << 20
_DATE = "%Y%m%dT%H%M%S.%f"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}-(died-)?\d{4,}" + re.escape(SUFFIX))


class RecordingFolder:
    """The files in one folder. `max_bytes` and `max_age_s` (0: no limit) bound the bytes and age of all files but those
    of deaths; `wall_s` is the wall clock."""

    def __init__(self, path: Path, max_bytes: int, max_age_s: float, wall_s: Callable[[], float]) -> None:
        self._path = path
        self._max_age_s = max_age_s
        self._wall_s = wall_s
        # Changed by the methods: the bounds; the last file, its size and age; the number of files.
        self.bound(max_bytes)
        self._fd = -1
        self._file = path
        self._nbytes = 0
        self._begun_s = 0.0
        self._num_files = 0

    def bound(self, max_bytes: int) -> None:
        """Keep at most `max_bytes` bytes from now on."""
        self._max_bytes = max_bytes
        self._file_nbytes = min(max(max_bytes // _NUM_FILES, _LEAST_NBYTES), _MOST_NBYTES)

    def write(self, entries: Sequence[bytes | memoryview]) -> None:
        """Append a frame of entries to the last file. Raises OSError; then the file ends before this frame."""
        frame = pack_frame(entries)
        is_full = self._nbytes + len(frame) > self._file_nbytes
        is_old = self._max_age_s > 0 and abs(self._wall_s() - self._begun_s) > self._max_age_s / _NUM_FILES
        # What is written into a file that has been removed from the folder would be lost.
        if self._fd >= 0 and (is_full or is_old or not os.fstat(self._fd).st_nlink):
            self.end_file()
        if self._fd < 0:
            self._fd, self._file = self._begin("")
            self._nbytes, self._begun_s = len(file_head()), self._wall_s()
            self._trim(self._file)
        try:
            _write_all(self._fd, frame)
        except OSError:
            self._end_after_failure()
            raise
        self._nbytes += len(frame)

    def write_death(self, entries: Sequence[bytes | memoryview]) -> None:
        """Write a separate file with the entries before an instance's death and those of the death. Raises OSError."""
        fd, begun = self._begin("died-")
        try:
            _write_all(fd, pack_frame(entries))
        except OSError:
            begun.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        for path in self._files_before(begun, is_death=True)[: 1 - MAX_DEATHS]:
            path.unlink(missing_ok=True)

    def end_file(self) -> None:
        """End the file, if one is begun: the next entry begins another."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _end_after_failure(self) -> None:
        """End the file with its last whole frame. A file without a whole frame is removed, since each attempt to write
        on a full disk would leave another."""
        with suppress(OSError):
            os.ftruncate(self._fd, self._nbytes)
        self.end_file()
        if self._nbytes == len(file_head()):
            self._file.unlink(missing_ok=True)

    def _begin(self, kind: str) -> tuple[int, Path]:
        """The descriptor and the path of a new file with nothing but its head. Raises OSError."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        date = datetime.fromtimestamp(self._wall_s(), timezone.utc).strftime(_DATE)
        while True:
            self._num_files += 1
            path = self._path / f"{date}-{kind}{self._num_files:04}{SUFFIX}"
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                continue  # another recorder has begun a file of this name
            try:
                _write_all(fd, file_head())
            except OSError:
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
            return fd, path

    def _files_before(self, begun: Path, *, is_death: bool) -> list[Path]:
        """All files of one kind but the one that has just begun, the oldest first."""
        matches = [(path, _NAME.fullmatch(path.name)) for path in self._path.iterdir() if path != begun]
        found = [path for path, match in matches if match is not None and bool(match[1]) is is_death]
        return sorted(found, key=lambda path: (path.name < begun.name, path.name))

    def _trim(self, begun: Path) -> None:
        """Remove the oldest files beyond the bounds, so that there is room for the one that has just begun."""
        found = self._files_before(begun, is_death=False)
        sizes: dict[Path, int] = {}
        for path in found:
            with suppress(FileNotFoundError):  # another program has removed it meanwhile
                sizes[path] = path.stat().st_size
        nbytes = self._file_nbytes + sum(sizes.values())
        for path, size in sizes.items():
            is_too_old = self._max_age_s > 0 and abs(self._wall_s() - _begun_s(path)) > self._max_age_s
            if is_too_old or nbytes > self._max_bytes:
                path.unlink(missing_ok=True)
                nbytes -= size


def _begun_s(path: Path) -> float:
    """The wall clock when a file was begun, from its name."""
    try:
        begun = datetime.strptime(path.name[:22], _DATE)
    except ValueError:  # another program's file: its name has no valid date
        return float("nan")
    return begun.replace(tzinfo=timezone.utc).timestamp()


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def files_of(path: Path) -> list[Path]:
    """The files of a recording in their order: `path` itself, or those of the folder."""
    return sorted(path.glob(f"*{SUFFIX}")) if is_dir(path) else [path]
