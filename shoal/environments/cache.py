"""Environments on the local disk, by what they were made of: complete, or as good as absent.

    <root>/
    ├── <key>/environment/   made here, and never moved: scripts in it name their interpreter by its whole path
    ├── <key>/complete       created last; without it the next process that needs <key> begins anew
    ├── <key>.lock           held by the process that makes <key>; the others wait, be they of this server or not
    └── digests/<…>          what the contents of a file came to, by its path, as long as it is unchanged

Nothing is ever changed once it is complete, and nothing removed: `rm -r` of the whole is safe while no server runs.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shoal.errors import UnavailableError


def cache_directory(flag: str, environ: Mapping[str, str]) -> Path:
    """Where environments are kept: what --environment-cache-directory says, else systemd, else the user's cache."""
    if flag:
        return Path(flag).absolute()
    if systemd := environ.get("CACHE_DIRECTORY", "").partition(":")[0]:  # several, of which the first will do
        return Path(systemd, "environments")
    user = environ.get("XDG_CACHE_HOME", "")
    return Path(user if user.startswith("/") else Path("~/.cache").expanduser(), "shoal", "environments").absolute()


class Cache:
    """All of them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the directory, for this user only. Raises UnavailableError where that cannot be."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.root / "digests").mkdir(exist_ok=True)
        except OSError as error:
            raise UnavailableError(
                f"Python environments cannot be kept in '{self.root}': {error.strerror}; "
                "give a directory that the server's user can write to as --environment-cache-directory"
            ) from error

    def get(self, key: str, make: Callable[[Path], None], log: Callable[[str], None]) -> Path:
        """The environment `key`: as it was made before, or as `make` fills an empty directory now. `log` is told where
        another process is about to make it, which is waited for.

        Raises what `make` raises. `prepare` comes first.
        """
        entry = self.root / key
        directory, complete = entry / "environment", entry / "complete"
        if complete.exists():
            return directory
        with self._locked(key, log):
            if not complete.exists():
                shutil.rmtree(entry, ignore_errors=True)  # what a killed process has left
                directory.mkdir(parents=True)
                try:
                    make(directory)
                except BaseException:
                    shutil.rmtree(entry, ignore_errors=True)
                    raise
                os.sync()  # a power failure must not leave the mark without what it stands for
                complete.touch()  # publishes: an environment that every process may use
        return directory

    @contextlib.contextmanager
    def _locked(self, key: str, log: Callable[[str], None]) -> Iterator[None]:
        with open(self.root / f"{key}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log(f"another process makes environment {key}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def digest(self, file: Path) -> str:
        """SHA-256 of a file's contents. Raises OSError.

        Archives have gigabytes, and a worker that is started again shall not wait for seconds: while inode, size and
        modification time are what they were, so is the digest. `prepare` comes first.
        """
        status = file.stat()
        stamp = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
        note = self.root / "digests" / hashlib.sha256(os.fsencode(file.resolve())).hexdigest()
        with contextlib.suppress(FileNotFoundError):
            noted, _, digest = note.read_text().rpartition(" ")
            if noted == stamp:
                return digest
        found = hashlib.sha256()
        with file.open("rb") as opened:
            while chunk := opened.read(1 << 20):
                found.update(chunk)
        fresh = note.with_suffix(f".{os.getpid()}")
        fresh.write_text(f"{stamp} {found.hexdigest()}")
        fresh.rename(note)  # publishes: the digest, whole
        return found.hexdigest()
