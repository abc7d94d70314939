"""Python environments on the local disk, by what they were made from: complete, or as good as absent.

    <root>/
    ├── <key>/environment/   made here, and never moved: scripts in it name their interpreter by its whole path
    ├── <key>/complete       created last; without it the next process that needs <key> begins again
    ├── <key>.lock           held by the process that makes <key>; the others wait, be they of this server or not
    └── digests/<…>          digests of files' contents, by path, each valid while its file is unchanged

A complete environment is never changed or removed: `rm -r` of the root is safe while no server runs.
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
    """The directory of environments: --environment-cache-directory, else systemd's, else in the user's cache.

    Raises UnavailableError where there is none, as for a user without a home directory.
    """
    if flag:
        return Path(flag).absolute()
    if systemd := environ.get("CACHE_DIRECTORY", "").partition(":")[0]:  # may be several: the first one
        return Path(systemd, "environments")
    return user_cache(environ, "Python environments", "--environment-cache-directory") / "environments"


def user_cache(environ: Mapping[str, str], kept: str, flag: str) -> Path:
    """Shoal's directory in the user's cache. Raises UnavailableError, which names what is `kept` there and the flag for
    another directory, where the user has no home directory."""
    user = environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(user if user.startswith("/") else Path.home() / ".cache", "shoal").absolute()
    except RuntimeError as error:
        raise UnavailableError(
            f"{kept} have no place, as user {os.getuid()} has no home directory; give a directory that it can write to "
            f"as {flag}"
        ) from error


class Cache:
    """The environments below one root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the root directory, for this user only. Raises UnavailableError where that fails."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.root / "digests").mkdir(exist_ok=True)
        except OSError as error:
            raise UnavailableError(
                f"Python environments cannot be kept in '{self.root}': {error.strerror}; "
                "give a directory that the server's user can write to as --environment-cache-directory"
            ) from error

    def get(self, key: str, make: Callable[[Path], None], log: Callable[[str], None]) -> Path:
        """The directory of the environment `key`: made before, or now by `make`, which fills an empty directory. `log`
        is called where another process makes it, and is waited for.

        Raises the errors of `make`, and OSError. Call `prepare` before.
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
                os.sync()  # after a power failure the mark must not exist without the files
                complete.touch()  # publishes: an environment that every process may use
        return directory

    @contextlib.contextmanager
    def _locked(self, key: str, log: Callable[[str], None]) -> Iterator[None]:
        with open(self.root / f"{key}.lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log(f"another process makes environment {key}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def digest(self, file: Path) -> str:
        """The SHA-256 digest of a file's contents. Raises OSError.

        Archives have gigabytes, and a worker that is started again must not wait for seconds: while inode, size and
        modification time are unchanged, the noted digest is returned. Call `prepare` before.
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
        fresh.write_text(f"{stamp} {found.hexdigest()}", encoding="utf-8")
        fresh.rename(note)  # publishes: the digest, whole
        return found.hexdigest()
